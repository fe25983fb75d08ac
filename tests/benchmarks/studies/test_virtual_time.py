"""The coordinator on simulated machines: exact times, answers of plain decoding, no chance."""

import asyncio

import numpy as np
import pytest

from benchmarks.studies.virtual_time import study
from benchmarks.studies.virtual_time_cells import (
    DEFAULT,
    FIXED,
    OFF,
    ORACLE,
    Cell,
    CellRow,
    measure,
    oracle_plans,
)
from benchmarks.studies.virtual_time_machines import MACHINES
from benchmarks.studies.virtual_time_regimes import REGIMES
from benchmarks.studies.virtual_time_results import ResultsFile, comparison_tables, read_rows
from diffuspec.bench.planning.machines import CallSize
from diffuspec.bench.planning.processor import Processor, Worker
from diffuspec.bench.planning.roles import SimulatedVerifier
from diffuspec.bench.planning.traffic import Answer, make_answers
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import EMPTY_TREE, VerifyRequest
from tests.support.virtual_time import VirtualTimeLoop


class ShortCell(Cell):
    """A cell with an eighth of the answers."""

    @property
    def answers(self) -> tuple[Answer, ...]:
        return make_answers(REGIMES[self.regime], 8)


async def seconds_of(*jobs: tuple[float, float], interference: float) -> list[float]:
    """Return when jobs end that are each begun at a time and take so long alone."""
    loop, processor = asyncio.get_running_loop(), Processor(interference)
    begun_at = loop.time()

    async def run(starts: float, seconds: float) -> float:
        await asyncio.sleep(starts)
        await Worker(processor).run(seconds)
        return loop.time() - begun_at

    return await asyncio.gather(*(run(*job) for job in jobs))


@pytest.mark.virtual_time
async def test_jobs_slow_each_other_down_while_they_are_side_by_side():
    # Alone for 1 s, then both at half their speed until the short one ends, 2 s later.
    assert await seconds_of((0, 3), (1, 1), interference=1) == pytest.approx([5 - 1, 3])
    assert await seconds_of((0, 1), (0, 1), interference=0.5) == pytest.approx([1.5, 1.5])
    assert await seconds_of((0, 1), (0, 1), (0, 2), interference=1) == pytest.approx([3, 3, 4])
    assert await seconds_of((0, 3), (1, 1), interference=0) == pytest.approx([3, 2])


@pytest.mark.virtual_time
async def test_a_worker_ends_a_call_that_its_caller_has_left_before_the_next():
    loop, worker = asyncio.get_running_loop(), Worker(Processor(0.0))
    begun_at = loop.time()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(worker.run(3), 1)
    assert loop.time() - begun_at == pytest.approx(1)
    await worker.run(2)
    assert loop.time() - begun_at == pytest.approx(5)


def test_a_cancelled_timer_is_not_waited_for():
    async def main() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(50, print).cancel()
        await asyncio.sleep(100)  # by the real clock, the time limit of the test would end it
        return loop.time()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        started_at = runner.get_loop().time()
        assert runner.run(main()) == started_at + 100


@pytest.mark.parametrize("name", REGIMES)
def test_the_share_of_right_guesses_and_of_listed_tokens_is_as_said(name):
    answers = make_answers(REGIMES[name], 64)
    for half in answers[:32], answers[32:]:
        places = [(one, i) for one in half for i in range(one.num_tokens)]
        wrong = [(one, i) for one, i in places if one.drafted[i] != one.own[i]]
        listed = [one.own[i] in dict(one.alternatives[i]) for one, i in wrong]
        expected = sum(one.share * one.num_tokens for one in half) / len(places)
        assert 1 - len(wrong) / len(places) == pytest.approx(expected, abs=0.03)
        assert sum(listed) / len(wrong) == pytest.approx(0.6, abs=0.06)
        assert all(len(dict(one.alternatives[i])) == 4 for one, i in places)


@pytest.mark.parametrize("machine", MACHINES)
def test_answers_are_those_of_plain_decoding(machine):
    rows = measure(ShortCell(machine, "sampled_pays", 2), (OFF, DEFAULT))  # asserts it
    assert [row.system for row in rows] == [OFF, DEFAULT]


@pytest.mark.virtual_time
async def test_a_prefix_that_was_read_before_still_takes_a_row():
    machine, answers = MACHINES["slow_cpu"], ShortCell("slow_cpu", "greedy_pays", 1).answers
    verifier = SimulatedVerifier(machine, Processor(0.0), answers)
    prompt = np.array(answers[0].prompt, np.int32)
    asked = VerifyRequest("again", prompt, len(prompt), EMPTY_TREE, SamplingParams())
    for _ in range(2):
        [verdict] = await verifier.verify([asked])
    assert verdict.verify_seconds == pytest.approx(machine.verify_seconds(CallSize(1, 1)))


@pytest.mark.no_cover
def test_the_oracle_is_the_fastest_plan_that_it_may_choose():
    here = ShortCell("two_cores", "greedy_mixed", 2)
    rates = {row.system: row.tokens_per_second for row in measure(here, (OFF, FIXED, ORACLE))}
    fixed = [rate for system, rate in rates.items() if system.startswith("fixed")]
    assert rates[ORACLE] >= max(rates[OFF], *fixed)
    assert len(oracle_plans(here)) == 1 + 2 * len(fixed), "all requests, or those above 0.4"


@pytest.mark.no_cover
def test_a_cell_gives_the_same_figures_each_time():
    here = ShortCell("own_gpu", "sampled_pays", 8)
    assert study([here], ["default"]) == study([here], ["default"])


def test_a_comparison_marks_what_has_become_slower(tmp_path):
    def row(system: str, rate: float) -> CellRow:
        return CellRow("one_gpu", "turns_bad", 4, system, rate, 0.5)

    path = tmp_path / "rows.json"
    ResultsFile(path).add([row("default", 1.0), row("off", 100.0)])
    ResultsFile(path).add([row("default", 95.0), row("oracle", 120.0)])
    table, summary = comparison_tables([row("default", 90.0)], read_rows(path))
    rates, ratios = ("90", "95", "100", "120"), ("1.06", "*0.95", "*0.79", "1.00")
    assert table.cells == (("turns_bad 4", *rates, *ratios),)
    assert ("one_gpu, new/ off", "*0.950", "0.950", "1", "turns_bad 4") in summary.cells
