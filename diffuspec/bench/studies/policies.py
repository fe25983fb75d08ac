"""`python -m diffuspec.bench.studies.policies`: the default beside fixed lengths and none.

All answer the same questions in turns, at each temperature and load, over the same models. Each
policy has a coordinator of its own, which learns costs and acceptance for itself. Tokens must be
those of decoding without drafts, sampled ones by their seeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer
import uvloop
from rich.console import Console

from diffuspec.bench.output import progress
from diffuspec.bench.questions import Question, first_per_family, load_questions, rotated
from diffuspec.bench.report import print_tables
from diffuspec.bench.systems.engine_system import sibling
from diffuspec.bench.text_table import TextTable
from diffuspec.command import Command
from diffuspec.completion import Completion
from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import TokenIds
from diffuspec.engine import Engine
from diffuspec.pairs import DEFAULT_PAIR, Pair, find_pair, parse_config

OFF, DEFAULT = "off", "default"
_LOADS = [1, 8]
_TEMPERATURES = [0.0, 1.0]
_LENGTHS = [4, 8, 12]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Setting:
    """How many requests run at a time, and how their tokens are chosen."""

    load: int
    temperature: float


@dataclass(frozen=True, slots=True)
class Turn:
    """What one policy gave to all prompts."""

    seconds: float
    completions: tuple[Completion, ...]

    @property
    def tokens_per_second(self) -> float:
        return sum(len(one.token_ids) for one in self.completions) / self.seconds

    @property
    def acceptance_length(self) -> float:
        """Tokens per step."""
        steps = [step for one in self.completions for step in one.steps]
        committed = [step.num_committed_tokens for step in steps if step.num_committed_tokens]
        return sum(committed) / len(committed)


def make_policies(lengths: Sequence[int]) -> dict[str, SpeculationParams | None]:
    """Name the policies; None stands for the engine's own."""
    fixed = {
        f"fixed {length}": SpeculationParams(policy="fixed", num_draft_tokens=length)
        for length in lengths
    }
    return {OFF: SpeculationParams(policy="off"), DEFAULT: None, **fixed}


async def take_turn(
    engine: Engine,
    prompts: Sequence[TokenIds],
    speculation: SpeculationParams,
    setting: Setting,
    max_tokens: int,
) -> Turn:
    """Ask all prompts, as many at a time as the setting says, from an empty prefix cache."""
    engine.reset_prefix_cache()
    places = asyncio.Semaphore(setting.load)

    async def ask(number: int) -> Completion:
        seed = None if setting.temperature == 0 else number
        sampling = SamplingParams(max_tokens=max_tokens, temperature=setting.temperature, seed=seed)
        async with places:
            return await engine.complete(prompts[number].tolist(), sampling, speculation)

    started = time.perf_counter()
    completions = await asyncio.gather(*map(ask, range(len(prompts))))
    return Turn(time.perf_counter() - started, tuple(completions))


async def compare_policies(
    engine: Engine,
    policies: Mapping[str, SpeculationParams | None],
    prompts: Sequence[TokenIds],
    settings: Sequence[Setting],
    *,
    max_tokens: int,
    num_repeats: int,
    on_turn: Callable[[str], None] = lambda _: None,
) -> dict[Setting, dict[str, list[Turn]]]:
    """Return the turns of each policy in each setting, after one that is not counted.

    `on_turn` is called with a description of each turn.
    """
    found: dict[Setting, dict[str, list[Turn]]] = {}
    async with contextlib.AsyncExitStack() as stack:
        engines = {name: await stack.enter_async_context(sibling(engine)) for name in policies}
        for setting in settings:
            turns = found[setting] = {name: [] for name in policies}
            for repeat in range(num_repeats + 1):
                for name in rotated(policies, repeat):
                    speculation = policies[name] or engine.default_speculation
                    turn = await take_turn(engines[name], prompts, speculation, setting, max_tokens)
                    if repeat:
                        turns[name].append(turn)
                    on_turn(f"{name}, {setting.load} at a time, temperature {setting.temperature}")
    return found


def num_different(turns: Sequence[Turn], base: Sequence[Turn]) -> int:
    """Count the answers with other tokens than the first turn without drafts."""
    right = [one.token_ids for one in base[0].completions]
    return sum(
        one.token_ids != token_ids
        for turn in turns
        for one, token_ids in zip(turn.completions, right, strict=True)
    )


def policy_table(found: Mapping[Setting, Mapping[str, Sequence[Turn]]]) -> TextTable:
    """Return a line for each policy in each setting, with medians over the turns."""
    cells = []
    for setting, turns in found.items():
        base = turns[OFF]
        plain = median(turn.tokens_per_second for turn in base)
        for name, own in turns.items():
            speed = median(turn.tokens_per_second for turn in own)
            cells.append(
                (
                    str(setting.load),
                    f"{setting.temperature:g}",
                    name,
                    f"{speed:,.0f}",
                    f"{speed / plain:.2f}x",
                    f"{median(turn.acceptance_length for turn in own):.2f}",
                    f"{num_different(own, base)} of {len(own) * len(own[0].completions)}",
                )
            )
    columns = (
        "at a time",
        "temperature",
        "policy",
        "tokens/s",
        "speed-up",
        "acceptance length",
        "answers that differ",
    )
    return TextTable("Policies by load and temperature", columns, tuple(cells))


@app.command(cls=Command)
def main(
    pair: Annotated[str, typer.Option(help="Whose models and questions.")] = DEFAULT_PAIR,
    questions: Annotated[Path | None, typer.Option(metavar="FILE.jsonl")] = None,
    limit: Annotated[int | None, typer.Option(help="Questions per family.", min=1)] = 2,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.", min=1)] = 128,
    load: Annotated[list[int], typer.Option(help="Requests at a time.", min=1)] = _LOADS,
    temperature: Annotated[list[float], typer.Option(min=0.0)] = _TEMPERATURES,
    length: Annotated[list[int], typer.Option(help="A fixed draft length.", min=1)] = _LENGTHS,
    repeats: Annotated[int, typer.Option(help="Turns that count.", min=1)] = 2,
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1)] = None,
) -> None:
    """Compare policies; print a table. Exits with 1 if tokens differ."""
    chosen = find_pair(pair, "--pair")
    if number := threads or chosen.num_threads:
        torch.set_num_threads(number)
    asked = first_per_family(load_questions(questions or chosen.questions), limit)
    policies = make_policies(length)
    settings = [Setting(*each) for each in itertools.product(load, temperature)]
    with (
        Engine.from_config(make_config(chosen, max(load))) as engine,
        progress(len(settings) * len(policies) * (repeats + 1)) as advance,
    ):
        found = uvloop.run(
            compare_policies(
                engine,
                policies,
                encode_questions(engine, asked, max_tokens),
                settings,
                max_tokens=max_tokens,
                num_repeats=repeats,
                on_turn=advance,
            )
        )
    print_tables([policy_table(found)], [], Console())
    wrong = (num_different(own, turns[OFF]) for turns in found.values() for own in turns.values())
    raise typer.Exit(int(any(wrong)))


def make_config(pair: Pair, load: int) -> EngineConfig:
    """Return the pair's configuration with places for a number of requests."""
    data = pair.load_config().model_dump()
    data["target"]["max_sequences"] = load
    return parse_config(data)


def encode_questions(
    engine: Engine, questions: Sequence[Question], max_tokens: int
) -> list[TokenIds]:
    """Return the prompts of the first turns that leave room for an answer. Raises ConfigError."""
    room = engine.info.max_model_len - max_tokens
    prompts = [engine.encode([{"role": "user", "content": one.turns[0]}]) for one in questions]
    if not (short := [prompt for prompt in prompts if len(prompt) <= room]):
        raise ConfigError(f"no question leaves room for an answer of {max_tokens} tokens")
    return short


if __name__ == "__main__":
    app()
