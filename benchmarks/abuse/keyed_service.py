"""A service with API keys of its own, started to be attacked."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.abuse.attack import Clients
from benchmarks.abuse.target import Target
from benchmarks.service import ROOT, Service, ServiceKind, started
from diffuspec.core.validation import read_yaml
from diffuspec.serve.http.keys import add_key

_SERVE_FILE = ROOT / "deploy" / "serve.yaml"
MAX_END_SECONDS = {  # after SIGTERM: running requests have 30 s
    ServiceKind.SERVE: 35.0,  # and their errors 5 s
    ServiceKind.RAY: 65.0,  # the pipeline 20 s, and the cluster 15 s
}


@dataclass(frozen=True, slots=True)
class KeyedService:
    """A service, and three of its clients."""

    service: Service
    clients: Clients

    async def end(self) -> tuple[float, str | None]:
        """Send SIGTERM; return the seconds until the end, and how it differs from a good one."""
        began = time.monotonic()
        problem = await self.service.stop()
        return time.monotonic() - began, problem


@contextlib.asynccontextmanager
async def started_with_keys(kind: ServiceKind, folder: Path) -> AsyncIterator[KeyedService]:
    """Enter when a service with keys is ready. Its log is in the folder. Raises WorkerError."""
    with tempfile.TemporaryDirectory() as private:
        file = Path(private, "keys.yaml")
        attacker, other = add_key(file, "attacker"), add_key(file, "other")
        limited = add_key(file, "limited", max_requests=1)
        log = folder / f"{kind}.log"
        async with started(kind, log, _options(kind, file)) as service:
            keys = (attacker, limited, other)
            clients = Clients(*(Target(service.url, key) for key in keys))
            yield KeyedService(service, clients)


def _options(kind: ServiceKind, keys: Path) -> Sequence[str]:
    """Return the options of the service's command for a file of keys."""
    if kind is ServiceKind.SERVE:
        return ("--api-keys", str(keys))
    data: Any = read_yaml(_SERVE_FILE)
    data["applications"][0]["args"]["http"] = {"api_keys": str(keys)}
    config = keys.with_name("serve.yaml")
    config.write_text(json.dumps(data), encoding="utf-8")  # JSON is YAML, too
    return ("--config", str(config))
