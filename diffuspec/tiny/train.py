"""Make the tiny pair again: `python -m diffuspec.tiny.train tokenizer | target | drafter | ...`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from diffuspec.tiny import tokenizer as tiny_tokenizer
from diffuspec.tiny.corpus import Conversation, held_out_questions
from diffuspec.tiny.data import MAX_EXAMPLE_TOKENS, Encoder, Example
from diffuspec.tiny.drafter import draft_loss, drafter_config, mean_acceptance
from diffuspec.tiny.target import answer_accuracy, next_token_loss, target_config
from diffuspec.tiny.training import TrainingPlan, train

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)
RunDir = Annotated[Path, typer.Option(help="Where checkpoints live.")]
Chunks = Annotated[int, typer.Option(help="Chunks of 8 batches of about 4,096 tokens.")]
Threads = Annotated[int, typer.Option(help="CPU threads.")]


@app.command()
def tokenizer(run: RunDir = Path("runs/tiny")) -> None:
    """Train the tokenizer."""
    tiny_tokenizer.build_tokenizer(run / "tokenizer")


@app.command()
def target(run: RunDir = Path("runs/tiny"), chunks: Chunks = 500, threads: Threads = 2) -> None:
    """Train the target."""
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    encoder = _encoder(run)
    held_out = held_out_examples(encoder, per_family=16)
    model = Qwen2ForCausalLM(target_config())

    def report() -> str:
        return " ".join(
            f"{family} {_share(answer_accuracy(model, batch))}"
            for family, batch in held_out.items()
        )

    plan = TrainingPlan(num_chunks=chunks)
    train(model, lambda b, _: next_token_loss(model, b), report, encoder, plan, run / "target.pt")
    model.save_pretrained(run / "target")
    _tokenizer(run).save_pretrained(run / "target")


@app.command()
def drafter(run: RunDir = Path("runs/tiny"), chunks: Chunks = 500, threads: Threads = 2) -> None:
    """Train the drafter on the corpus."""
    torch.set_num_threads(threads)
    torch.manual_seed(2)
    encoder = _encoder(run)
    held_out = held_out_examples(encoder, per_family=16)
    model = Qwen2ForCausalLM(drafter_config())

    def report() -> str:
        return " ".join(
            f"{family} {mean_acceptance(model, batch):.2f}" for family, batch in held_out.items()
        )

    plan = TrainingPlan(num_chunks=chunks, seed=8)
    train(model, lambda b, _: draft_loss(model, b), report, encoder, plan, run / "drafter.pt")
    model.save_pretrained(run / "drafter")
    _tokenizer(run).save_pretrained(run / "drafter")


def held_out_examples(encoder: Encoder, per_family: int) -> dict[str, list[Example]]:
    """The first held-out questions of each family."""
    families: dict[str, list[Example]] = defaultdict(list)
    for question in held_out_questions(per_family):
        answers = tuple(question.reference)
        example = encoder.conversation(
            Conversation(question.category, tuple(question.turns), answers)
        )
        if example.num_tokens <= MAX_EXAMPLE_TOKENS:
            families[question.category].append(example)
    return families


def _tokenizer(run: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(run / "tokenizer")


def _encoder(run: Path) -> Encoder:
    return Encoder(_tokenizer(run))


def _share(flags: list[bool]) -> str:
    return f"{sum(flags)}/{len(flags)}"


if __name__ == "__main__":
    app()
