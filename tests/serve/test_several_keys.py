"""What clients with keys of their own may do to each other, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from diffuspec.engine import Engine
from diffuspec.pairs.tiny import TARGET, tiny_config
from diffuspec.serve.http.keys import add_key
from diffuspec.serve.settings import ServeSettings
from tests.support.service import serving

TEXT = "Once upon a time there was a boy who "
NUM_PROMPTS = 40


@dataclass(frozen=True)
class Keyed:
    """A service with keys, by name."""

    url: str
    keys: dict[str, str]

    def client(self, name: str) -> httpx2.Client:
        headers = {"authorization": f"Bearer {self.keys[name]}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    path: Path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys = {name: add_key(path, name) for name in ("alice", "bob")}
    keys["limited"] = add_key(path, "limited", max_requests=1)
    target = {"path": TARGET, "max_model_len": 512, "max_sequences": 2, "prefix_slots": 6}
    config = tiny_config(target=target)
    with serving(lambda: Engine.from_config(config), ServeSettings(api_keys=path)) as service:
        yield Keyed(service.url, keys)


@pytest.mark.parametrize("name", ["limited", "alice"])
def test_a_body_of_many_prompts_does_not_keep_another_key_waiting(keyed: Keyed, name: str):
    """The limited key has one answer at a time; without limits, keys take turns in the queue."""
    prompts = [f"{number}. {TEXT}" * 8 for number in range(NUM_PROMPTS)]
    asked = {"max_tokens": 16, "ignore_eos": True, "temperature": 0}
    body = asked | {"prompt": prompts, "stream": True}
    with (
        keyed.client(name) as many,
        keyed.client("bob") as few,
        many.stream("POST", "/v1/completions", json=body) as stream,
    ):
        before = num_finished(few)
        assert stream.is_success, stream.read()
        chunks = stream.iter_bytes()
        next(chunks)
        answer = few.post("/v1/completions", json=asked | {"prompt": TEXT, "max_tokens": 4})
        assert answer.json()["usage"]["completion_tokens"] == 4
        assert num_finished(few) - before < NUM_PROMPTS // 2


def num_finished(client: httpx2.Client) -> float:
    """Return the number of answers that the service has finished."""
    text = client.get("/metrics").text
    lines = [one for one in text.splitlines() if one.startswith("diffuspec_request_success_total{")]
    return sum(float(line.split()[-1]) for line in lines)
