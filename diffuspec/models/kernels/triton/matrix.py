"""Weights that stay quantised in a GPU's memory, as defined in `kernels.quantized`."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from diffuspec.models.kernels.quantized import Groups, Layout, joined_blocks

OUTPUTS = 128  # outputs in a block
_UNITS = (64, 32, 16)  # a product has at least 16 inputs
_MAX_PADDING = 0.1  # share of the inputs that padding may add; more only with the smallest unit
_SLICE = 1 << 24  # weights packed at a time


@dataclass(frozen=True, slots=True)
class Packing:
    """How a layout's numbers are arranged in words; depends only on the weight's shape."""

    bits: int
    unit: int  # successive inputs whose numbers are at the same place of an output's words
    span: int  # inputs within a chunk that share scales
    ratio: int  # spans within a chunk that share a scale and an offset, which codes multiply
    num_chunks: int

    @property
    def places(self) -> int:
        """Numbers in a word."""
        return 32 // self.bits

    @property
    def chunk(self) -> int:
        """Inputs in a tile of words."""
        return self.unit * self.places

    @property
    def spans(self) -> int:
        """Spans in a chunk."""
        return self.chunk // self.span

    @property
    def num_spans(self) -> int:
        return self.num_chunks * self.spans


def packing_for(layout: Layout, num_inputs: int, has_groups: bool) -> Packing | None:
    """Return how a weight is packed; None if its groups are too small for a GPU's products.

    has_groups: each group has numbers of its own besides a shared scale.
    """
    shared = layout.group * layout.ratio
    group = layout.group if has_groups else shared
    found = None
    for unit in _UNITS:
        chunk = unit * 32 // layout.bits
        span = math.gcd(group, chunk)
        if span % unit == 0:
            num_chunks, ratio = -(-num_inputs // chunk), math.gcd(shared, chunk) // span
            found = Packing(layout.bits, unit, span, ratio, num_chunks)
            if num_chunks * chunk <= (1 + _MAX_PADDING) * num_inputs:
                break
    return found


class Fields(NamedTuple):
    """What belongs to the spans of a chunk: numbers of each, or of several if they share them."""

    supers: Any
    codes: Any
    super_offsets: Any
    offset_codes: Any
    zeros: Any


class GpuMatrix:
    """A matrix, [outputs, inputs], in blocks of 128 outputs and chunks of inputs.

    The words of a chunk hold its numbers, [128, unit], and `scales` its `Fields`, one after
    another, in words as well, [words, 128]: kernels read few and large pieces.
    """

    def __init__(
        self,
        layout: Layout,
        shape: tuple[int, ...],
        slices: Iterable[Groups],
        device: torch.device,
    ) -> None:
        """slices: successive outputs, in multiples of 128 except for the last."""
        self.layout, self.device = layout, device
        self.num_outputs, self.num_inputs = shape
        self.num_blocks = -(-self.num_outputs // OUTPUTS)
        packed = (self._packed(one) for one in slices)
        words, scales = joined_blocks(
            packed, lambda like: like.new_empty(self.num_blocks, *like.shape[1:])
        )
        assert words is not None and scales is not None
        self.words, self.scales = words, scales
        self.device = words.device  # this includes the device's index, unlike `device`

    def _packed(self, groups: Groups) -> list[Tensor]:
        """Return the words and the scales of some outputs."""
        own = groups.codes, groups.offset_codes, groups.zeros
        packing = packing_for(self.layout, self.num_inputs, any(field is not None for field in own))
        assert packing is not None, "to be checked by `packing_for`"
        numbers = groups.numbers.to(self.device)
        if self.layout.bits == 8:  # words hold unsigned numbers
            numbers = numbers.view(torch.uint8) ^ 128
        self.packing = packing
        fields = Fields(groups.scales, groups.codes, groups.offsets, *own[1:])
        self.types = Fields(*(None if field is None else field.dtype for field in fields))
        return [_in_words(numbers, packing), self._scales_of(fields)]

    def _scales_of(self, fields: Fields) -> Tensor:
        """Return fields, [outputs, groups] each, in words, [blocks, chunks, words, 128]."""
        packing, parts = self.packing, []
        for name, field in fields._asdict().items():
            if field is None:
                continue
            per_chunk = self._num_in_chunk(name)
            group = self.layout.group * (self.layout.ratio if _is_shared(name) else 1)
            repeats = group // (packing.chunk // per_chunk)
            wide = field.to(self.device).repeat_interleave(repeats, 1)
            if wide.dtype == torch.int8:
                wide = wide.view(torch.uint8) ^ 128
            missing = packing.num_chunks * per_chunk - wide.shape[1], -len(wide) % OUTPUTS
            padded = pad(wide, (0, missing[0], 0, missing[1]))
            blocks = padded.view(-1, OUTPUTS, packing.num_chunks, per_chunk)
            whole = pad(blocks, (0, -per_chunk % (4 // field.itemsize)))
            parts.append(whole.view(torch.int32).permute(0, 2, 3, 1))
        return torch.cat(parts, dim=2)

    def _num_in_chunk(self, name: str) -> int:
        """Return how many numbers of a field a chunk has."""
        return self.packing.spans // (self.packing.ratio if _is_shared(name) else 1)

    @property
    def starts(self) -> Fields:
        """Where the words of a chunk's fields start; -1: there is no such field."""
        starts, end = [], 0
        for name, kind in self.types._asdict().items():
            starts.append(-1 if kind is None else end)
            end += 0 if kind is None else -(-self._num_in_chunk(name) * kind.itemsize // 4)
        return Fields(*starts)

    def can_be_joined_to(self, other: GpuMatrix) -> bool:
        """Return whether another matrix with the same inputs can be appended to this one."""
        is_alike = self.layout == other.layout and self.packing == other.packing
        return is_alike and self.types == other.types and self.num_outputs % OUTPUTS == 0

    def joined_to(self, other: GpuMatrix) -> GpuMatrix:
        """Return a matrix with another one's outputs appended."""
        whole = copy.copy(self)
        whole.num_outputs += other.num_outputs
        whole.num_blocks += other.num_blocks
        whole.words = torch.cat((self.words, other.words))
        whole.scales = torch.cat((self.scales, other.scales))
        return whole

    @property
    def zero(self) -> int:
        """The number in words that stands for 0."""
        has_offsets = self.types.super_offsets is not None
        return (128 if self.layout.bits == 8 else 0) + (0 if has_offsets else self.layout.zero)

    def rows(self, outputs: Tensor) -> Tensor:
        """Return the weights of some outputs in float32, [outputs, inputs]."""
        packing, block, lane = self.packing, outputs // OUTPUTS, outputs % OUTPUTS
        shifts = torch.arange(packing.places, device=self.device)[:, None] * packing.bits
        numbers = self.words[block, :, lane][:, :, None] >> shifts.int() & (1 << packing.bits) - 1
        parts = numbers.view(len(outputs), packing.num_spans, packing.span) - self.zero
        fields = self._fields_of(self.scales[block, :, :, lane])
        scales = fields.supers if fields.codes is None else fields.supers * fields.codes
        if fields.super_offsets is None:  # only the product rounds, whatever the type of the scales
            moved = parts.float() if fields.zeros is None else parts - fields.zeros
            weights: Tensor = moved * scales
        else:
            codes = 1 if fields.offset_codes is None else fields.offset_codes
            offsets = fields.super_offsets * codes
            weights = torch.addcmul(offsets, parts.float(), scales)
        return weights.flatten(1)[:, : self.num_inputs].contiguous()

    def _fields_of(self, words: Tensor) -> Fields:
        """Return the numbers of each span, [outputs, spans, 1] float32, in [outputs, chunks, N]."""
        found: list[Tensor | None] = []
        for name, start, kind in zip(Fields._fields, self.starts, self.types, strict=True):
            if kind is None:
                found.append(None)
                continue
            per_chunk = self._num_in_chunk(name)
            part = words[:, :, start:].contiguous()
            numbers = part.view(torch.uint8 if kind == torch.int8 else kind)[:, :, :per_chunk]
            wide = numbers.float() - (128 if kind == torch.int8 else 0)
            wide = wide.repeat_interleave(self.packing.spans // per_chunk, dim=2)
            found.append(wide.flatten(1)[:, :, None])
        return Fields(*found)


def _is_shared(name: str) -> bool:
    """Whether groups share the numbers of a field."""
    return name.startswith("super")


def slice_size(num_inputs: int) -> int:
    """Return the preferred number of outputs in a slice of a matrix."""
    return max(1, _SLICE // num_inputs // OUTPUTS) * OUTPUTS


def _in_words(numbers: Tensor, packing: Packing) -> Tensor:
    """Return [outputs, inputs] numbers in 32-bit words, [blocks, chunks, 128, unit]."""
    missing = packing.num_chunks * packing.chunk - numbers.shape[1], -len(numbers) % OUTPUTS
    padded = pad(numbers, (0, missing[0], 0, missing[1]))
    parts = padded.view(-1, OUTPUTS, packing.num_chunks, packing.places, packing.unit)
    words = torch.zeros_like(parts[:, :, :, 0], dtype=torch.int32)
    for place in range(packing.places):
        words |= parts[:, :, :, place].int() << place * packing.bits
    return words.transpose(1, 2).contiguous()
