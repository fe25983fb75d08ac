"""`diffuspec ngram build`: estimate the causal proxy from text, conversations or token ids."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from diffuspec.cli import display
from diffuspec.core.errors import ConfigError, MissingDependencyError
from diffuspec.pairs.tiny import TARGET
from diffuspec.text.corpus import CorpusReader

EXAMPLES = """[bold]Examples[/bold]

  diffuspec ngram build manual.txt novel.txt --out text.arpa
  diffuspec ngram build chats.jsonl --target Qwen2.5-7B --out chats.bin
""" + (
    "\n\nA line of a .jsonl file is a list of token ids, or an object with token_ids, answer, text"
    " or messages (a list of objects with role and content). All other files are text. A .bin file"
    " is smaller and loads faster than an .arpa file; to write one, KenLM's build_binary must be on"
    " PATH."
)

Files = Annotated[list[Path], typer.Argument(metavar="FILE", help="Text files, or .jsonl files.")]
Out = Annotated[Path, typer.Option(help="The model to write.", metavar="FILE.arpa|FILE.bin")]
Order = Annotated[
    int, typer.Option(help="Maximum length of an n-gram, in tokens.", metavar="N", min=2, max=6)
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        "--target", help="Model directory with the tokenizer. Default: tiny.", metavar="DIR"
    ),
]


def run(files: Files, out: Out, order: Order = 3, target: Tokenizer = None) -> None:
    """Estimate an n-gram model over token ids, as KenLM's lmplz does."""
    _check(out)
    reader = CorpusReader(files, target or TARGET)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with display.progress_bar(*columns) as progress:
        num_ngrams = _build(reader, out, order, _Stages(progress).show)
    counts = " / ".join(f"{count:,}" for count in num_ngrams)
    typer.echo(
        f"{out}: {counts} n-grams of order 1 to {order} from {reader.num_tokens:,} tokens, "
        f"{out.stat().st_size:,} bytes"
    )


def _check(out: Path) -> None:
    """Raise ConfigError for an output that cannot be written."""
    if out.suffix not in (".arpa", ".bin"):
        raise ConfigError(f"--out must end in .arpa or .bin, got {out}")
    if not out.parent.is_dir():
        raise ConfigError(f"--out: there is no directory {out.parent}")
    if out.suffix == ".bin" and shutil.which("build_binary") is None:
        raise MissingDependencyError(
            "--out: a .bin file needs KenLM's build_binary on PATH (from github.com/kpu/kenlm);"
            " an .arpa file does not"
        )


class _Stages:
    """Progress bars, one per stage, shown from the stage's first report on."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def show(self, stage: str, done: float) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=1.0)
        self._progress.update(self._tasks[stage], completed=done)


def _build(
    reader: CorpusReader, out: Path, order: int, report: Callable[[str, float], None]
) -> list[int]:
    """Write the complete model or nothing. Return its number of n-grams of each order."""
    from diffuspec.models.ngram.arpa import write_arpa
    from diffuspec.models.ngram.estimate import estimate
    from diffuspec.models.ngram.kenlm_file import build_binary

    sentences = reader.read(partial(report, "reading"))
    model = estimate(sentences, order=order, on_progress=report)
    if out.suffix == ".arpa":
        write_arpa(model, out, report)
    else:
        with tempfile.TemporaryDirectory(dir=out.parent) as folder:
            arpa = Path(folder) / "model.arpa"
            write_arpa(model, arpa, report)
            report("packing", 0.0)
            build_binary(arpa, out)
            report("packing", 1.0)
    return [len(table) for table in model.tables]
