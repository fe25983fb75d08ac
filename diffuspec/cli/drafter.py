"""`diffuspec drafter`: make a drafter for a target, and measure one."""

from __future__ import annotations

from collections.abc import Sequence
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
    parse_block_size,
    parse_layers,
)
from diffuspec.core.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from diffuspec.pairs.factory.examples import Example
    from diffuspec.pairs.factory.heads.training import HeadPlan
    from diffuspec.pairs.factory.training import CurvePoint, DrafterPlan

TRAIN_EXAMPLES = """[bold]Examples[/bold]

  diffuspec drafter train --target models/smollm2 --out runs/drafter
  diffuspec drafter train --target DIR --out DIR --prompts chats.jsonl --num-answers 20000
  diffuspec drafter train --target DIR --out DIR --answers answers.jsonl --layers 0,1,2,9,28,29
  diffuspec drafter train --target DIR --out DIR --answers answers.jsonl --seconds 600
  diffuspec drafter train --target DIR --out DIR --attention block_aligned --block-size 8
  diffuspec drafter train --target DIR --out DIR --kind dflash --answers answers.jsonl --chunks 50
  diffuspec generate "Who was Ada Lovelace?" --target models/smollm2 --drafter runs/drafter
""" + (
    "\n\nThe target answers the prompts, and then questions that it writes itself; DIR/training/"
    "answers.jsonl holds the answers. A command that was interrupted goes on where it stopped when"
    " it is given again. A line of --prompts has messages, turns or prompt."
)
EVALUATE_EXAMPLES = """[bold]Examples[/bold]

  diffuspec drafter evaluate runs/drafter --answers runs/drafter/training/answers.jsonl
"""

_NUM_CHUNKS = 200  # length of a training
_SEQUENCES_AT_A_TIME, _MAX_CONTEXT = 32, 2048  # limits of the target when it generates answers

Target = Annotated[Path, typer.Option(help="The causal LM to draft for.", metavar="DIR")]
Out = Annotated[Path, typer.Option(help="The drafter's directory.", metavar="DIR")]
Prompts = Annotated[
    list[Path] | None,
    typer.Option(
        help="Prompts for the target. Default: the built-in questions.", metavar="FILE.jsonl"
    ),
]
Answers = Annotated[
    list[Path] | None,
    typer.Option(
        help="Answers to train on, as token ids. Default: answers that the target generates.",
        metavar="FILE.jsonl",
    ),
]
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
    typer.Option("--answers", help="Answers of the drafter's target.", metavar="FILE.jsonl"),
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
            return DrafterPlan(**shared, layers=layers, block_size=size)
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
    typer.echo(f"layers {kept}; {len(training.files.training)} answers", err=True)
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
    from diffuspec.engine.engine import Engine
    from diffuspec.models.loading.checkpoint import inspect_checkpoint
    from diffuspec.pairs import parse_config
    from diffuspec.pairs.factory.answers import write_answers

    length = min(_MAX_CONTEXT, inspect_checkpoint(target).max_positions)
    section = {
        "path": target,
        "dtype": "bfloat16",
        "max_sequences": _SEQUENCES_AT_A_TIME,
        "max_model_len": length,
    }
    columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Engine.from_config(parse_config({"target": section})) as engine,
        display.progress_bar(*columns) as progress,
    ):
        task = progress.add_task("answers", total=num_answers)
        write_answers(
            engine, path, num_answers, prompts, lambda done: progress.update(task, completed=done)
        )


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
