"""Options shared by several of these commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PIPELINE = Path(__file__).with_name("pipeline.yaml")

Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.yaml",
        help="The pipeline's configuration. Default: deploy/pipeline.yaml, the embedded pair.",
    ),
]
Address = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="A running Ray cluster, or auto to find one on this machine. Default: "
        "RAY_ADDRESS, or else a new cluster.",
    ),
]
NumPerFamily = Annotated[int, typer.Option(metavar="N", min=1, help="Questions per family.")]
MaxTokens = Annotated[
    int, typer.Option(metavar="N", min=1, help="Maximum length of an answer, in tokens.")
]
