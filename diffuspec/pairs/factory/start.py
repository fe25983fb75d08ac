"""The start of a training: layers of the target, and the id of the mask."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from diffuspec.core.errors import ConfigError
from diffuspec.pairs.factory.examples import Batch, Example
from diffuspec.pairs.factory.layers import choose_layers
from diffuspec.pairs.factory.optimisation import mixed_precision
from diffuspec.text.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a training, in training/start.json."""

    layers: tuple[int, ...]
    mask_token_id: int


def write_start(note: Path, start: Start) -> Start:
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(asdict(start)))
    return start


def read_start(note: Path, wanted: int | tuple[int, ...]) -> Start:
    """Read the start of a training. Raises ConfigError for other layers than those wanted."""
    found = json.loads(note.read_text())
    start = Start(tuple(found["layers"]), found["mask_token_id"])
    if wanted not in (start.layers, len(start.layers)):
        raise ConfigError(
            f"{note.parent.parent} holds a training of the layers {list(start.layers)}: name "
            "these, or another directory"
        )
    return start


class LayersPlan(Protocol):
    """A plan of a training that starts from layers of the target."""

    @property
    def target(self) -> Path: ...

    @property
    def out(self) -> Path: ...

    @property
    def layers(self) -> int | tuple[int, ...]: ...


def begin(plan: LayersPlan, target: Any, batch: Batch, examples: Sequence[Example]) -> Start:
    """Read the start of the training in the output directory, or choose and note one.

    Layers are chosen on the batch; the mask is an id that no example has. Raises ConfigError.
    """
    wanted, note = plan.layers, plan.out / "training" / "start.json"
    if note.exists():
        return read_start(note, wanted)
    if isinstance(wanted, int):
        with mixed_precision(batch.token_ids.device):
            wanted = tuple(choose_layers(target, batch, wanted))
    num_ids = target.get_input_embeddings().num_embeddings
    mask = unused_token_id(load_tokenizer(plan.target), num_ids, examples)
    return write_start(note, Start(wanted, mask))


def unused_token_id(tokenizer: Any, vocab_size: int, examples: Sequence[Example]) -> int:
    """Return an id that never occurs, to be the mask. Raises ConfigError.

    Preferably one that the model has and the tokenizer lacks, then a special token. It is
    never drafted.
    """
    seen = {token for example in examples for token in example.token_ids}
    seen |= {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    known = tokenizer.get_vocab().values()
    beyond = range(max(known) + 1, vocab_size)
    named = set(tokenizer.all_special_ids)  # such as the padding
    special = sorted(
        tokenizer.added_tokens_decoder, key=lambda token_id: (token_id in named, token_id)
    )
    for token_id in (*beyond, *special, *sorted(known, reverse=True)):
        if token_id not in seen:
            return int(token_id)
    raise ConfigError("every token id occurs in the answers: none is left to be the mask")
