"""`python -m recipes.tiny.train`: the commands that train and export the tiny pair."""

from __future__ import annotations

import itertools
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from diffuspec.engine.engine import Engine
from diffuspec.models.ngram.arpa import write_arpa
from diffuspec.models.ngram.estimate import estimate
from diffuspec.models.ngram.kenlm_file import build_binary
from diffuspec.pairs import parse_config, tiny
from diffuspec.pairs.factory.examples import Example
from diffuspec.pairs.factory.heads.training import HeadKind, HeadPlan, HeadTraining
from diffuspec.pairs.factory.optimisation import (
    Progressed,
    TrainingPlan,
    mixed_precision,
    train,
)
from recipes.tiny.corpus import tokenizer as tiny_tokenizer
from recipes.tiny.corpus.conversations import (
    Conversation,
    held_out_questions,
    training_conversations,
    write_questions,
)
from recipes.tiny.corpus.data import (
    FAMILY_WEIGHTS,
    MAX_EXAMPLE_TOKENS,
    training_batches,
)
from recipes.tiny.corpus.encoder import Encoder
from recipes.tiny.training.answers import read_answers, write_answers
from recipes.tiny.training.copying import guided_batch_loss, learn_to_copy, look_back
from recipes.tiny.training.drafter import batch_loss, mean_acceptance, start_from
from recipes.tiny.training.target import answer_accuracy, next_token_loss, target_config

HELP = """Train the tiny pair, in this order:

\b
  tokenizer
  target
  answers      the target's own answers, for the drafter
  drafter
  heads        Medusa, Hydra, EAGLE and DFlash
  ngram        needs KenLM's build_binary on PATH
  export       into the package

Every command reads the results of the ones before from the run folder. A training that was
interrupted goes on from its last checkpoint. `evaluate` measures the exported target.
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
RunDir = Annotated[Path, typer.Option(metavar="DIR", help="Folder for checkpoints and results.")]
Chunks = Annotated[
    int,
    typer.Option(
        metavar="N", help="Length of the training, in chunks of 16 batches of about 2,048 tokens."
    ),
]
Threads = Annotated[int, typer.Option(metavar="N", min=1, help="CPU threads.")]
Conversations = Annotated[
    int, typer.Option(metavar="N", help="Number of conversations to draw from the corpus.")
]
PerFamily = Annotated[
    int, typer.Option(metavar="N", min=1, help="Number of held-out questions per family.")
]
Start = Annotated[
    Path | None,
    typer.Option("--from", metavar="DIR", help="Start from the weights of this model."),
]
RUN = Path("runs/tiny")
TOKENS_PER_BATCH = 2048
GUIDED_SHARE = 0.25  # share of the target's batches with guidance
ATTENTION = "eager"  # returns attention weights, and here also trains twice as fast as SDPA


@app.command()
def tokenizer(run: RunDir = RUN) -> None:
    """Train the tokenizer."""
    tiny_tokenizer.build_tokenizer(run / "tokenizer")


@app.command()
def target(
    run: RunDir = RUN, chunks: Chunks = 450, threads: Threads = 2, start: Start = None
) -> None:
    """Train the target."""
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    encoder = _encoder(run)
    held_out = held_out_examples(encoder, per_family=16)
    model = _load(start) if start else _fresh_target()
    if not (run / "target.pt").exists():
        learn_to_copy(model, encoder, max_steps=120 if start else 400, seed=6)
        _save(model, run, "copying")

    def report(_: Progressed) -> str:
        return " ".join(
            f"{family} {_share(answer_accuracy(model, batch))}"
            for family, batch in held_out.items()
        )

    def loss_of(batch: list[Example]) -> torch.Tensor:
        with mixed_precision(model.device):
            if torch.rand(()) < GUIDED_SHARE:
                return guided_batch_loss(model, encoder)
            return next_token_loss(model, batch)

    plan = TrainingPlan(num_chunks=chunks)
    train(model, _chunks(encoder, 7, chunks), loss_of, report, plan, run / "target.pt")
    _save(model, run, "target")


@app.command()
def answers(run: RunDir = RUN, conversations: Conversations = 2500, threads: Threads = 2) -> None:
    """Answer questions of the training set with the target."""
    torch.set_num_threads(threads)
    config = parse_config({"target": {"path": _result(run, "target"), "max_sequences": 16}})
    with Engine.from_config(config) as engine:
        write_answers(engine, run / "answers.jsonl", conversations, seed=11)


@app.command()
def drafter(
    run: RunDir = RUN, chunks: Chunks = 220, threads: Threads = 2, start: Start = None
) -> None:
    """Train the drafter; half of the training uses the target's answers if there are any."""
    torch.set_num_threads(threads)
    torch.manual_seed(2)
    encoder = _encoder(run)
    held_out = held_out_examples(encoder, per_family=16)
    model = _load(start) if start else start_from(_load(_result(run, "target")))
    model.set_attn_implementation(ATTENTION)

    def report(_: Progressed) -> str:
        return " ".join(
            f"{family} {mean_acceptance(model, batch):.2f}" for family, batch in held_out.items()
        )

    def loss_of(batch: list[Example]) -> torch.Tensor:
        with mixed_precision(model.device):
            return batch_loss(model, batch)

    plan = TrainingPlan(num_chunks=chunks, matrix_lr=0.012, other_lr=2e-3)
    path = run / "answers.jsonl"
    answered = read_answers(path) if path.exists() else []
    batches = _chunks(encoder, 8, chunks, answered)
    train(model, batches, loss_of, report, plan, run / "drafter.pt")
    _save(model, run, "drafter")


@app.command()
def heads(run: RunDir = RUN, chunks: Chunks = 50, threads: Threads = 2) -> None:
    """Train draft heads on the answers (DFlash four times as long), and export them."""
    torch.set_num_threads(threads)
    answered = (_result(run, "answers.jsonl", "answers"),)
    kinds: tuple[HeadKind, ...] = ("medusa", "hydra", "eagle")
    plans = [HeadPlan(kind, tiny.TARGET, run / kind, answered, chunks) for kind in kinds]
    dflash = HeadPlan("dflash", tiny.TARGET, run / "dflash", answered, 4 * chunks)
    plans.append(replace(dflash, matrix_lr=0.01, layers=4, block_size=16, storage="int8"))
    for plan in plans:
        HeadTraining(plan).run()
        for name in ("config.json", "model.safetensors"):
            tiny.HEADS[plan.kind].mkdir(exist_ok=True)
            shutil.copy(plan.out / name, tiny.HEADS[plan.kind])


@app.command()
def ngram(run: RunDir = RUN, conversations: Conversations = 60_000) -> None:
    """Estimate the 3-gram over token ids of the corpus, as a quantised KenLM binary."""
    encoder = _encoder(run)
    drawn = itertools.islice(training_conversations(5, weights=FAMILY_WEIGHTS), conversations)
    write_arpa(estimate(_sentences(encoder, drawn)), run / "ngram.arpa")
    build_binary(run / "ngram.arpa", run / "ngram.bin")


@app.command()
def export(run: RunDir = RUN, per_family: PerFamily = 24) -> None:
    """Write weights (as float16), n-gram and held-out questions into the package."""
    for name in ("target", "drafter"):
        model = Qwen2ForCausalLM.from_pretrained(
            _result(run, name), dtype=torch.float16, trust_remote_code=False
        )
        model.save_pretrained(tiny.WEIGHTS / name)
        _tokenizer(run).save_pretrained(tiny.WEIGHTS / name)
    for suffix in ("", ".sha256"):
        shutil.copy(_result(run, f"ngram.bin{suffix}", "ngram"), tiny.WEIGHTS)
    write_questions(held_out_questions(per_family), tiny.QUESTIONS)


@app.command()
def evaluate(per_family: PerFamily = 100, threads: Threads = 2) -> None:
    """Print the number of held-out questions that the exported target answers exactly."""
    torch.set_num_threads(threads)
    model = _load(tiny.TARGET)
    encoder = Encoder(PreTrainedTokenizerFast.from_pretrained(tiny.TARGET))
    for family, examples in held_out_examples(encoder, per_family).items():
        flags = [answer_accuracy(model, [example])[0] for example in examples]
        Console().print(f"{family}: {_share(flags)} ({sum(flags) / len(flags):.0%})")


def held_out_examples(encoder: Encoder, per_family: int) -> dict[str, list[Example]]:
    """Return the first held-out questions of each family."""
    families: dict[str, list[Example]] = defaultdict(list)
    for question in held_out_questions(per_family):
        answers = tuple(question.reference)
        example = encoder.conversation(
            Conversation(question.category, tuple(question.turns), answers)
        )
        if example.num_tokens <= MAX_EXAMPLE_TOKENS:
            families[question.category].append(example)
    return families


def _chunks(
    encoder: Encoder, seed: int, num_chunks: int, answered: Sequence[Example] = ()
) -> Callable[[int], Iterator[list[Example]]]:
    """Return a function from the index of a training chunk to its batches."""

    def chunk_of(chunk: int) -> Iterator[list[Example]]:
        progress = chunk / num_chunks
        return training_batches(encoder, seed, chunk, progress, TOKENS_PER_BATCH, answered)

    return chunk_of


def _sentences(encoder: Encoder, drawn: Iterator[Conversation]) -> Iterator[list[int]]:
    for source in drawn:
        yield encoder.conversation(source).token_ids


def _fresh_target() -> Qwen2ForCausalLM:
    model = Qwen2ForCausalLM(target_config())
    model.set_attn_implementation(ATTENTION)
    look_back(model)
    return model


def _load(path: Path) -> Qwen2ForCausalLM:
    model: Qwen2ForCausalLM = Qwen2ForCausalLM.from_pretrained(
        path, dtype=torch.float32, trust_remote_code=False, attn_implementation=ATTENTION
    )
    return model


def _save(model: Qwen2ForCausalLM, run: Path, name: str) -> None:
    model.save_pretrained(run / name)
    _tokenizer(run).save_pretrained(run / name)


def _tokenizer(run: Path) -> PreTrainedTokenizerFast:
    path = _result(run, "tokenizer")
    loaded: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(path)
    return loaded


def _result(run: Path, name: str, command: str | None = None) -> Path:
    """Return the result of an earlier command. Raises BadParameter if it is missing."""
    path = run / name
    if not path.exists():
        raise typer.BadParameter(f"{path} is missing: run `{command or name}` first")
    return path


def _encoder(run: Path) -> Encoder:
    return Encoder(_tokenizer(run))


def _share(flags: list[bool]) -> str:
    return f"{sum(flags)}/{len(flags)}"


if __name__ == "__main__":
    app()
