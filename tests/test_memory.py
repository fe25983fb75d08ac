"""Memory of an engine that answers many requests.

`pytest tests/test_memory.py --memory-requests 5000` asks more of it than the suite does.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil
import pytest

from diffuspec.core.params import SamplingParams
from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config

NUM_WARM_UP = 500  # requests after which all sizes of batches have occurred
NUM_SAMPLES = 5  # of the resident memory
MAX_GROWTH_BYTES = 8 * 2**20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_memory_does_not_grow_over_many_requests(
    request: pytest.FixtureRequest,
    target_path: Callable[[str], Path],
    drafter_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    sections: dict[str, object] = {
        "target": {"path": target_path("qwen2"), "device": "cpu", "max_sequences": 8},
        "drafter": {"path": drafter_path, "device": "cpu"},
    }
    num_requests = request.config.getoption("--memory-requests")
    alone = multiprocessing.get_context("spawn")  # other tests leave memory of their own behind
    with ProcessPoolExecutor(1, alone) as pool:
        samples = pool.submit(resident_bytes, sections, num_requests).result()
    text = ", ".join(f"{sample / 2**20:.1f}" for sample in samples)
    every = num_requests // NUM_SAMPLES
    record_property("report", f"resident MiB after each {every} requests: {text}")
    assert max(samples) - samples[0] < MAX_GROWTH_BYTES, text


def resident_bytes(sections: dict[str, object], num_requests: int) -> list[int]:
    """Return the resident memory of this process NUM_SAMPLES times while requests are answered."""
    process, samples, every = psutil.Process(), list[int](), num_requests // NUM_SAMPLES

    async def answer_all(engine: Engine) -> None:
        numbers = iter(range(-NUM_WARM_UP, num_requests))

        async def ask() -> None:
            for number in numbers:
                prompt = [1 + number % 40, *range(2, 4 + number % 13)]  # % is never negative
                await engine.complete(prompt, SamplingParams(max_tokens=3, ignore_eos=True))
                if number >= 0 and number % every == every - 1:
                    gc.collect()
                    samples.append(process.memory_info().rss)

        await asyncio.gather(*(ask() for _ in range(8)))
        await engine.stop()

    with Engine.from_config(parse_config(sections)) as engine:
        asyncio.run(answer_all(engine))
    return samples
