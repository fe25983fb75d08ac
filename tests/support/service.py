"""The HTTP service, over engines of this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import uvloop
from transformers import PreTrainedTokenizerFast

from diffuspec.engine.base import EngineBase
from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config
from diffuspec.serve.app import create_app
from diffuspec.serve.server import EngineBackend, Server, Tls, bind
from diffuspec.serve.settings import ServeSettings
from diffuspec.telemetry.request_spans import RequestSpans
from tests.support.chat_models import QWEN, chat_tokenizer
from tests.support.checkpoints import CHAT_TEMPLATE, NUM_IDS, byte_tokenizer
from tests.support.fakes import FAKE_TARGET, FakeDrafter, FakeVerifier, always_right, oracle_of
from tests.support.scripted import scripted_engine

MODEL = "a-model"


@dataclass(frozen=True)
class Service:
    """A service that runs in a thread of its own."""

    url: str
    engine: EngineBase


@contextmanager
def serving(
    make_engine: Callable[[], EngineBase], settings: ServeSettings, tls: Tls | None = None
) -> Iterator[Service]:
    """Serve an engine on a free port of loopback."""
    started = threading.Event()
    found: list[tuple[Server, EngineBase]] = []

    async def serve() -> None:
        async with make_engine() as engine:
            app = create_app(EngineBackend(engine, MODEL, settings), settings)
            server = Server(
                app,
                bind("127.0.0.1", 0),
                settings,
                drain=lambda: engine.stop(settings.drain_seconds),
                on_ready=lambda url: started.set(),
                tls=tls,
            )
            found.append((server, engine))
            await server.run_until_stopped()

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    assert started.wait(60)
    [(server, engine)] = found
    try:
        yield Service(server.url, engine)
    finally:
        server.should_exit = True
        thread.join()


def fake_engine(
    verifier: FakeVerifier | None = None, max_waiting: int = 64, folder: Path | None = None
) -> Engine:
    """Return an engine over fake roles that know the ids of `byte_tokenizer`.

    Grammars need a folder, in which the tokenizer is written.
    """
    verifier = verifier or FakeVerifier(replace(FAKE_TARGET, vocab_size=NUM_IDS))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), eos_token="<|end|>", chat_template=CHAT_TEMPLATE
    )
    if folder is not None:
        tokenizer.save_pretrained(folder)
    config = parse_config(
        {
            "target": {"path": folder or Path("nowhere")},
            "coordinator": {"max_waiting": max_waiting, "profile_seconds": 0},
        }
    )
    return Engine(config, verifier, FakeDrafter(oracle_of(verifier), always_right), tokenizer)


def http_client(
    backend: Any,
    settings: ServeSettings | None = None,
    spans: RequestSpans | None = None,
    **options: Any,
) -> httpx2.AsyncClient:
    """Return a client of the application over a backend or an engine, without a server."""
    served = EngineBackend(backend, MODEL, settings) if isinstance(backend, Engine) else backend
    app = create_app(served, settings or ServeSettings(), spans=spans)
    transport = httpx2.ASGITransport(app)
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", **options)


def events(text: str) -> list[Any]:
    """Return the data of server-sent events, without the [DONE] that they must end with."""
    *found, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(one.removeprefix("data: ")) for one in found]


def named_events(text: str) -> list[Any]:
    """Return the data of server-sent events that have names, which are the types of the data."""
    *written, end = text.split("\n\n")
    assert end == ""
    lines = [one.split("\n") for one in written]
    found = [json.loads(data.removeprefix("data: ")) for _, data in lines]
    assert [name.removeprefix("event: ") for name, _ in lines] == [one["type"] for one in found]
    return found


@dataclass(frozen=True)
class ScriptedService:
    """A service whose model has Qwen's marks of calls and reasoning, and says what it is told."""

    url: str
    say: Callable[[str], None]


@contextmanager
def serving_scripted(settings: ServeSettings | None = None) -> Iterator[ScriptedService]:
    """Serve a scripted target on a free port of loopback."""
    tokenizer = chat_tokenizer(QWEN)
    verifier, engine = scripted_engine(Path("nowhere"), tokenizer, (tokenizer.eos_token_id,))
    with serving(lambda: engine, settings or ServeSettings()) as service:
        yield ScriptedService(service.url, verifier.say)
