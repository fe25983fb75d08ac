"""`python -m benchmarks.studies.peer_workers.own_worker MODEL [OPTION] THREADS CLOCK`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch

from diffuspec.core.params import PLAIN, SamplingParams
from diffuspec.engine.engine import Engine
from diffuspec.pairs.smollm2 import smollm2_config

Clock: TypeAlias = Callable[[], float]

_MAX_LEN = 2048
_CLOCKS: dict[str, Clock] = {"wall": time.monotonic, "processor": time.process_time}


async def answer(engine: Engine, asked: dict[str, Any], clock: Clock) -> dict[str, Any]:
    """Answer a prompt without cached prefixes."""
    engine.reset_prefix_cache()
    sampling = SamplingParams(max_tokens=asked["max_tokens"])
    speculation = None if asked["drafts"] else PLAIN
    started, first, tokens = clock(), None, list[int]()
    async for output in engine.stream(asked["prompt"], sampling, speculation):
        tokens += output.token_ids
        first = first or clock()
    ended = clock()
    return {
        "tokens": tokens,
        "first_seconds": (first or ended) - started,
        "seconds": ended - started,
    }


async def serve(model: Path, options: list[str], num_threads: int, clock: Clock) -> None:
    """Answer the requests on stdin."""
    torch.set_num_threads(num_threads)
    target: dict[str, object] = {"path": model, "max_model_len": _MAX_LEN}
    if model.is_dir() or "--bfloat16" in options:
        target["dtype"] = smollm2_config().target.dtype
    target["quantize_activations"] = "--quantize-activations" in options
    config = smollm2_config(target=target)
    async with Engine.from_config(config) as engine:
        print("{}", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            found = await answer(engine, json.loads(line), clock)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    model, *options, num_threads, clock = sys.argv[1:]
    asyncio.run(serve(Path(model), options, int(num_threads), _CLOCKS[clock]))
