"""The study of load: speculation on and off, by the number of concurrent requests.

Both take turns at every concurrency, over the same models. With one process, each has its own
coordinator; with several, they share those of the engines. Caches are emptied before each turn, so
that no prompt is cached.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from diffuspec.bench.load import LoadClient, LoadRow, LoadRun, TimedTokens, ask_all, load_row
from diffuspec.bench.options import ROUNDS
from diffuspec.bench.plots import Line, plot_sweep
from diffuspec.bench.questions import Question, rotated
from diffuspec.bench.systems.engine_system import sibling
from diffuspec.bench.text_table import TextTable
from diffuspec.core.errors import ConfigError
from diffuspec.core.params import PLAIN, SamplingParams, SpeculationParams
from diffuspec.core.types import Prompt
from diffuspec.engine.base import EngineBase
from diffuspec.engine.engine import Engine

ON, OFF = "speculation", "off"
_FEW_ASKERS = 4  # with fewer clients than this, send as many questions per turn as for this many
_NUM_WARMING = 24  # prompts for each system before the first turn


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The load to put on each system."""

    max_tokens: int  # length of the longest answer
    concurrencies: Sequence[int]  # numbers of concurrent requests, measured one after the other
    num_repeats: int  # turns at each concurrency
    rounds: int = ROUNDS  # questions for each client per turn: long turns vary less

    def num_prompts(self, concurrency: int) -> int:
        """Return the number of prompts in a turn."""
        return self.rounds * max(concurrency, _FEW_ASKERS)


class EngineClient:
    """A `LoadClient` of the library's engine."""

    def __init__(self, engine: EngineBase, speculation: SpeculationParams) -> None:
        self._engine = engine
        self._speculation = speculation

    async def stream(self, prompt: Prompt, max_tokens: int) -> AsyncGenerator[TimedTokens]:
        sampling = SamplingParams(max_tokens=max_tokens)
        stream = self._engine.stream(prompt, sampling, self._speculation)
        async with contextlib.aclosing(stream):
            async for output in stream:
                yield TimedTokens(time.monotonic(), len(output.token_ids), output.text)


def study_load(
    engine: Engine,
    questions: Sequence[Question],
    plan: LoadPlan,
    on_turn: Callable[[str], None] = lambda _: None,
) -> tuple[list[LoadRow], int]:
    """Return the rows, and the number of answers whose text differs with speculation on and off.

    The first turns of the questions are sent in random order. Each system has one turn for each
    repeat at each concurrency; after each of them, `on_turn` is called with a description. Raises
    ConfigError if no question leaves room for max_tokens.
    """
    prompts = _prompts(engine, questions, plan.max_tokens)

    async def forget() -> None:
        engine.reset_prefix_cache()

    async def measure() -> tuple[list[LoadRow], int]:
        on, off = sibling(engine), sibling(engine)
        clients: dict[str, LoadClient] = {
            ON: EngineClient(on, engine.default_speculation),
            OFF: EngineClient(off, PLAIN),
        }
        try:
            return await compare_load(clients, prompts, plan, forget, on_turn)
        finally:
            await on.stop()
            await off.stop()

    return uvloop.run(measure())  # the event loop that engines and servers use


async def _keep() -> None:
    """Leave the caches as they are."""


def _prompts(engine: EngineBase, questions: Sequence[Question], max_tokens: int) -> list[Prompt]:
    room = engine.info.max_model_len - max_tokens
    encoded = [engine.encode([{"role": "user", "content": one.turns[0]}]) for one in questions]
    prompts: list[Prompt] = [ids.tolist() for ids in encoded if len(ids) <= room]
    if not prompts:
        raise ConfigError(f"no question leaves room for an answer of {max_tokens} tokens")
    random.Random(0).shuffle(prompts)
    return prompts


async def compare_load(
    clients: Mapping[str, LoadClient],
    prompts: Sequence[Prompt],
    plan: LoadPlan,
    forget: Callable[[], Awaitable[None]] = _keep,
    on_turn: Callable[[str], None] = lambda _: None,
) -> tuple[list[LoadRow], int]:
    """Send the same prompts with all clients at each concurrency, in turns; see `study_load`.

    Each repeat covers all concurrencies, so that a slowdown of the machine affects all of them.
    `forget` empties the prompt caches before each turn.
    """
    num_different = 0
    runs: dict[tuple[int, str], list[LoadRun]] = defaultdict(list)
    endless = itertools.cycle(prompts)
    few = min(_FEW_ASKERS, len(prompts))
    for client in clients.values():  # warm-up
        await ask_all(client, prompts[:_NUM_WARMING], few, plan.max_tokens)
    for repeat in range(plan.num_repeats):
        for concurrency in plan.concurrencies:
            asked = list(itertools.islice(endless, plan.num_prompts(concurrency)))
            texts: list[list[str]] = []
            for name, client in rotated(clients.items(), repeat):
                await forget()
                run = await ask_all(client, asked, concurrency, plan.max_tokens)
                runs[concurrency, name].append(run)
                texts.append([answer.text for answer in run.answers])
                on_turn(f"{name}, {concurrency} at a time")
            num_different += sum(len(set(same)) > 1 for same in zip(*texts, strict=True))
    rows = [load_row(name, runs[n, name]) for n in plan.concurrencies for name in clients]
    return rows, num_different


def load_tables(rows: Sequence[LoadRow]) -> list[TextTable]:
    """Return throughput and times with and without drafts, side by side."""
    found = {(row.system, row.concurrency): row for row in rows}
    pairs = [
        (found[ON, concurrency], found[OFF, concurrency])
        for concurrency in dict.fromkeys(row.concurrency for row in rows)
    ]
    return [_speed_table(pairs), _time_table(pairs)]


def _speed_table(pairs: Sequence[tuple[LoadRow, LoadRow]]) -> TextTable:
    first = pairs[0][0].tokens_per_second
    cells = [
        (
            str(own.concurrency),
            f"{own.tokens_per_second:.0f}",
            f"{base.tokens_per_second:.0f}",
            f"{own.tokens_per_second / base.tokens_per_second:.2f}x",
            f"{own.tokens_per_second / first:.2f}x",
            f"{own.cpu_per_token:.2f}",
            f"{base.cpu_per_token:.2f}",
        )
        for own, base in pairs
    ]
    columns = (
        "at a time",
        f"{ON} tokens/s",
        f"{OFF} tokens/s",
        "ratio",
        f"over {pairs[0][0].concurrency}",
        f"{ON} CPU ms/token",
        f"{OFF} CPU ms/token",
    )
    return TextTable("Throughput by requests at a time", columns, tuple(cells))


def _time_table(pairs: Sequence[tuple[LoadRow, LoadRow]]) -> TextTable:
    cells = [
        (
            str(own.concurrency),
            *_beside(own.first_token_p50, base.first_token_p50),
            *_beside(own.first_token_p99, base.first_token_p99),
            f"{own.first_token_p99 / own.first_token_p50:.1f}",
            *_beside(own.per_token_p50, base.per_token_p50),
        )
        for own, base in pairs
    ]
    columns = (
        "at a time",
        "first token p50",
        "ratio",
        "first token p99",
        "ratio",
        "p99 / p50",
        "per token p50",
        "ratio",
    )
    title = f"Milliseconds, {ON} / {OFF}, by requests at a time"
    return TextTable(title, columns, tuple(cells))


def _beside(own: float, base: float) -> tuple[str, str]:
    return f"{own:.1f} / {base:.1f}", f"{own / base:.2f}x" if base else ""


def plot_load(rows: Sequence[LoadRow], path: Path) -> None:
    """Draw throughput, time to the first token and time per token into a PNG file."""
    systems = list(dict.fromkeys(row.system for row in rows))

    def lines(measure: str) -> list[Line]:
        drawn = []
        for system in systems:
            own = [row for row in rows if row.system == system]
            xs = tuple(str(row.concurrency) for row in own)
            drawn.append(Line(system, xs, tuple(getattr(row, measure) for row in own)))
        return drawn

    panels = {
        "tokens/s": lines("tokens_per_second"),
        "ms to the first token, median": lines("first_token_p50"),
        "ms to the first token, p99": lines("first_token_p99"),
        "ms per token after it, median": lines("per_token_p50"),
    }
    plot_sweep("Load", "requests at a time", panels, path)
