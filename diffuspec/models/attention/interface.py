"""Our attention, registered with transformers.

A model loaded with ATTENTION_NAME calls `packed_attention` in every layer. This calls the
`Attention` given to `run_packed`. The object is passed in a context variable, because some model
families do not pass keyword arguments down to their attention layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from diffuspec.models.kernels import operations

ATTENTION_NAME = "diffuspec"
SELF_TEST_NAME = "diffuspec-self-test"  # the same, except that each layer's mask reveals its window


@dataclass(frozen=True, slots=True, eq=False)
class Scoring:
    """How a layer turns products of queries and keys into weights; most only scale them."""

    scaling: float
    window: int | None = None  # a row at position p sees only positions above p - window
    softcap: float | None = None  # a score s becomes softcap * tanh(s / softcap)
    sinks: torch.Tensor | None = None  # [heads]: score of a column without a value, for each head

    @property
    def is_plain(self) -> bool:
        """Whether weights are the softmax of scaled products."""
        return self.softcap is None and self.sinks is None


class Projections(NamedTuple):
    """Queries, keys and values of the forward's T rows in one layer."""

    query: Tensor  # [heads, T, dim]
    key: Tensor  # [kv_heads, T, dim]
    value: Tensor  # [kv_heads, T, dim]

    def split(self, sizes: Sequence[int]) -> Iterator[Self]:
        """Yield successive groups of rows, sizes[0] of them first; the sizes add up to T."""
        parts = (torch.split(tensor, list(sizes), dim=1) for tensor in self)
        yield from map(type(self), *parts)


class HeadNorms(NamedTuple):
    """The RMSNorms of each query head and each key head, before the rotation."""

    weights: Tensor  # [2, dim]: of queries, of keys
    epsilon: float


class Heads(NamedTuple):
    """Queries, keys and values of the forward's T rows in one layer, before the rotation."""

    rows: Tensor  # [T, (heads + 2 * kv_heads) * dim]: queries, then keys, then values
    cos: Tensor  # [T, dim]
    sin: Tensor  # [T, dim]
    num_heads: tuple[int, int, int]  # numbers of query, key and value heads
    norms: HeadNorms | None

    @property
    def dim(self) -> int:
        return self.cos.shape[1]

    def split(self, sizes: Sequence[int]) -> Iterator[Self]:
        """Yield successive groups of rows, sizes[0] of them first; the sizes add up to T."""
        parts = (torch.split(tensor, list(sizes)) for tensor in (self.rows, self.cos, self.sin))
        for rows, cos, sin in zip(*parts, strict=True):
            yield self._replace(rows=rows, cos=cos, sin=sin)

    def rotated(self) -> Projections:
        """Return the heads after norms and rotation. The rows may be overwritten."""
        rows, dim, num_rotated = self.rows, self.dim, sum(self.num_heads[:2])
        if self.norms is not None:
            rows = self._normed(self.norms)
        operations.rotate(rows, self.cos, self.sin, num_rotated, dim)
        return self._replace(rows=rows).unrotated()

    def unrotated(self) -> Projections:
        """Return the heads as they are."""
        heads = self.rows.view(len(self.rows), -1, self.dim).transpose(0, 1)
        return Projections(*torch.split(heads, list(self.num_heads)))

    def _normed(self, norms: HeadNorms) -> Tensor:
        widths = [number * self.dim for number in self.num_heads]
        parts = list(torch.split(self.rows, widths, dim=1))
        for index, weight in enumerate(norms.weights):
            heads = parts[index].reshape(-1, self.dim).contiguous()
            parts[index] = operations.norm(heads, weight, norms.epsilon).view(len(self.rows), -1)
        return torch.cat(parts, dim=1)


class Attention(Protocol):
    """Computes the attention of one forward, layer by layer."""

    def attend(self, layer: int, rows: Projections, scoring: Scoring) -> Tensor:
        """Store the rows' keys and values; return the rows' attention, [T, heads, dim]."""
        ...

    def attend_heads(self, layer: int, heads: Heads, scoring: Scoring) -> Tensor:
        """Rotate the heads, then attend as `attend` does."""
        return self.attend(layer, heads.rotated(), scoring)


A = TypeVar("A", bound=Attention)

_current: ContextVar[Attention] = ContextVar("attention of the forward under way")


@contextlib.contextmanager
def attending(attention: A) -> Iterator[A]:
    """Make `packed_attention` call this one within the context."""
    token = _current.set(attention)
    try:
        yield attention
    finally:
        _current.reset(token)


def current_attention() -> Attention:
    """Return the attention of the running forward."""
    return _current.get()


def run_packed(
    model: torch.nn.Module,
    token_ids: Tensor,
    positions: Tensor,
    keep_rows: Tensor,
    attention: Attention,
) -> Tensor:
    """Run packed rows, [T] token ids and positions; return the logits of keep_rows, [R, V]."""
    with attending(attention):
        output: Any = model(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=keep_rows,
        )
    logits: Tensor = output.logits[0]
    return logits


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: int | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: [1, heads, T, dim] -> [1, T, heads, dim].

    attention_mask is None in normal forwards; in the self-test it is the mask's window (see
    `_mask_window`). s_aux are the scores of attention sinks. Raises NotImplementedError for
    anything that our kernels do not support.
    """
    _check_supported(module, attention_mask, sliding_window)
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    scoring = Scoring(scaling, sliding_window, softcap, s_aux)
    layer: Any = module.layer_idx
    output = _current.get().attend(layer, Projections(query[0], key[0], value[0]), scoring)
    return output.unsqueeze(0), None


def attend_heads(
    module: torch.nn.Module, heads: Heads, attention_mask: int | None, scoring: Scoring
) -> Tensor:
    """Return the attention of heads before their rotation, [T, heads, dim].

    attention_mask and errors: as for `packed_attention`.
    """
    _check_supported(module, attention_mask, scoring.window)
    layer: Any = module.layer_idx
    return _current.get().attend_heads(layer, heads, scoring)


def _check_supported(
    module: torch.nn.Module, attention_mask: int | None, sliding_window: int | None
) -> None:
    if not getattr(module, "is_causal", True):
        raise NotImplementedError("its attention is not causal")
    if attention_mask is not None and attention_mask != sliding_window:
        raise NotImplementedError(f"a window of {attention_mask} in the mask alone is unsupported")


def _mask_window(local_size: int | None = None, **_: Any) -> int | None:
    """transformers' mask function: return the window or chunk size instead of a mask."""
    return local_size


# ATTENTION_NAME has no mask function: transformers then builds no mask.
AttentionInterface.register(ATTENTION_NAME, packed_attention)
AttentionInterface.register(SELF_TEST_NAME, packed_attention)
AttentionMaskInterface.register(SELF_TEST_NAME, _mask_window)
