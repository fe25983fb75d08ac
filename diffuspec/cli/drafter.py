"""`diffuspec drafter`: make a drafter for a target, and measure one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from diffuspec.cli import display
from diffuspec.cli.parameters import takes_fields
from diffuspec.cli.training_options import (
    Attention,
    BlockSize,
    Layers,
    Start,
    parse_block_size,
    parse_layers,
)
from diffuspec.core.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from diffuspec.engine.engine import Engine
    from diffuspec.pairs.factory.examples import Example
    from diffuspec.pairs.factory.heads.training import HeadPlan
    from diffuspec.pairs.factory.training import CurvePoint, DrafterPlan

TRAIN_EXAMPLES = """[bold]Examples[/bold]

  diffuspec drafter train --target models/smollm2 --out runs/drafter
  diffuspec drafter train --target DIR --out DIR --prompts chats.jsonl --num-answers 20000
  diffuspec drafter train --target DIR --out DIR --answers answers.jsonl --layers 0,1,2,9,28,29
  diffuspec drafter train --target DIR --out DIR --answers answers.jsonl --seconds 600
  diffuspec drafter train --target DIR --out DIR --answers answers.jsonl --start runs/drafter
  diffuspec drafter train --target DIR --out DIR --attention block_aligned --block-size 8
  diffuspec drafter train --target DIR --out DIR --attention full --seconds 1200
  diffuspec drafter train --target DIR --out DIR --kind dflash --answers answers.jsonl --chunks 50
  diffuspec generate "Who was Ada Lovelace?" --target models/smollm2 --drafter runs/drafter
""" + (
    "\n\nThe target answers the prompts, and then questions that it writes itself; DIR/training/"
    "answers.jsonl holds the answers. A command that was interrupted goes on where it stopped when"
    " it is given again. A line of --prompts has messages, turns or prompt."
)
ANSWERS_EXAMPLES = """[bold]Examples[/bold]

  diffuspec drafter answers --target models/smollm2 --out runs/answers --num-answers 80000
  diffuspec drafter answers --target DIR --out DIR --texts /usr/share/doc --num-answers 20000
  diffuspec drafter answers --target DIR --out DIR --prompts chats.jsonl --num-answers 500
  diffuspec drafter train --target models/smollm2 --out runs/drafter --answers runs/answers

A command that was interrupted goes on with the round where it stopped when it is given again, also
on another machine that has the folder.
"""
EVALUATE_EXAMPLES = """[bold]Examples[/bold]

  diffuspec drafter evaluate runs/drafter --answers runs/drafter/training/answers.jsonl
"""

_NUM_CHUNKS = 200  # length of a training
_SEQUENCES_AT_A_TIME, _MAX_CONTEXT = 32, 2048  # limits of the target when it generates answers
_SEQUENCES_ON_GPU = 1024
_ROUND_PER_SEQUENCE = 4  # questions of a round for each answer at a time

Target = Annotated[Path, typer.Option(help="The causal LM to draft for.", metavar="DIR")]
Out = Annotated[Path, typer.Option(help="The drafter's directory.", metavar="DIR")]
Prompts = Annotated[
    list[Path] | None,
    typer.Option(
        help="Prompts for the target. When they are used up, it writes questions itself.",
        metavar="FILE.jsonl",
    ),
]
Answers = Annotated[
    list[Path] | None,
    typer.Option(
        help="Answers to train on, as token ids. Default: answers that the target generates.",
        metavar="FILE.jsonl|DIR",
    ),
]
AnswersOut = Annotated[Path, typer.Option("--out", help="Folder of the files.", metavar="DIR")]
Texts = Annotated[
    Path | None,
    typer.Option(
        help="Texts (.txt, .md, .rst) to have summarized and to ask about.", metavar="DIR"
    ),
]
AtOnce = Annotated[
    int | None,
    typer.Option(
        help="Answers generated at a time. Default: 32, on a GPU 1024.", min=1, metavar="N"
    ),
]
AnswersSeed = Annotated[int, typer.Option("--seed", help="Seed of the questions.", metavar="N")]
NumAnswers = Annotated[
    int, typer.Option(help="Number of answers that the target generates.", min=1, metavar="N")
]
Kind = Annotated[
    Literal["diffuspec", "sps", "medusa", "hydra", "eagle", "dflash"],
    typer.Option(
        help="What to train: a diffusion LM, a causal LM for kind sps, or a head that drafts "
        "from the target's hidden states; a head of kind eagle serves the kinds eagle "
        "and eagle2."
    ),
]
Chunks = Annotated[
    int | None,
    typer.Option(
        help="Length of the training, in chunks of 8 batches. Default: 200.", min=1, metavar="N"
    ),
]
Seconds = Annotated[
    int | None,
    typer.Option(
        help="Length of the training in seconds, instead of --chunks: the learning rate is planned "
        "so that it ends in time.",
        min=1,
        metavar="N",
    ),
]
BatchTokens = Annotated[int, typer.Option(help="Tokens in a batch.", min=64, metavar="N")]
HeadTokens = Annotated[
    int,
    typer.Option(
        help="Number of most frequent tokens over which the loss is computed, and which a "
        "diffusion LM can draft; 0: all.",
        min=0,
        metavar="N",
    ),
]
Device = Annotated[str, typer.Option(help="Device to train on.", metavar="auto|cpu|cuda")]
Compile = Annotated[
    bool, typer.Option("--compile", help="Compile the layers; on a CPU this needs a C++ compiler.")
]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", min=1, metavar="N")]
Seed = Annotated[int, typer.Option(help="Seed of the training.", metavar="N")]
Store = Annotated[
    Literal["bfloat16", "int8"],
    typer.Option(help="How the drafter's weights are stored; int8 takes half the space."),
]
Drafter = Annotated[Path, typer.Argument(metavar="DIR", help="A drafter that `train` produced.")]
Files = Annotated[
    list[Path],
    typer.Option("--answers", help="Answers of the drafter's target.", metavar="FILE.jsonl|DIR"),
]
Limit = Annotated[
    int, typer.Option(help="Number of held-out answers to draft.", min=1, metavar="N")
]
DraftTokens = Annotated[int, typer.Option(help="Tokens in a draft.", min=1, metavar="N")]


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The options of `train`, in the order of its help."""

    target: Target
    out: Out
    prompts: Prompts = None
    answers: Answers = None
    num_answers: NumAnswers = 2000
    kind: Kind = "diffuspec"
    layers: Layers = None
    attention: Attention = None
    block_size: BlockSize = None
    start: Start = None
    chunks: Chunks = None
    seconds: Seconds = None
    batch_tokens: BatchTokens = 2048
    head_tokens: HeadTokens = 8192
    device: Device = "auto"
    compiles: Compile = False
    threads: Threads = None
    store: Store = "bfloat16"
    seed: Seed = 0

    def plan(self, answers: Sequence[Path]) -> DrafterPlan | HeadPlan:
        """Return the training on files of answers. Raises ConfigError and ModelLoadError."""
        from diffuspec.models.loading.checkpoint import inspect_checkpoint
        from diffuspec.pairs.factory.heads.training import HeadPlan
        from diffuspec.pairs.factory.training import DrafterPlan, choose_device

        if self.chunks and self.seconds:
            raise ConfigError("give --chunks or --seconds, not both")
        if self.layers and self.start:
            raise ConfigError("give --layers or --start, not both: a drafter has its layers")
        checkpoint = inspect_checkpoint(self.target)
        checkpoint.check_is_plain("training beside it")
        num_layers = int(checkpoint.config["num_hidden_layers"])
        size = parse_block_size(self.kind, self.attention, self.block_size)
        shared: dict[str, Any] = {
            "kind": self.kind,
            "target": self.target,
            "out": self.out,
            "answers": tuple(answers),
            "num_chunks": self.chunks or _NUM_CHUNKS,
            "seconds": self.seconds,
            "tokens_per_batch": self.batch_tokens,
            "head_tokens": self.head_tokens or None,
            "device": choose_device(self.device, self.threads),
            "compiles": self.compiles,
            "storage": self.store,
            "seed": self.seed,
        }
        if self.kind in ("diffuspec", "sps"):
            layers = parse_layers(self.layers, 10, num_layers)
            attention = self.attention or "block_causal"
            return DrafterPlan(
                **shared,
                layers=layers,
                attention=attention,
                block_size=size or 1,
                start=self.start,
            )
        if self.start:
            raise ConfigError(f"--start has no effect on --kind {self.kind}")
        layers = parse_layers(self.layers, 5, num_layers)
        return HeadPlan(**shared, layers=layers, block_size=size or 12)


@takes_fields("chosen", TrainOptions)
def train(chosen: TrainOptions) -> None:
    """Make a diffusion drafter for a causal LM, from some of its own layers.

    Embeddings and head stay the target's and are not stored again. With --kind, make a smaller
    causal LM in the same way, or draft heads.
    """
    from diffuspec.bench.output import make_folder
    from diffuspec.pairs.factory.training import DrafterPlan

    if chosen.answers and chosen.prompts:
        raise ConfigError("give --answers or --prompts, not both")
    files = chosen.answers or [chosen.out / "training" / "answers.jsonl"]
    plan = chosen.plan(files)  # checked before answers are generated
    if isinstance(plan, DrafterPlan):
        typer.echo(plan.describe_memory(), err=True)
    make_folder(chosen.out)
    if not chosen.answers:
        _write_answers(chosen.target, files[0], chosen.num_answers, chosen.prompts or [])
    if isinstance(plan, DrafterPlan):
        _train_model(plan)
    else:
        _train_heads(plan)


def answers(
    target: Target,
    out: AnswersOut,
    prompts: Prompts = None,
    texts: Texts = None,
    num_answers: NumAnswers = 2000,
    at_once: AtOnce = None,
    device: Device = "auto",
    threads: Threads = None,
    seed: AnswersSeed = 0,
) -> None:
    """Write the target's own answers, to train drafters on, in files of at most 16 MB.

    The target also writes the questions: after a few first words, about texts, and after answers.
    """
    from diffuspec.bench.output import make_folder
    from diffuspec.pairs.factory.answer_files import AnswerFiles
    from diffuspec.pairs.factory.answers import write_rounds
    from diffuspec.pairs.factory.prompts import Passages
    from diffuspec.pairs.factory.training import choose_device

    chosen = choose_device(device, threads)
    count = at_once or (_SEQUENCES_ON_GPU if chosen == "cuda" else _SEQUENCES_AT_A_TIME)
    passages = None if texts is None else Passages(texts)
    make_folder(out)
    files = AnswerFiles(out, _ROUND_PER_SEQUENCE * count)
    with _engine(target, count, chosen) as engine, _bar(num_answers) as show:
        write_rounds(engine, files, num_answers, prompts or [], passages, seed, show)
    done = files.progress
    files_written = "1 file" if done.num_files == 1 else f"{done.num_files} files"
    typer.echo(f"{out}: {done.num_answers} answers in {files_written}")


def evaluate(
    drafter: Drafter,
    answers: Files,
    limit: Limit = 100,
    num_draft_tokens: DraftTokens = 12,
    threads: Threads = None,
) -> None:
    """Print how far argmax drafts agree with answers that were held out of the training."""
    from diffuspec.pairs.factory.examples import ExampleFiles
    from diffuspec.pairs.factory.export import load_drafter
    from diffuspec.pairs.factory.training import (
        MAX_EXAMPLE_TOKENS,
        choose_device,
        measure_drafts,
    )

    choose_device("cpu", threads)
    files = ExampleFiles(answers, MAX_EXAMPLE_TOKENS)
    files.read_new()
    if not files.held_out:
        raise ConfigError(f"{answers[0]} has too few answers: none of them is held out")
    model, settings = load_drafter(drafter)
    held_out = files.held_out[:limit]
    found = measure_drafts(model, held_out, settings, num_draft_tokens)
    typer.echo(f"{drafter}: {found}; {found.num_drafts} drafts in {len(held_out)} answers")


def _train_model(plan: DrafterPlan) -> None:
    from diffuspec.pairs.factory.training import DrafterTraining

    training = DrafterTraining(plan)
    kept = ", ".join(map(str, training.start.layers))
    began = f"layers {kept}" if plan.start is None else str(plan.start)
    typer.echo(f"{began}; {len(training.files.training)} answers", err=True)
    typer.echo(f"before training: {training.measure()}", err=True)
    training.run(lambda curve: _plot(curve, plan.out / "training" / "curve.png"))
    if plan.kind == "diffuspec":
        _build_ngram(training.files.training, plan.out / "ngram.arpa")
    typer.echo(f"{plan.out}: {training.measure()}")


def _train_heads(plan: HeadPlan) -> None:
    from diffuspec.pairs.factory.heads.training import HeadTraining

    training = HeadTraining(plan)
    typer.echo(f"{len(training.files.training)} answers", err=True)
    training.run()
    typer.echo(f"{plan.out}: {training.measure()}")


def _write_answers(target: Path, path: Path, num_answers: int, prompts: Sequence[Path]) -> None:
    from diffuspec.pairs.factory.answers import write_answers

    with _engine(target, _SEQUENCES_AT_A_TIME) as engine, _bar(num_answers) as show:
        write_answers(engine, path, num_answers, prompts, show)


def _engine(target: Path, at_once: int, device: str = "auto") -> Engine:
    from diffuspec.engine.engine import Engine
    from diffuspec.models.loading.checkpoint import inspect_checkpoint
    from diffuspec.pairs import parse_config

    length = min(_MAX_CONTEXT, inspect_checkpoint(target).max_positions)
    section = {
        "path": target,
        "dtype": "bfloat16",
        "device": device,
        "max_sequences": at_once,
        "max_model_len": length,
    }
    return Engine.from_config(parse_config({"target": section}))


@contextmanager
def _bar(num_answers: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with display.progress_bar(*columns) as progress:
        task = progress.add_task("answers", total=num_answers)
        yield lambda done: progress.update(task, completed=done)


def _plot(curve: Sequence[CurvePoint], path: Path) -> None:
    """Draw acceptance and loss, if matplotlib is installed."""
    from diffuspec.bench.plots import Line, plot_sweep

    tokens = tuple(point.num_answer_tokens for point in curve)
    panels = {
        "acceptance": [Line("held out", tokens, tuple(point.acceptance for point in curve))],
        "loss": [Line("training", tokens, tuple(point.loss for point in curve))],
    }
    try:
        plot_sweep("The drafter's training", "tokens of answers", panels, path)
    except MissingDependencyError:
        return


def _build_ngram(examples: Sequence[Example], path: Path) -> None:
    from diffuspec.models.ngram.arpa import write_arpa
    from diffuspec.models.ngram.estimate import estimate

    write_arpa(estimate(example.token_ids for example in examples), path)
