"""`python -m diffuspec.bench.studies.real_sizes`: times of steps with models of real sizes.

Target and drafter have the sizes of published models and random weights, which a pass reads and
multiplies as it does others. Random models agree on nothing, so every step commits one token; what
a step would bring with real weights is computed from an acceptance length. The drafter's cached
prefix is computed again as often as it would be at that length.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, cast, get_args

import numpy as np
import torch
import typer
from rich.console import Console
from transformers import AutoModelForCausalLM, Qwen2Config

from diffuspec.algorithm.search import PathSearch
from diffuspec.bench.report import print_tables
from diffuspec.bench.text_table import TextTable
from diffuspec.command import Command
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.devices import Device
from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.interfaces import Drafter, TargetInfo
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import StepStats
from diffuspec.drafters.diffuspec import DiffuSpecDrafter
from diffuspec.models.attention.interface import ATTENTION_NAME
from diffuspec.models.diffusion import NUM_SCRATCH_ROWS, DiffusionDrafter
from diffuspec.models.loading.backend import resolve_device, resolve_dtype
from diffuspec.models.loading.families import DiffusionSettings
from diffuspec.models.loading.load import make_runner
from diffuspec.models.runner import ModelRunner
from diffuspec.models.target import CausalTarget
from diffuspec.scheduler.coordinator import Coordinator

NUM_DRAFT_TOKENS = (8, 16, 32, 63)
PREFIXES = (512, 4096)  # tokens behind which steps are timed
ACCEPTANCE_LENGTHS = (3.0, 5.0, 6.99)  # the last one is the paper's, of this pair
_REFRESH_EVERY = 32  # committed tokens, the default
_NUM_STEPS = 24
_MAX_TREE_NODES = 64
_MASK = 100  # any token

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The shape of a Qwen2 model, Dream's included."""

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int

    @property
    def config(self) -> Qwen2Config:
        return Qwen2Config(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            max_position_embeddings=32768,
            tie_word_embeddings=False,
        )


QWEN_32B = Sizes("Qwen2.5-32B", 152064, 5120, 27648, 64, 40, 8)
QWEN_14B = Sizes("Qwen2.5-14B", 152064, 5120, 13824, 48, 40, 8)
DREAM_7B = Sizes("Dream-7B", 152064, 3584, 18944, 28, 28, 4)
SMALL = Sizes("small", 512, 64, 96, 2, 4, 2)  # a size for tests
PAIRS = {"32b": (QWEN_32B, DREAM_7B), "14b": (QWEN_14B, DREAM_7B), "small": (SMALL, SMALL)}


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Median seconds of the steps behind a prefix; without a draft if num_draft_tokens is 0."""

    num_prefix_tokens: int
    num_draft_tokens: int
    draft: float
    verify: float
    step: float  # everything included


def load_random(sizes: Sizes, num_rows: int, device: Device, is_exact: bool) -> ModelRunner:
    """Return a runner over a model with random weights and one slot of num_rows."""
    where = resolve_device(Path(sizes.name), device)
    dtype = resolve_dtype("auto", where)
    family: Any = AutoModelForCausalLM
    with torch.device(where):
        model = family.from_config(sizes.config, dtype=dtype, attn_implementation=ATTENTION_NAME)
    return make_runner(model, 1, num_rows, num_rows, is_exact, None, allow_int8=False)


@contextlib.contextmanager
def _roles(
    pair: tuple[Sizes, Sizes], device: Device, refresh_every: int
) -> Iterator[tuple[CausalTarget, Drafter]]:
    max_len = max(PREFIXES) + _NUM_STEPS + _MAX_TREE_NODES
    target_sizes, drafter_sizes = pair
    is_in_16_bits = resolve_device(Path(), device).type == "cuda"
    info = TargetInfo(
        vocab_size=target_sizes.vocab_size,
        max_model_len=max_len,
        max_sequences=1,
        eos_token_ids=(),
        max_tree_nodes=_MAX_TREE_NODES,
    )
    target = CausalTarget(
        load_random(target_sizes, max_len + _MAX_TREE_NODES, device, is_in_16_bits), info
    )
    lattices = DiffusionDrafter(
        load_random(drafter_sizes, max_len + NUM_SCRATCH_ROWS, device, False),
        DiffusionSettings(_MASK, "full"),
        DiffuSpecConfig(path=Path(drafter_sizes.name), refresh_every=refresh_every),
        info,
        max_len,
    )
    search = PathSearch(None, beam_width=3, eos_token_ids=())
    drafter = DiffuSpecDrafter(lattices, search)
    try:
        yield target, drafter
    finally:
        drafter.close()
        target.close()


async def _steps(
    target: CausalTarget, drafter: Drafter, num_prefix_tokens: int, num_draft_tokens: int
) -> list[StepStats]:
    """Decode a random prompt and return the steps after the first two."""
    sampling = SamplingParams(max_tokens=_NUM_STEPS, ignore_eos=True)
    if num_draft_tokens:
        speculation = SpeculationParams(
            policy="fixed",
            num_draft_tokens=num_draft_tokens,
            tree_shape="best_first",
            max_nodes=num_draft_tokens,
        )
    else:
        speculation = SpeculationParams(policy="off")
    random = np.random.default_rng(0)
    prompt = random.integers(_MASK + 1, target.info.vocab_size, num_prefix_tokens, np.int32)
    steps = []
    config = CoordinatorConfig(overlap=False)
    async with Coordinator(target, drafter, config, DraftLengthConfig()) as coordinator:
        stream = coordinator.stream(prompt, sampling, speculation)
        async with contextlib.aclosing(stream):
            async for output in stream:
                steps.append(output.step)
    return [step for step in steps[2:] if step is not None]


def study_real_sizes(
    pair: tuple[Sizes, Sizes], device: Device, acceptance_length: float
) -> list[StepTimes]:
    """Time plain and drafted steps behind every prefix.

    acceptance_length: how many tokens a step is to commit, which tells how often the drafter's
    cached prefix is computed again.
    """
    found = []
    refresh_every = max(1, round(_REFRESH_EVERY / acceptance_length))
    with _roles(pair, device, refresh_every) as (target, drafter):
        for num_prefix_tokens in PREFIXES:
            for num_draft_tokens in (0, *NUM_DRAFT_TOKENS):
                steps = asyncio.run(_steps(target, drafter, num_prefix_tokens, num_draft_tokens))
                mean_draft = sum(step.draft_seconds for step in steps) / len(steps)
                drafts = median(step.draft_seconds for step in steps)
                found.append(
                    StepTimes(
                        num_prefix_tokens,
                        num_draft_tokens,
                        mean_draft,
                        median(step.verify_seconds for step in steps),
                        # Refreshes are a part of the drafts: not of their median.
                        median(step.step_seconds for step in steps) + mean_draft - drafts,
                    )
                )
    return found


def step_table(pair: tuple[Sizes, Sizes], times: Sequence[StepTimes]) -> TextTable:
    """Return milliseconds of steps, and the speed-up at each of ACCEPTANCE_LENGTHS."""
    cells, plain = [], 0.0
    for one in times:
        if not one.num_draft_tokens:
            plain = one.step
        speed_ups = [f"{length * plain / one.step:.2f}x" for length in ACCEPTANCE_LENGTHS]
        cells.append(
            (
                f"{one.num_prefix_tokens:,}",
                str(one.num_draft_tokens or "-"),
                *(f"{1e3 * seconds:.1f}" for seconds in (one.draft, one.verify, one.step)),
                *(speed_ups if one.num_draft_tokens else ["1.00x", *["-"] * (len(speed_ups) - 1)]),
            )
        )
    title = f"{pair[1].name} drafts for {pair[0].name}: milliseconds, and speed-up by acceptance"
    lengths = (f"accepts {length:g}" for length in ACCEPTANCE_LENGTHS)
    columns = ("prefix", "draft tokens", "draft", "verify", "step", *lengths)
    return TextTable(title, columns, tuple(cells))


@app.command(cls=Command)
def main(
    pair: Annotated[str, typer.Option(help=f"Sizes: {', '.join(PAIRS)}.")] = "32b",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Time steps of models of real sizes with random weights; print a table."""
    if pair not in PAIRS:
        raise typer.BadParameter(f"must be one of {', '.join(PAIRS)}, got {pair!r}")
    if device not in get_args(Device):
        raise typer.BadParameter(f"must be one of {', '.join(get_args(Device))}, got {device!r}")
    times = study_real_sizes(PAIRS[pair], cast(Device, device), ACCEPTANCE_LENGTHS[-1])
    print_tables([step_table(PAIRS[pair], times)], [], Console())


if __name__ == "__main__":
    app()
