"""The start of a training: the target, layers chosen by the loss without them, and a mask id."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from diffuspec.core.errors import ConfigError
from diffuspec.core.files import replace_text
from diffuspec.models.loading.checkpoint import inspect_checkpoint
from diffuspec.pairs.factory.examples import Batch, Example
from diffuspec.pairs.factory.export import load_drafter
from diffuspec.pairs.factory.optimisation import mixed_precision
from diffuspec.text.quiet import quiet
from diffuspec.text.tokenizer import load_tokenizer


def load_target(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Load a causal LM for training beside it, as a transformers model. Raises ModelLoadError."""
    inspect_checkpoint(path).check_is_plain("training beside it")
    family: Any = AutoModelForCausalLM
    with quiet():
        return family.from_pretrained(
            path, dtype=dtype, trust_remote_code=False, local_files_only=True
        )


def choose_layers(target: Any, batch: Batch, num_layers: int) -> list[int]:
    """Return the layers to keep, ascending.

    Layers are dropped one by one, each time the layer whose removal harms the prediction least.
    """
    decoder = target.get_decoder()
    layers, kept = list(decoder.layers), list(range(len(decoder.layers)))
    try:
        while len(kept) > num_layers:
            losses = {layer: _loss_without(target, layers, kept, layer, batch) for layer in kept}
            least = min(losses, key=lambda layer: losses[layer])
            kept.remove(least)
    finally:
        decoder.layers = torch.nn.ModuleList(layers)
    return kept


@torch.inference_mode()
def _loss_without(
    target: Any, layers: Sequence[Any], kept: Sequence[int], dropped: int, batch: Batch
) -> float:
    decoder = target.get_decoder()
    decoder.layers = torch.nn.ModuleList(layers[i] for i in kept if i != dropped)
    hidden = decoder(input_ids=batch.token_ids, use_cache=False).last_hidden_state[:, :-1]
    wanted = batch.is_answer[:, 1:]
    logits = target.get_output_embeddings()(hidden[wanted]).float()
    return float(cross_entropy(logits, batch.token_ids[:, 1:][wanted]))


def keep_layers(target: Any, kept: Sequence[int]) -> Any:
    """Return a new model with these layers of the target, which shares its embeddings and head."""
    config = copy.deepcopy(target.config)
    num_layers = config.num_hidden_layers
    for name, value in list(vars(config).items()):  # for example layer_types
        if isinstance(value, list) and len(value) == num_layers:
            setattr(config, name, [value[layer] for layer in kept])
    config.num_hidden_layers = len(kept)
    family: Any = AutoModelForCausalLM
    model = family.from_config(config, dtype=target.dtype)
    source, decoder = target.get_decoder(), model.get_decoder()
    state = {
        name: tensor
        for name, tensor in source.state_dict().items()
        if not name.startswith("layers.")
    }
    decoder.load_state_dict(state, strict=False)
    for layer, index in zip(decoder.layers, kept, strict=True):
        layer.load_state_dict(source.layers[index].state_dict())
    model.set_input_embeddings(target.get_input_embeddings())
    model.set_output_embeddings(target.get_output_embeddings())
    return model


def compile_layers(layers: Sequence[Any], *, dynamic: bool = True) -> None:
    """Compile layers that share their code: torch keeps only eight compilations of one function.

    dynamic: whether the numbers of rows vary.
    """
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 4 * len(layers))
    for layer in layers:
        layer.compile(dynamic=dynamic)


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a training, stored in training/start.json."""

    layers: tuple[int, ...]
    mask_token_id: int


def write_start(note: Path, start: Start) -> Start:
    note.parent.mkdir(parents=True, exist_ok=True)
    replace_text(note, json.dumps(asdict(start)))
    return start


def read_start(note: Path, wanted: int | tuple[int, ...]) -> Start:
    """Read the start of a training. Raises ConfigError if its layers are not those wanted."""
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
    """Read the start of the training in the output directory, or choose and store one.

    Layers are chosen by the batch; the mask is an id that occurs in no example. Raises ConfigError.
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


def begin_with(drafter: Path, target: Any, attention: str | None) -> tuple[Start, Any]:
    """Return the start of a training of a trained drafter, and its model with the target's head.

    attention: None for a causal LM; full attention may start from any diffusion LM. Raises
    ModelLoadError, and ConfigError for another attention or another target's size.
    """
    model, settings = load_drafter(drafter)
    found = None if settings is None else settings.attention
    if found != attention and (found is None or attention != "full"):
        raise ConfigError(
            f"--start: {drafter} is {found or 'a causal LM'}, and the training is for "
            f"{attention or 'a causal LM'}"
        )
    own, wanted = (
        (config.hidden_size, config.vocab_size) for config in (model.config, target.config)
    )
    if own != wanted:
        raise ConfigError(
            f"--start: {drafter} has hidden size and vocabulary {own}, the target {wanted}"
        )
    model.set_input_embeddings(target.get_input_embeddings())
    model.set_output_embeddings(target.get_output_embeddings())
    mask = -1 if settings is None else settings.mask_token_id
    return Start(tuple(range(model.config.num_hidden_layers)), mask), model


def unused_token_id(tokenizer: Any, vocab_size: int, examples: Sequence[Example]) -> int:
    """Return an id that never occurs, for the mask. Raises ConfigError.

    It is preferably one that the model has and the tokenizer lacks, else a special token. It is
    never drafted.
    """
    seen = {token for example in examples for token in example.token_ids}
    seen |= {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    known = tokenizer.get_vocab().values()
    beyond = range(max(known) + 1, vocab_size)
    named = set(tokenizer.all_special_ids)  # for example the padding
    special = sorted(
        tokenizer.added_tokens_decoder, key=lambda token_id: (token_id in named, token_id)
    )
    for token_id in (*beyond, *special, *sorted(known, reverse=True)):
        if token_id not in seen:
            return int(token_id)
    raise ConfigError("every token id occurs in the answers: none is left to be the mask")
