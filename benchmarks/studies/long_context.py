"""`python -m benchmarks.studies.long_context MODEL`: prompts of a thousand tokens and more.

Tells when the first token comes, what a token takes after it, how long a second request that comes
meanwhile waits for its next token at most, and the memory. Every answer with drafts must be the one
without. `--positions N` instead draws a model of the same kind with four layers and N positions.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks.progress import progress
from benchmarks.studies.small_cache import DRAFTED, PLAIN, make_engine
from diffuspec.bench.report import print_tables
from diffuspec.bench.text_table import TextTable
from diffuspec.cli.command import Command
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.engine.engine import Engine

_NUM_ANSWERED = 64
_NUM_BESIDE = 400  # most tokens of the request that is answered beside a long prompt
_NUM_LAYERS = 4  # layers of a drawn model
_HEADS = "tokens", "first token, s", "a token, ms", "drafted, ms", "beside it at most, s", "differ"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


async def stream(
    engine: Engine, prompt: Sequence[int], number: int, speculation: SpeculationParams
) -> tuple[list[int], list[float]]:
    """Return the tokens of an answer, and when it was asked for and each part of it came."""
    sampling = SamplingParams(ignore_eos=True, max_tokens=number)
    tokens: list[int] = []
    times = [time.monotonic()]
    async for output in engine.stream(list(prompt), sampling, speculation):
        tokens += output.token_ids
        times.append(time.monotonic())
    return tokens, times


def per_token(times: Sequence[float]) -> float:
    """Return the milliseconds of a token after the first part of an answer."""
    return 1000 * (times[-1] - times[1]) / (_NUM_ANSWERED - 1)


async def row(engine: Engine, prompt: Sequence[int]) -> tuple[str, ...]:
    """Answer a prompt alone, with drafts, and again, with its prompt read beside another answer."""
    plain, times = await stream(engine, prompt, _NUM_ANSWERED, PLAIN)
    drafted, drafted_times = await stream(engine, prompt, _NUM_ANSWERED, DRAFTED)
    beside = asyncio.create_task(stream(engine, prompt[:50], _NUM_BESIDE, PLAIN))
    await asyncio.sleep(0.1)
    again, _ = await stream(engine, list(prompt)[::-1], 1, PLAIN)  # nothing of it is cached
    beside_times = (await beside)[1]
    longest = max(late - early for early, late in itertools.pairwise(beside_times[1:]))
    return (
        f"{len(prompt):,}",
        f"{times[1] - times[0]:.2f}",
        f"{per_token(times):.1f}",
        f"{per_token(drafted_times):.1f}",
        f"{longest:.2f}",
        str(int(plain != drafted) + int(len(again) != 1)),
    )


async def rows(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[tuple[str, ...]]:
    async with engine:
        return [await row(engine, prompt) for prompt in prompts]


def draw(model: Path, positions: int, folder: Path) -> Path:
    """Write a model like another one, with drawn weights, fewer layers and more positions."""
    from transformers import AutoConfig, AutoModelForCausalLM

    models: Any = AutoModelForCausalLM
    config: Any = AutoConfig.from_pretrained(model)
    config.update({"max_position_embeddings": positions, "num_hidden_layers": _NUM_LAYERS})
    torch.manual_seed(0)
    drawn = models.from_config(config, dtype=torch.bfloat16)
    drawn.save_pretrained(folder)
    for file in model.glob("*token*"):
        shutil.copy(file, folder)
    return folder


def lengths(positions: int) -> Iterator[int]:
    """Yield a thousand, eight times as many, ..., and as many as leave room for an answer."""
    length = 1000
    while 2 * length < positions:
        yield length
        length *= 8
    yield positions - 2 * _NUM_ANSWERED


@app.command(cls=Command)
def main(
    model: Path,
    positions: Annotated[
        int, typer.Option(help="Positions of a model that is drawn; 0: MODEL itself.")
    ] = 0,
    text: Annotated[Path, typer.Option(help="What prompts are cut from.")] = Path(
        "docs/results.md"
    ),
) -> None:
    """Answer long prompts; exit with 1 if an answer with drafts differs."""
    with tempfile.TemporaryDirectory() as folder:
        used = draw(model, positions, Path(folder)) if positions else model
        engine = make_engine(used, 2, positions=positions or 8192)
        token_ids = engine.tokenizer.encode(text.read_text(encoding="utf-8"))
        repeated = list(itertools.islice(itertools.cycle(token_ids), positions or 8192))
        with progress("long prompts", Console(stderr=True)) as say:
            say("each length four times")
            found = asyncio.run(rows(engine, [repeated[:n] for n in lengths(positions or 8192)]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    table = TextTable("Long prompts", _HEADS, tuple(found))
    print_tables([table], [f"peak memory {peak:.2f} GiB"], Console())
    raise typer.Exit(int(any(row[-1] != "0" for row in found)))


if __name__ == "__main__":
    app()
