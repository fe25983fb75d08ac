"""The study of load: turns, comparison, tables and plot, over a fake and over a small pair."""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from diffuspec.bench.load import LoadRow, TimedTokens
from diffuspec.bench.studies.load import OFF, ON, LoadPlan, compare_load, load_tables, plot_load
from diffuspec.core.types import Prompt

ROW = LoadRow(ON, 1, 12, 500, 200.0, 50.0, 60.0, 5.0, 9.0, 4.0)


class Echo:
    """Answers a prompt with itself, one token a `seconds`; wrong about one prompt if told so."""

    def __init__(self, seconds: float, wrong: int | None = None) -> None:
        self.asked: list[Prompt] = []
        self._seconds = seconds
        self._wrong = wrong

    async def stream(self, prompt: Prompt, max_tokens: int) -> AsyncGenerator[TimedTokens]:
        self.asked.append(prompt)
        for token in prompt:
            await asyncio.sleep(self._seconds)
            text = "?" if token == self._wrong else str(token)
            yield TimedTokens(time.monotonic(), 1, text)


@pytest.mark.virtual_time
async def test_systems_take_turns_on_the_same_prompts():
    clients, num_forgotten = {ON: Echo(1), OFF: Echo(2)}, [0]
    turns: list[str] = []

    async def forget() -> None:
        num_forgotten[0] += 1

    prompts: list[Prompt] = [[n, n] for n in range(30)]
    rows, num_different = await compare_load(
        clients, prompts, LoadPlan(8, [1, 8], 2), forget, turns.append
    )
    assert clients[ON].asked == clients[OFF].asked
    assert num_different == 0 and num_forgotten == [8]
    order = [(ON, 1), (OFF, 1), (ON, 8), (OFF, 8), (OFF, 1), (ON, 1), (OFF, 8), (ON, 8)]
    assert turns == [f"{name}, {number} at a time" for name, number in order]
    speeds = {(row.system, row.concurrency): row.tokens_per_second for row in rows}
    assert speeds == {(ON, 1): 1, (OFF, 1): 0.5, (ON, 8): 8, (OFF, 8): 4}
    assert [row.num_answers for row in rows] == [48, 48, 96, 96]


def test_long_turns_have_more_rounds_of_questions():
    assert [LoadPlan(8, [], 1, rounds=20).num_prompts(n) for n in (1, 4, 32)] == [80, 80, 640]


@pytest.mark.virtual_time
async def test_answers_that_differ_are_counted():
    prompts: list[Prompt] = [[n] for n in range(24)]
    plan = LoadPlan(8, [1, 2], 1)
    _, num_different = await compare_load({ON: Echo(1, wrong=5), OFF: Echo(1)}, prompts, plan)
    assert num_different == 2


def test_tables_and_plot_set_a_system_beside_the_baseline(tmp_path: Path):
    rows = [
        ROW,
        replace(ROW, system=OFF, tokens_per_second=50.0, first_token_p50=40.0),
        replace(ROW, concurrency=8, tokens_per_second=500.0),
        replace(ROW, system=OFF, concurrency=8, tokens_per_second=250.0, per_token_p50=0.0),
    ]
    speed, times = load_tables(rows)
    assert speed.cells[0][:5] == ("1", "200", "50", "4.00x", "1.00x")
    assert speed.cells[1][:5] == ("8", "500", "250", "2.00x", "2.50x")
    assert times.cells[0][1:3] == ("50.0 / 40.0", "1.25x") and times.cells[1][-1] == ""
    plot_load(rows, tmp_path / "load.png")
    assert (tmp_path / "load.png").stat().st_size > 1000
