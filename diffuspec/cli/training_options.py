"""Options of `diffuspec drafter train` for the model to be trained, and how they are parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from diffuspec.core.errors import ConfigError

Layers = Annotated[
    str | None,
    typer.Option(
        help="Number of the target's layers that a drafter starts from, chosen by the loss "
        "from dropping each; or their indices, separated by commas. Default: 10; for "
        "kind dflash, 5.",
        metavar="N|LIST",
    ),
]
Start = Annotated[
    Path | None,
    typer.Option(
        help="A drafter that `train` produced for this target, to train on from, instead of "
        "--layers of the target.",
        metavar="DIR",
    ),
]
Attention = Annotated[
    Literal["block_causal", "block_aligned", "full"] | None,
    typer.Option(
        help="Attention mask of kind diffuspec: block_causal (causal text, and the draft as "
        "one block), block_aligned (blocks that begin at multiples of --block-size, "
        "in text and draft alike) or full (all rows see each other, as in Dream; a draft needs a "
        "pass of its own over the text, so training takes several times as long). Default: "
        "block_causal."
    ),
]
BlockSize = Annotated[
    int | None,
    typer.Option(
        help="Rows in a block, for kind dflash (default: 12) or with block_aligned (default: 8).",
        min=2,
        max=64,
        metavar="N",
    ),
]


def parse_block_size(kind: str, attention: str | None, given: int | None) -> int | None:
    """Return the block size, if the model has blocks and it is given. Raises ConfigError."""
    if attention is not None and kind != "diffuspec":
        raise ConfigError(f"--attention has no effect on --kind {kind}")
    is_aligned = attention == "block_aligned"
    if given is not None and kind != "dflash" and not is_aligned:
        raise ConfigError(
            f"--block-size {given} has no effect without --kind dflash or --attention block_aligned"
        )
    return given or 8 if is_aligned else given


def parse_layers(text: str | None, default: int, num_layers: int) -> int | tuple[int, ...]:
    """Return the number of layers, or their indices, of a target that has `num_layers`.

    Raises ConfigError.
    """
    if text is None:
        return min(default, num_layers)
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        message = f"--layers must be a number or numbers separated by commas, got {text!r:.60}"
        raise ConfigError(message) from error
    is_list = len(numbers) > 1
    if min(numbers) < (0 if is_list else 1) or list(numbers) != sorted(set(numbers)):
        raise ConfigError(f"--layers must be positive and ascending, got {text!r:.60}")
    if (numbers[-1] + 1 if is_list else numbers[0]) > num_layers:
        counted = f", counted from 0 to {num_layers - 1}" if is_list else ""
        raise ConfigError(
            f"--layers: the target has {num_layers} layers{counted}, got {text!r:.60}"
        )
    return numbers if is_list else numbers[0]
