"""The service over engines in processes of their own."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from diffuspec.core.params import SamplingParams
from diffuspec.data_parallel import process
from diffuspec.data_parallel.engine import DataParallelEngine
from diffuspec.engine.engine import Engine
from diffuspec.serve.settings import ServeSettings
from tests.support.engines import short_tiny_config
from tests.support.forked import forked
from tests.support.held_restarts import held_restarts
from tests.support.service import Service, events, serving

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
ASKED = {"prompt": "Hi", "max_tokens": 200, "ignore_eos": True, "stream": True, "temperature": 0}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    config = short_tiny_config().model_copy(update={"data_parallel_size": 2})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "PYTHON", tuple(forked()))
        with serving(lambda: DataParallelEngine.from_config(config, 1), ServeSettings()) as found:
            yield found


def text_of(stream: str) -> str:
    return "".join(chunk["choices"][0]["text"] for chunk in events(stream) if chunk["choices"])


def test_a_stream_goes_on_while_its_process_is_replaced(service: Service):
    engines = service.engine
    assert isinstance(engines, DataParallelEngine)
    assert httpx2.get(f"{service.url}/ready").json()["healthy_roles"] == 3
    url = f"{service.url}/v1/completions"
    with held_restarts(), httpx2.stream("POST", url, json=ASKED, timeout=60) as answer:
        lines = answer.iter_text()
        text = next(lines)
        [busy] = [
            member
            for member in engines._members.values()
            if member.connection is not None and member.connection.num_answers
        ]
        busy.process.kill()
        text += "".join(lines)
        assert httpx2.get(f"{service.url}/ready").json()["status"] == "degraded"
    with Engine.from_config(short_tiny_config()) as engine:
        [right] = engine.generate(["Hi"], SamplingParams(max_tokens=200, ignore_eos=True))
    assert text_of(text) == right.text
    metrics = httpx2.get(f"{service.url}/metrics").text
    assert 'diffuspec_generation_tokens_total{engine="' in metrics


@pytest.mark.slow
def test_an_interrupt_of_all_processes_lets_a_request_finish_and_leaves_none():
    command = forked("-m", "tests.support.serve_forked", "serve", "--port", "0")
    service = subprocess.Popen(
        [*command, "--data-parallel-size", "2"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert service.stdout is not None
    pid, url = int(service.stdout.readline()), service.stdout.readline().split()[-1]
    engines = psutil.Process(pid).children()
    assert len(engines) == 2
    with httpx2.stream("POST", f"{url}/v1/completions", json=ASKED, timeout=60) as answer:
        lines = answer.iter_text()
        text = next(lines)
        for one in (service, *engines):  # forked, they are in no group of processes
            one.send_signal(signal.SIGINT)
        text += "".join(lines)
    assert events(text)[-1]["choices"][0]["finish_reason"] == "length"
    assert service.wait(60) == 0
    assert not any(one.is_running() for one in engines)
    service.stdout.close()
