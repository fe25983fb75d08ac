"""The drafter's process. Its path scorer, if any, runs in another process on the same node.

The drafter sends its lattices to the scorer and gets draft trees back; the coordinator never sees
lattices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from actors.roles import self_test
from actors.roles.served_role import ServedRole
from actors.settings import PipelineConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.interfaces import ObservableVerifier, TargetInfo
from diffuspec.core.types import Draft, DraftRequest, Lattice
from diffuspec.drafters import LocalDrafter, Target, kind_of, load_drafter
from diffuspec.rpc.client.roles import RemotePathScorer
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.servicers import DrafterServicer

# a step counts as hung after this many deadlines; one that reads a long prompt may be late
_PATIENCE = 3


class DrafterActor(ServedRole):
    """Serves a drafter."""

    def __init__(self, config: PipelineConfig, security: Security, name: str | None = None) -> None:
        """`name`: the drafter's name in the configuration; None: the first drafter."""
        seconds = config.deadlines.draft_seconds + config.deadlines.silence_seconds
        super().__init__(security, seconds)
        names = config.engine.named_drafters
        self._drafter_config = names.get(name) if name is not None else config.engine.drafter
        if self._drafter_config is not None:
            # The imports take seconds; this runs them while the target starts.
            kind_of(self._drafter_config).import_ahead()
        self._config = config
        self._drafter: LocalDrafter | None = None
        self._scorer: _ReplaceableScorer | None = None
        self._info: TargetInfo | None = None

    async def start(
        self,
        info: TargetInfo,
        vocabulary: str | None,
        scorer_address: str,
        host: str,
        port: int = 0,
        verifier: ObservableVerifier | None = None,
    ) -> str:
        """Load the drafter, draft once as a self-test, and serve; return the address.

        vocabulary: the digest of the target's vocabulary, see `vocabulary_digest`; None: not
        compared. scorer_address: the path scorer's; "" for a drafter without one. verifier: for a
        drafter that observes the target, the verifier in this process. Raises ConfigError,
        ModelLoadError, DrafterError.
        """
        config = self._config
        # raises on a bad configuration before weights are loaded
        self._security.server_credentials(host)
        self._info = info
        target = Target(info, vocabulary, config.engine.target.path, verifier)
        drafter = self._drafter = await self._load(target)
        self._resources.callback(drafter.close)
        if self._scorer is not None:
            self._resources.push_async_callback(self._scorer.close)
            self._scorer.remote = await self._connect(scorer_address)
        await self._draft_once()
        limits = config.limits(_PATIENCE * config.deadlines.draft_seconds)
        servicer = DrafterServicer(drafter, info)
        server = await self._serve(servicer, host, port, limits, self._draft_once)
        return server.address

    async def _load(self, target: Target) -> LocalDrafter:
        config = self._drafter_config
        if config is None:
            raise ConfigError("no such drafter is configured: there is nothing to serve")
        kind = kind_of(config)
        if kind.observes:  # a path search, if needed, then also runs in this process
            return await asyncio.to_thread(load_drafter, config, self._config.engine.search, target)
        self._scorer = _ReplaceableScorer() if kind.needs_path_scorer else None
        return await asyncio.to_thread(kind.load, config, target, self._scorer)

    async def use_scorer(self, address: str) -> None:
        """Switch to another path scorer, in place of a lost one. Raises DrafterError."""
        assert self._scorer is not None, "start() comes first, with a path scorer"
        scorer = await self._connect(address)
        await self._scorer.close()
        self._scorer.remote = scorer

    async def link_bytes(self) -> tuple[int, int]:
        """Return the bytes sent to and received from the path scorer so far."""
        assert self._scorer is not None and self._scorer.remote is not None
        return self._scorer.remote.num_bytes_sent, self._scorer.remote.num_bytes_received

    async def try_draft(self) -> None:
        """Draft once, as a trial after failed steps. Raises DrafterError."""
        assert self._servicer is not None, "start() comes first"
        await self._servicer.health.check(self._draft_once)

    async def _draft_once(self) -> None:
        assert self._drafter is not None and self._info is not None
        await self._drafter.draft([self_test.draft_request(self._info)])
        await self._drafter.release(self_test.REQUEST_ID)

    async def _connect(self, address: str) -> RemotePathScorer:
        seconds = self._config.deadlines.search_seconds
        limits = self._config.limits(seconds)
        return await RemotePathScorer.connect(
            address, self._security, deadline_seconds=seconds, limits=limits
        )


class _ReplaceableScorer:
    """A PathScorer in another process, which can be replaced without the drafter's noticing."""

    def __init__(self) -> None:
        self.remote: RemotePathScorer | None = None

    async def search(
        self, requests: Sequence[DraftRequest], lattices: Sequence[Lattice]
    ) -> list[Draft]:
        assert self.remote is not None, "it is connected before anything is drafted"
        return await self.remote.search(requests, lattices)

    async def close(self) -> None:
        if self.remote is not None:
            await self.remote.close()
