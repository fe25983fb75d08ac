"""`python -m benchmarks.studies.vllm_lossless`: vLLM's answers with our drafts and without.

Greedy answers in float32 are compared token by token. Sampled answers are compared as
distributions: many answers of a few tokens to each of some prompts. Their first token comes from
the prefill, the others from steps with drafts.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track

from benchmarks.studies.json_worker import JsonWorker
from benchmarks.studies.vllm import (
    PYTHON,
    draft_server,
    read_prompts,
    socket_and_logs,
    vllm,
)
from diffuspec.bench.report import print_tables
from diffuspec.bench.text_table import TextTable
from diffuspec.cli.command import Command
from diffuspec.pairs import PAIRS, find_pair
from diffuspec.text.tokenizer import load_tokenizer

_LEAST_EXPECTED = 5.0  # expected answers per category; rarer categories are merged
# seconds that a step waits for drafts: even on a busy machine all should be verified
_PATIENCE = 20.0
_TURN = 250  # sampled answers to each prompt requested in one message
_TEXTS = (  # prompts whose continuations are easier and harder to guess
    "one two three four one two three four one two three",
    "The capital of France is Paris. The capital of Italy is",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return",
    "Once upon a time there was a little",
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Comparison:
    """A chi-squared test of whether two samples have the same distribution."""

    chi_squared: float
    num_free: int  # degrees of freedom

    @property
    def p_value(self) -> float:
        """The probability of a difference at least as large if the distributions are equal."""
        if not self.num_free:
            return 1.0
        half = torch.tensor([self.num_free / 2, self.chi_squared / 2], dtype=torch.float64)
        return float(torch.special.gammaincc(half[0], half[1]))

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(self.chi_squared + other.chi_squared, self.num_free + other.num_free)


def compare(one: Sequence[object], other: Sequence[object]) -> Comparison:
    """Compare two non-empty samples of categories; rare categories are merged."""
    counts = Counter(one), Counter(other)
    shares = [len(sample) / (len(one) + len(other)) for sample in (one, other)]
    cells: list[tuple[int, int]] = []
    rare = [0, 0]
    for category in {*one, *other}:
        pair = (counts[0][category], counts[1][category])
        if sum(pair) * min(shares) >= _LEAST_EXPECTED:
            cells.append(pair)
        else:
            rare = [rare[0] + pair[0], rare[1] + pair[1]]
    if any(rare):
        cells.append((rare[0], rare[1]))
    found = 0.0
    for pair in cells:
        for seen, share in zip(pair, shares, strict=True):
            expected = sum(pair) * share
            found += (seen - expected) ** 2 / expected
    return Comparison(found, max(len(cells) - 1, 0))


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the index of the first token in which two answers differ; None: they are equal."""
    if [*one] == [*other]:
        return None
    pairs = zip(one, other, strict=False)
    short = min(len(one), len(other))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), short)


@dataclass
class Asked:
    """The answers of one system, and its numbers of drafted and accepted tokens."""

    answers: list[list[int]]
    num_drafted: int = 0
    num_accepted: int = 0

    def add(self, answer: dict[str, Any]) -> None:
        self.answers += answer["tokens"]
        self.num_drafted += int(answer["counts"].get("num_draft_tokens", 0))
        self.num_accepted += int(answer["counts"].get("num_accepted_tokens", 0))


def decode(
    worker: JsonWorker, prompts: Sequence[Sequence[int]], max_tokens: int, at_once: int
) -> Asked:
    """Answer each prompt once, greedily."""
    found = Asked([])
    starts = range(0, len(prompts), 2 * at_once)
    for start in track(starts, "greedy", console=Console(stderr=True)):
        batch = prompts[start : start + 2 * at_once]
        found.add(worker.ask(prompts=batch, max_tokens=max_tokens, num_at_once=at_once))
    return found


def sample(
    worker: JsonWorker, prompts: Sequence[Sequence[int]], number: int, max_tokens: int, at_once: int
) -> Asked:
    """Answer each prompt `number` times at temperature 1."""
    found = Asked([])
    for start in track(range(0, number, _TURN), "sampled", console=Console(stderr=True)):
        batch = [*prompts] * min(_TURN, number - start)
        answer = worker.ask(
            prompts=batch, max_tokens=max_tokens, num_at_once=at_once, temperature=1.0
        )
        found.add(answer)
    return found


def greedy_table(plain: Asked, drafted: Asked, max_tokens: int) -> TextTable:
    pairs = [*zip(plain.answers, drafted.answers, strict=True)]
    differ = [place for one, other in pairs if (place := first_difference(one, other)) is not None]
    rows = {
        "answers": str(len(pairs)),
        "tokens": str(sum([len(one) for one, _ in pairs])),
        "drafted tokens": str(drafted.num_drafted),
        "accepted tokens": str(drafted.num_accepted),
        "other answers": str(len(differ)),
        "first other token, by answer": ", ".join(map(str, differ)) or "none",
    }
    title = f"greedy, at most {max_tokens} tokens: plain and diffuspec"
    return TextTable(title, ("", "number"), tuple(rows.items()))


def sampled_table(plain: Asked, drafted: Asked, num_prompts: int) -> TextTable:
    """Compare the tokens at each position of the answers, and each token with its predecessor.

    The prompts take turns in both lists.
    """
    size = max([len(one) for one in plain.answers])
    parts = {f"token {place + 1}": (place, place + 1) for place in range(size)}
    parts |= {f"tokens {place} and {place + 1}": (place - 1, place + 1) for place in range(1, size)}
    cells = []
    for name, (start, end) in parts.items():
        total = Comparison(0.0, 0)
        for first in range(num_prompts):
            one, other = [
                [tuple(tokens[start:end]) for tokens in asked.answers[first::num_prompts]]
                for asked in (plain, drafted)
            ]
            total += compare(one, other)
        values = (f"{total.chi_squared:.1f}", str(total.num_free), f"{total.p_value:.3f}")
        cells.append((name, *values))
    title = (
        f"{len(plain.answers)} sampled answers to {num_prompts} prompts, plain and diffuspec: "
        f"{drafted.num_drafted} tokens drafted, {drafted.num_accepted} accepted"
    )
    return TextTable(title, ("", "chi squared", "degrees of freedom", "p"), tuple(cells))


def _spread(prompts: Sequence[list[int]], number: int) -> list[list[int]]:
    """Return this many prompts, spread evenly over the file; all if there are fewer."""
    step = max(len(prompts) / max(number, 1), 1.0)
    return [prompts[int(step * place)] for place in range(min(number, len(prompts)))]


@app.command(cls=Command)
def run(
    pair: Annotated[str, typer.Option(help="|".join(PAIRS))] = "smollm2",
    questions: Annotated[Path | None, typer.Option(help="File in Spec-Bench's format.")] = None,
    answers: Annotated[int, typer.Option(help="Number of greedy answers.", min=0)] = 60,
    max_tokens: Annotated[
        int, typer.Option(help="Length of a greedy answer, in tokens.", min=1)
    ] = 64,
    samples: Annotated[int, typer.Option(help="Number of sampled answers.", min=0)] = 20_000,
    sampled_tokens: Annotated[
        int, typer.Option(help="Length of a sampled answer, in tokens.", min=2)
    ] = 3,
    at_once: Annotated[int, typer.Option(help="Number of concurrent answers.", min=2)] = 8,
    num_draft_tokens: Annotated[int, typer.Option(help="Length of every draft.", min=1)] = 4,
    v2: Annotated[
        bool,
        typer.Option(help="Model runner V2, interpreted; drafts are as long as pays."),
    ] = False,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "float32",
    python: Annotated[
        Path, typer.Option(help="Python interpreter of vLLM's environment.")
    ] = PYTHON,
    logs: Annotated[Path | None, typer.Option(help="Folder for logs of all processes.")] = None,
) -> None:
    """Compare vLLM's answers with and without the drafts of a draft server."""
    models = find_pair(pair, "--pair")
    model = models.target.absolute()
    tokenizer = load_tokenizer(model)
    prompts = _spread(read_prompts(model, questions or models.questions, sys.maxsize), answers)
    texts = [[int(one) for one in tokenizer(text)["input_ids"]] for text in _TEXTS]
    each = math.ceil(samples / len(texts))
    greedy: dict[str, Asked] = {}
    sampled: dict[str, Asked] = {}
    length = None if v2 else num_draft_tokens  # fixed lengths are not drafted ahead
    with (
        socket_and_logs(logs) as (address, written),
        draft_server(address, written / "draft_server.log", pair, length),
    ):
        for name in ("plain", "diffuspec"):
            log = written / f"{name}.log"
            given = (model, dtype, at_once, name, address, log, python, _PATIENCE)
            with vllm(*given, is_v2=v2) as worker:
                greedy[name] = decode(worker, prompts, max_tokens, at_once)
                if each:
                    sampled[name] = sample(worker, texts, each, sampled_tokens, at_once)
    tables = []
    if answers:
        tables.append(greedy_table(greedy["plain"], greedy["diffuspec"], max_tokens))
    if samples:
        tables.append(sampled_table(sampled["plain"], sampled["diffuspec"], len(texts)))
    print_tables(tables, [], Console())


if __name__ == "__main__":
    app()
