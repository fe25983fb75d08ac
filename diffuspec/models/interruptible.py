"""Runs a model's layers one by one, so that a forward can be stopped between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from diffuspec.models.attention.interface import Attention, attending
from diffuspec.models.hidden_states import layers_of


class _Stopped(Exception):
    """Raised after a layer to end a forward."""


def run_layers(
    decoder: Any,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    attention: Attention,
    must_stop: Callable[[], bool],
) -> int | None:
    """Run packed rows, [1, T] token ids and positions; must_stop is asked after each layer.

    Returns the number of layers; None if it stopped. The caches of the layers that ran are written.
    """
    try:
        with attending(attention), _asking(decoder, token_ids.device, must_stop):
            decoder(input_ids=token_ids, position_ids=positions, use_cache=False)
    except _Stopped:
        return None
    return len(layers_of(decoder))


@contextlib.contextmanager
def _asking(decoder: Any, device: torch.device, must_stop: Callable[[], bool]) -> Iterator[None]:
    def ask(*_: Any) -> None:
        if device.type == "cuda":  # the launched kernels of a layer may not have run yet
            torch.cuda.synchronize(device)
        if must_stop():
            raise _Stopped

    handles = [layer.register_forward_hook(ask) for layer in layers_of(decoder)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
