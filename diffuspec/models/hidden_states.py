"""Extracts the hidden states of chosen layers from a model's forwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from diffuspec.core.interfaces import LAST_LAYER
from diffuspec.core.states import StateRows


class HiddenStates:
    """The hidden states of the rows that a runner computes, in the order of its forwards.

    The model has hooks only inside `record`, so other forwards cost nothing.
    """

    def __init__(self, layers: Sequence[int]) -> None:
        self._parts: dict[int, list[torch.Tensor]] = {layer: [] for layer in layers}
        # by layer: states of the latest forward, [B, T, H]
        self._latest: dict[int, torch.Tensor] = {}

    @contextlib.contextmanager
    def record(self, model: Any) -> Iterator[None]:
        """Record the hidden states of the single forward inside the context."""
        # OPT's head calls the decoder directly, not the base model around it
        decoder = model.get_decoder()
        layers = layers_of(decoder)
        handles = []
        for layer in self._parts:
            module = decoder if layer == LAST_LAYER else layers[layer]
            handles.append(module.register_forward_hook(self._hook(layer)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def keep(self, rows: slice) -> None:
        """Keep these rows of the latest forward; the others are padding, or already known."""
        for layer, parts in self._parts.items():
            parts.append(self._latest.pop(layer)[0, rows])  # the batch's only sequence

    def batch(self, layer: int) -> torch.Tensor:
        """Return a layer's hidden states in the latest forward, [B, T, H], instead of `keep`."""
        return self._latest.pop(layer)

    def rows(self, layer: int) -> torch.Tensor:
        """Return all kept rows of a layer, [num_rows, H]; [0] before any forward."""
        parts = self._parts[layer]
        return parts[0] if len(parts) == 1 else torch.cat(parts or [torch.empty(0)])

    def _hook(self, layer: int) -> Any:
        def take(module: Any, inputs: Any, output: Any) -> None:
            state = getattr(output, "last_hidden_state", output)
            self._latest[layer] = state[0] if isinstance(state, tuple) else state

        return take


def layers_of(decoder: Any) -> Sequence[Any]:
    """Return the layers of a decoder."""
    lists = (child for child in decoder.children() if isinstance(child, nn.ModuleList))
    layers: Any = next(lists)
    return layers  # type: ignore[no-any-return]


def state_rows(first: int, layers: Sequence[torch.Tensor], max_bytes: int) -> StateRows:
    """Return hidden states of successive tokens as bytes: as many as fit, at least one.

    layers: [T, H] each.
    """
    rows = torch.cat(list(layers), dim=-1).to(torch.bfloat16)
    num_rows = max(1, max_bytes // (rows.shape[1] * rows.itemsize))
    rows = rows[:num_rows].contiguous().cpu()
    return StateRows(first, (len(rows), rows.shape[1]), rows.view(torch.int16).numpy().tobytes())


def states_of(rows: StateRows) -> torch.Tensor:
    """Return the hidden states stored in bytes, [T, layers * H] bfloat16."""
    numbers = np.frombuffer(rows.data, "<i2").astype(np.int16)
    return torch.from_numpy(numbers).view(torch.bfloat16).reshape(rows.dims)
