"""A target, and a smaller model from some of its layers, chosen by what dropping each costs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from diffuspec.models.loading.checkpoint import inspect_checkpoint
from diffuspec.pairs.factory.examples import Batch
from diffuspec.text.tokenizer import quiet


def load_target(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Load a causal LM to train beside, as a transformers model. Raises ModelLoadError."""
    inspect_checkpoint(path).check_is_plain("training beside it")
    family: Any = AutoModelForCausalLM
    with quiet():
        return family.from_pretrained(
            path, dtype=dtype, trust_remote_code=False, local_files_only=True
        )


def choose_layers(
    target: Any,
    batch: Batch,
    num_layers: int,
    on_drop: Callable[[list[int], float], None] = lambda kept, loss: None,
) -> list[int]:
    """Return the layers to keep, ascending.

    Layers are dropped one by one, each time the one whose loss harms the answers' prediction least.
    on_drop is called with the layers left and the loss in nats after each.
    """
    decoder = target.get_decoder()
    layers, kept = list(decoder.layers), list(range(len(decoder.layers)))
    try:
        while len(kept) > num_layers:
            losses = {layer: _loss_without(target, layers, kept, layer, batch) for layer in kept}
            least = min(losses, key=lambda layer: losses[layer])
            kept.remove(least)
            on_drop(kept, losses[least])
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
    """Return a new model with these layers of the target; its embeddings and head are shared."""
    config = copy.deepcopy(target.config)
    num_layers = config.num_hidden_layers
    for name, value in list(vars(config).items()):  # layer_types, for example
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


def compile_layers(layers: Sequence[Any]) -> None:
    """Compile layers that share their code: of one code, torch keeps eight compilations only."""
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 4 * len(layers))
    for layer in layers:
        layer.compile(dynamic=True)
