"""Load on a running service over HTTP: speculation on and off, in turns."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any

from diffuspec.bench.http_client import HttpClient
from diffuspec.bench.load import LoadRow, RateRun, ask_at_rate, rate_table
from diffuspec.bench.questions import Question, rotated
from diffuspec.bench.studies.load import OFF, ON, LoadPlan, compare_load, load_tables
from diffuspec.bench.text_table import TextTable
from diffuspec.core.types import Prompt

_SECONDS_PER_RATE = 10.0


@dataclass(frozen=True, slots=True)
class ServiceLoad:
    """The measurements of a service."""

    model: str
    rows: tuple[LoadRow, ...]  # closed loop
    num_different: int  # answers whose text differs with speculation on and off
    runs: tuple[tuple[str, RateRun], ...]  # open loop, by system

    def tables(self) -> list[TextTable]:
        tables = load_tables(self.rows) if self.rows else []
        return [*tables, rate_table(self.runs)] if self.runs else tables

    def to_json(self) -> dict[str, Any]:
        runs = [
            {
                "system": name,
                "rate": run.rate,
                "tokens_per_second": run.tokens_per_second,
                "num_answers": len(run.answers),
                "num_refused": run.num_refused,
                "first_token_seconds": [one.first_token_seconds for one in run.answers],
            }
            for name, run in self.runs
        ]
        return {"model": self.model, "rows": [asdict(row) for row in self.rows], "rates": runs}


async def measure_service(
    url: str,
    api_key: str | None,
    questions: Sequence[Question],
    plan: LoadPlan,
    *,
    rates: Sequence[float],
    on_turn: Callable[[str], None] = lambda _: None,
) -> ServiceLoad:
    """Send the first turns of the questions in random order. Raises ConfigError, WorkerError.

    Each system has a turn at each rate, and one for each repeat at each concurrency. After each of
    them, `on_turn` is called with a description.
    """
    prompts: list[Prompt] = [[{"role": "user", "content": one.turns[0]}] for one in questions]
    random.Random(0).shuffle(prompts)
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(HttpClient(url, api_key, speculation))
            for name, speculation in ((ON, None), (OFF, "off"))
        }
        model = await clients[ON].model()
        rows: list[LoadRow] = []
        num_different = 0
        if plan.concurrencies:
            rows, num_different = await compare_load(clients, prompts, plan, on_turn=on_turn)
        runs: list[tuple[str, RateRun]] = []
        for turn, rate in enumerate(rates):
            count = max(2, round(rate * _SECONDS_PER_RATE))
            asked = list(itertools.islice(itertools.cycle(prompts), count))
            for name, client in rotated(clients.items(), turn):
                runs.append((name, await ask_at_rate(client, asked, rate, plan.max_tokens)))
                on_turn(f"{name}, {rate:g} a second")
    return ServiceLoad(model, tuple(rows), num_different, tuple(runs))
