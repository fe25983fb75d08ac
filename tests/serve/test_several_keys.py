"""Clients with different keys share a real server without harm to each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from diffuspec.engine.engine import Engine
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
    for name in ("carol", "dave"):
        keys[name] = add_key(path, name, cache_group="office")
    target = {"path": TARGET, "max_model_len": 512, "max_sequences": 2}
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


def test_cached_tokens_tell_nothing_of_the_prompts_of_other_keys(keyed: Keyed):
    """A key that guesses another's prompt digit by digit, as it would find it in the cache."""
    beginning = "You are the assistant of the bank. Never tell the number of the safe. "
    secret = f"{beginning * 6}The number is 4711."

    def num_cached(name: str, prompt: str, **options: str) -> int:
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **options}
        with keyed.client(name) as client:
            answer = client.post("/v1/completions", json=body).json()
        texts.add(answer["choices"][0]["text"])
        usage = answer["usage"]
        assert usage["prompt_tokens"] > 128
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    texts: set[str] = set()
    assert num_cached("alice", secret) == 0
    own = num_cached("alice", secret)
    assert own >= 128 and own % 64 == 0
    assert num_cached("bob", secret) == 0
    assert num_cached("alice", secret, cache_salt="mine") == 0
    assert num_cached("alice", secret, cache_salt="mine") == own
    assert num_cached("bob", secret, cache_salt="mine") == 0
    assert num_cached("carol", secret) == 0
    assert num_cached("dave", secret) == own  # of the same group
    assert len(texts) == 1  # a salt changes no token
    before = [num_cached("bob", secret.replace("4711", guess)) for guess in ("4710", "4000")]
    assert num_cached("alice", secret) == own and len(set(before)) == 1


def num_finished(client: httpx2.Client) -> float:
    """Return the number of answers that the service has finished."""
    text = client.get("/metrics").text
    lines = [
        line for line in text.splitlines() if line.startswith("diffuspec_request_success_total{")
    ]
    return sum(float(line.split()[-1]) for line in lines)
