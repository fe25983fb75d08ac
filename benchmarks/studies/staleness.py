"""`python -m benchmarks.studies.staleness`: what approximate prefixes cost, and what they save.

acceptance: the pair's target answers its own questions. A drafter with full attention is replayed
over the answers: a draft of argmax tokens, as many as are right are committed with the target's
next one, and so on. How much of the prefix is computed again in between differs from row to row.

cost: the time of a draft, of one that computes a window again, and of one that computes everything.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from diffuspec.bench.questions import first_per_family, load_questions
from diffuspec.bench.record import RecordedText
from diffuspec.bench.sizes.models import draw_drafter
from diffuspec.core.drafter_config import REFRESH_TOKENS, DiffuSpecConfig
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import GREEDY, PLAIN, SamplingParams
from diffuspec.core.types import DraftRequest, TokenIds
from diffuspec.engine.engine import Engine
from diffuspec.models.diffusion import DiffusionDrafter
from diffuspec.pairs import find_pair

NEVER = 1 << 20  # tokens
NUM_DRAFT_TOKENS = 20
WINDOW, STEP = REFRESH_TOKENS, 32  # rows computed again, and after how many tokens
NUM_PIECES = 8  # until pieces have their size

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)


@dataclass(frozen=True, slots=True)
class Variant:
    """What is computed again, and when."""

    name: str
    settings: Mapping[str, Any]  # keys of the drafter's section
    renewed_rows: int = 0  # rows before the window renewed after each draft


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a drafter had accepted in one answer."""

    num_tokens: int
    num_steps: int


def variants(window: int, rows: int) -> list[Variant]:
    """Return the rows of the table."""
    last = {"refresh_tokens": window}
    return [
        Variant("all, with every draft", {"refresh_every": 1, "refresh_tokens": NEVER}),
        Variant("all, every 32 tokens", {"refresh_tokens": NEVER}),
        Variant(f"the last {window} every 32, {rows} others a draft", last, rows),
        Variant(f"the last {window} every 32", last),
        Variant("nothing", {"refresh_every": NEVER}),
        Variant(f"all, a context of {2 * window}", {"context_tokens": 2 * window}),
    ]


def recorded(pair_name: str, limit: int | None) -> tuple[list[RecordedText], TargetInfo]:
    """Return the target's answers to the pair's questions."""
    pair = find_pair(pair_name, "--pair")
    questions = first_per_family(load_questions(pair.questions), limit)
    with Engine.from_config(pair.load_config()) as engine:
        prompts = [engine.encode([{"role": "user", "content": q.turns[0]}]) for q in questions]
        answers = engine.generate([p.tolist() for p in prompts], SamplingParams(), PLAIN)
        info = engine.verifier.info
    texts = [
        RecordedText(question.category, prompt, np.array(answer.token_ids, np.int32))
        for question, prompt, answer in zip(questions, prompts, answers, strict=True)
    ]
    return texts, info


async def replay(drafter: DiffusionDrafter, text: RecordedText, variant: Variant) -> Replayed:
    """Draft an answer step by step."""
    place = num_steps = 0
    while place < len(text.token_ids):
        prefix = np.concatenate([text.prompt, text.token_ids[:place]])
        request = _request(prefix, len(text.prompt), NUM_DRAFT_TOKENS)
        [lattice] = await drafter.lattices([request])
        right = text.token_ids[place : place + lattice.num_positions]
        is_right = lattice.token_ids[: len(right), 0] == right
        place += 1 + int(is_right.cumprod().sum())
        num_steps += 1
        if variant.renewed_rows:
            drafter.renewal.renew(lambda: False, variant.renewed_rows)
    await drafter.release("replay")
    return Replayed(len(text.token_ids), num_steps)


def _request(prefix: TokenIds, num_prompt_tokens: int, num_draft_tokens: int) -> DraftRequest:
    return DraftRequest(
        request_id="replay",
        prefix=prefix,
        num_draft_tokens=num_draft_tokens,
        tree_shape="path",
        max_nodes=num_draft_tokens,
        drafter_weight=1.0,
        sampling=GREEDY,
        num_prompt_tokens=num_prompt_tokens,
    )


async def replay_all(
    path: Path, info: TargetInfo, texts: Sequence[RecordedText], variant: Variant
) -> list[Replayed]:
    config = DiffuSpecConfig.model_validate({"path": path, "device": "cpu", **variant.settings})
    drafter = DiffusionDrafter.load(config, info)
    try:
        return [await replay(drafter, text, variant) for text in texts]
    finally:
        drafter.close()


def acceptance(replays: Sequence[Replayed]) -> str:
    """Return committed tokens per step."""
    num_steps = sum(replay.num_steps for replay in replays)
    num_tokens = sum(replay.num_tokens for replay in replays)
    return f"{num_tokens / num_steps:.2f}" if num_steps else "-"


@app.command("acceptance")
def print_acceptance(
    drafter: Annotated[Path, typer.Argument(help="A drafter with full attention.")],
    pair: Annotated[str, typer.Option(help="The pair whose target answers.")] = "tiny",
    limit: Annotated[int | None, typer.Option(help="Questions of each family.")] = None,
    window: Annotated[int, typer.Option(help="Rows computed again with a draft.")] = 32,
    rows: Annotated[int, typer.Option(help="Older rows renewed after each draft.")] = 16,
    long: Annotated[int, typer.Option(help="Tokens of a long prompt.")] = 100,
) -> None:
    """Print committed tokens per step, of all questions and of those with long prompts."""
    texts, info = recorded(pair, limit)
    table = Table("computed again", "all", f"prompts of {long} and more", box=box.SIMPLE_HEAD)
    for variant in variants(window, rows):
        found = asyncio.run(replay_all(drafter, info, texts, variant))
        ours = zip(found, texts, strict=True)
        behind = [one for one, text in ours if len(text.prompt) >= long]
        table.add_row(variant.name, acceptance(found), acceptance(behind))
    Console().print(table)
    lengths = [len(text.prompt) for text in texts]
    num_long = sum(length >= long for length in lengths)
    print(f"{len(texts)} answers; {num_long} long prompts, the longest has {max(lengths)} tokens")


@app.command("cost")
def print_cost(
    config: Annotated[Path, typer.Argument(help="config.json of a drafter with full attention.")],
    prefix: Annotated[list[int], typer.Option(help="Tokens of a prefix.")] = [512, 4096, 16384],  # noqa: B006
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 1,
) -> None:
    """Print the time of drafts of 16 tokens by a drafter of these sizes, with random weights."""
    torch.set_num_threads(threads)
    vocab_size = int(json.loads(config.read_text())["vocab_size"])
    info = TargetInfo(vocab_size, max(prefix) + 4 * STEP, max_sequences=1, eos_token_ids=())
    drafter = draw_drafter(config, info, None).model
    names = "prefix", "first draft", "draft", "window", "a piece's layer", "everything"
    table = Table(*names, title="ms", box=box.SIMPLE_HEAD)
    for size in prefix:
        times = [asyncio.run(cost(drafter, config, size, window)) for window in (WINDOW, NEVER)]
        table.add_row(f"{size:,}", *(f"{ms:,.2f}" for ms in (*times[0], times[1][2])))
    Console().print(table)


async def cost(drafter: DiffusionDrafter, path: Path, size: int, window: int) -> list[float]:
    """Return milliseconds of drafts behind a prefix: the first one, the next one, and one STEP
    tokens later; and of a layer of the last piece that is then renewed, 0 if there is none."""
    tokens = np.random.default_rng(0).integers(3, 1000, size + STEP).astype(np.int32)
    mine = drafter.with_config(DiffuSpecConfig(path=path, refresh_tokens=window))
    times = []
    for length in (size, size, size, size, size + STEP):
        started = time.perf_counter()
        await mine.lattices([_request(tokens[:length], size, 16)])
        times.append(1e3 * (time.perf_counter() - started))
    layer_ms = 0.0
    for _ in range(NUM_PIECES):
        started = time.perf_counter()
        if mine.renewal.renew(lambda: False):
            num_layers = mine.runner.model.config.num_hidden_layers
            layer_ms = 1e3 * (time.perf_counter() - started) / num_layers
    await mine.release("replay")
    return [times[0], min(times[1:4]), times[4], layer_ms]


if __name__ == "__main__":
    app()
