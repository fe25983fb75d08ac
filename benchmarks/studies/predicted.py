"""`python -m benchmarks.studies.predicted`: a plan's figures against those of this machine.

An engine with both roles in this process, and one whose drafter has a process of its own, answer a
pair's questions with drafts and without. For each of them the costs of calls are measured first,
then the figures are predicted, then they are measured. The folder of results keeps answers and
rows, so that the study can be run in parts. Each part measures the costs anew: a shared machine is
faster at one time than at another.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import fmean, median
from typing import Annotated

import torch
import typer
import uvloop
from rich.console import Console

from benchmarks.studies.predicted_rows import Compared, Figures, compared_table, merged, summary
from diffuspec.bench.call_costs import measure_costs
from diffuspec.bench.load import LoadAnswer, TimedTokens, ask_all, ask_at_rate
from diffuspec.bench.machine import cpu_model
from diffuspec.bench.output import make_folder
from diffuspec.bench.planning.acceptance import (
    Recording,
    read_recording,
    typed_regime,
    write_recording,
)
from diffuspec.bench.planning.costs import CostedMachine, DeviceCosts, write_costs
from diffuspec.bench.planning.plan import Arrival, Load, Placement, Traffic, simulate
from diffuspec.bench.questions import first_per_family, load_questions
from diffuspec.bench.record import RecordedText, read_texts, record_texts
from diffuspec.bench.report import write_report
from diffuspec.cli.command import Command, parse_numbers
from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import PLAIN, SamplingParams, SpeculationParams
from diffuspec.core.types import Prompt
from diffuspec.drafters import Target, load_drafter
from diffuspec.engine.engine import Engine
from diffuspec.pairs import DEFAULT_PAIR, PAIRS, Pair, find_pair
from diffuspec.rpc.client.roles import RemoteDrafter
from diffuspec.rpc.security import Security, new_token
from diffuspec.rpc.server.server import RoleServer
from diffuspec.rpc.server.servicers import DrafterServicer

LOADS = "1,2,4,8,16"  # requests at a time
RATES = "0.3,0.5,0.7"  # arrivals, as shares of the most requests per second without drafts
_MOST = 16  # requests at a time
_LEAST_REQUESTS, _ROUNDS = 8, 2  # requests of a run at the least; answers to each client
_NUM_AT_RATE = 16
_OFF, _ON = "off", "on"
_TOGETHER, _APART = WAYS = "together", "apart"


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class _Client:
    """A `LoadClient` of an engine, to which every prompt is new."""

    def __init__(self, engine: Engine, speculation: SpeculationParams) -> None:
        self._engine = engine
        self._speculation = speculation
        self._salts = count()

    async def stream(self, prompt: Prompt, max_tokens: int) -> AsyncGenerator[TimedTokens]:
        salt = f"{id(self)}-{next(self._salts)}"
        sampling = SamplingParams(max_tokens=max_tokens, cache_salt=salt)
        stream = self._engine.stream(prompt, sampling, self._speculation)
        async with contextlib.aclosing(stream):
            async for output in stream:
                yield TimedTokens(time.monotonic(), len(output.token_ids), output.text)


@dataclass(frozen=True, slots=True)
class _Study:
    """The questions of a pair, with the answers and the drafts at each of their tokens."""

    texts: Sequence[RecordedText]
    recording: Recording
    max_tokens: int

    @property
    def mean_tokens(self) -> float:
        return fmean(len(text.token_ids) for text in self.texts)

    def num_requests(self, load: Load) -> int:
        if load.at_a_time is None:
            return _NUM_AT_RATE
        return max(_LEAST_REQUESTS, _ROUNDS * load.at_a_time)

    def traffic(self, load: Load) -> Traffic:
        lengths = [Arrival(0.0, len(text.prompt), len(text.token_ids)) for text in self.texts]
        number = self.num_requests(load)
        return Traffic(typed_regime(1.0), self.recording, 0, tuple(lengths), number)

    async def measured(self, client: _Client, load: Load) -> Figures:
        """Put a load on an engine."""
        prompts = itertools.cycle([text.prompt.tolist() for text in self.texts])
        asked = list(itertools.islice(prompts, self.num_requests(load)))
        if load.at_a_time is not None:
            closed = await ask_all(client, asked, load.at_a_time, self.max_tokens)
            return _figures(closed.answers, closed.tokens_per_second)
        opened = await ask_at_rate(client, asked, load.rate or 0.0, self.max_tokens)
        return _figures(opened.answers, opened.tokens_per_second)


def _figures(answers: Sequence[LoadAnswer], rate: float) -> Figures:
    paces = [pace for answer in answers if (pace := answer.seconds_per_token) is not None]
    return Figures(rate, median(paces), median(answer.first_token_seconds for answer in answers))


async def _predicted(
    executor: ProcessPoolExecutor, placement: Placement, study: _Study, load: Load
) -> Figures:
    loop = asyncio.get_running_loop()
    point = await loop.run_in_executor(executor, simulate, placement, study.traffic(load), load)
    return Figures(point.tokens_per_second, point.per_token_p50, point.first_token_p50)


async def _recorded(engine: Engine, pair: Pair, limit: int, max_tokens: int, out: Path) -> _Study:
    """Return the target's answers to the pair's questions, and the drafts at each token of them.

    Those of an earlier part are used again.
    """
    answers, drafts = out / "answers.jsonl", out / "drafts.jsonl"
    if not drafts.exists():
        rows = []
        for question in first_per_family(load_questions(pair.questions), limit):
            prompt = engine.encode([{"role": "user", "content": question.turns[0]}]).tolist()
            stream = engine.stream(prompt, SamplingParams(max_tokens=max_tokens), PLAIN)
            token_ids = [token async for output in stream for token in output.token_ids]
            row = {"prompt_token_ids": prompt, "token_ids": token_ids, "family": question.family}
            rows.append(json.dumps(row))
        await engine.stop()
        answers.write_text("\n".join(rows) + "\n", encoding="utf-8")
        write_recording(drafts, await _drafted(engine, read_texts(answers, None, None)))
    return _Study(read_texts(answers, None, None), read_recording(drafts), max_tokens)


async def _drafted(engine: Engine, texts: Sequence[RecordedText]) -> Recording:
    assert engine.drafter is not None, "pairs have one"
    weight = engine.default_speculation.drafter_weight
    drafts = await record_texts(engine.drafter, texts, 0.5 if weight == "adaptive" else weight)
    return Recording("", "", tuple(text.family for text in texts), drafts)


def _placements(costs: DeviceCosts, pair: str, roles: str) -> list[Placement]:
    model = costs.models[pair]
    assert model.verify is not None and model.draft is not None, "both were measured"
    drafted = CostedMachine(
        model.verify, model.draft, costs.interference.value, overlap=roles == _APART
    )
    return [
        Placement(_OFF, CostedMachine(model.verify, None), 1, _MOST, has_drafts=False),
        Placement(_ON, drafted, 1, _MOST),
    ]


@dataclass(frozen=True, slots=True)
class _Loads:
    """The loads of a run: requests at a time, and shares of the most requests per second."""

    at_a_time: Sequence[int]
    rates: Sequence[float]


async def _compare(
    engine: Engine, roles: str, pair: str, study: _Study, loads: _Loads, out: Path
) -> list[Compared]:
    """Measure the costs of an engine, predict its figures, and measure them."""
    costs = await measure_costs(engine, pair, f"benchmarks.studies.predicted, {cpu_model()}", "cpu")
    write_costs(out / f"costs-{roles}.json", costs)
    placements = _placements(costs, pair, roles)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        most = await _predicted(executor, placements[0], study, Load(_MOST))
        per_second = most.tokens_per_second / study.mean_tokens
        chosen = [
            *map(Load, loads.at_a_time),
            *(Load(rate=share * per_second) for share in loads.rates),
        ]
        cases = list(itertools.product(placements, chosen))
        predicted = await asyncio.gather(
            *[_predicted(executor, placement, study, load) for placement, load in cases]
        )
    clients = {_OFF: _Client(engine, PLAIN), _ON: _Client(engine, engine.default_speculation)}
    for client in clients.values():  # warm-up
        await study.measured(client, Load(4))
    compared = []
    for (placement, load), figures in zip(cases, predicted, strict=True):
        measured = await study.measured(clients[placement.name], load)
        compared.append(Compared(f"{roles}, {placement.name}", str(load), figures, measured))
    await engine.stop()
    return compared


# ---- the drafter's process


@contextlib.asynccontextmanager
async def _remote_drafter(config: EngineConfig, info: TargetInfo) -> AsyncIterator[RemoteDrafter]:
    """Serve the drafter in another process, and connect to it."""
    context, security = multiprocessing.get_context("spawn"), Security(new_token())
    with tempfile.TemporaryDirectory() as folder:
        ready = context.Event()
        address = f"unix:{folder}/drafter"
        process = context.Process(target=_serve, args=(config, info, security, address, ready))
        process.start()
        try:
            await asyncio.to_thread(ready.wait, 120)
            drafter = await RemoteDrafter.connect(address, security)
            yield drafter
            await drafter.close()
        finally:
            process.terminate()
            await asyncio.to_thread(process.join)


def _serve(
    config: EngineConfig, info: TargetInfo, security: Security, address: str, ready: object
) -> None:
    torch.set_num_threads(1)

    async def serve() -> None:
        assert config.drafter is not None, "pairs have one"
        drafter = load_drafter(
            config.drafter, config.search, Target(info, None, config.target.path)
        )
        async with RoleServer([DrafterServicer(drafter, info)], security, address) as server:
            ready.set()  # type: ignore[attr-defined]
            await server.wait()

    asyncio.run(serve())


async def study(
    pair: str,
    ways: Sequence[str],
    loads: _Loads,
    limit: int,
    max_tokens: int,
    threads: int,
    out: Path,
) -> AsyncGenerator[list[Compared]]:
    """Compare ways to place the roles of a pair; yield the rows of each."""
    torch.set_num_threads(threads)
    config = find_pair(pair, "--pair").load_config()
    target = config.target.model_copy(update={"max_sequences": _MOST})
    config = config.model_copy(update={"target": target})
    overlap = config.coordinator.model_copy(update={"overlap": True})
    with Engine.from_config(config) as engine:
        known = await _recorded(engine, PAIRS[pair], limit, max_tokens, out)
        if _TOGETHER in ways:
            yield await _compare(engine, _TOGETHER, pair, known, loads, out)
        if _APART not in ways:
            return
        async with _remote_drafter(config, engine.info) as drafter:
            apart = config.model_copy(update={"coordinator": overlap})
            with Engine(apart, engine.verifier, drafter, engine.tokenizer) as other:
                yield await _compare(other, _APART, pair, known, loads, out)


@app.command(cls=Command)
def main(
    pair: Annotated[str, typer.Option(metavar="|".join(PAIRS), help="The models.")] = DEFAULT_PAIR,
    roles: Annotated[str, typer.Option(metavar="WAY,WAY", help="Where roles are.")] = ",".join(
        WAYS
    ),
    at_a_time: Annotated[str, typer.Option(metavar="N,N,...", help="Concurrent requests.")] = LOADS,
    rates: Annotated[
        str, typer.Option(metavar="X,X,...", help="Arrivals; 1: the most without drafts.")
    ] = RATES,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Questions of a family.")] = 3,
    max_tokens: Annotated[int, typer.Option(metavar="N", min=8, help="Of an answer.")] = 64,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="Of the target.")] = 1,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for results.")] = Path(
        "runs/predicted"
    ),
) -> None:
    """Compare a plan's figures with those of this machine; print all rows of the folder.

    It can be run in parts, by --roles, --at-a-time and --rates: answers that the folder has are
    used again.
    """
    make_folder(out)
    ways = roles.split(",")
    if not {*ways} <= {*WAYS}:
        raise ConfigError(f"--roles must be of {', '.join(WAYS)}, got {roles!r:.80}")
    loads = _Loads(
        parse_numbers("--at-a-time", at_a_time, int), parse_numbers("--rates", rates, float)
    )

    async def report() -> None:
        async for found in study(pair, ways, loads, limit, max_tokens, threads, out):
            rows = merged(out / "predicted.json", found)
            data = {"pair": pair, "rows": [asdict(row) for row in rows]}
            tables, lines = [compared_table(rows)], [*summary(rows)]
            write_report(out, "predicted", data, tables, lines, Console())

    uvloop.run(report())


if __name__ == "__main__":
    app()
