"""Weights that stay quantised in a GPU's memory, as defined in `kernels.quantized`."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass

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
    ratio: int  # spans that share a scale and an offset, which their codes multiply
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
    def num_spans(self) -> int:
        return self.num_chunks * self.chunk // self.span

    @property
    def num_supers(self) -> int:
        return -(-self.num_spans // self.ratio)


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
            num_chunks = -(-num_inputs // chunk)
            found = Packing(layout.bits, unit, span, shared // span, num_chunks)
            if num_chunks * chunk <= (1 + _MAX_PADDING) * num_inputs:
                break
    return found


class GpuMatrix:
    """A matrix, [outputs, inputs], in blocks of 128 outputs."""

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
        self.fields = joined_blocks(
            packed, lambda like: like.new_empty(self.num_blocks, *like.shape[1:])
        )
        words = self.fields[0]
        assert words is not None
        self.device = words.device  # this includes the device's index, unlike `device`

    def _packed(self, groups: Groups) -> list[Tensor | None]:
        """Return the fields that kernels read for some outputs, in the order of `Groups`."""
        own = groups.codes, groups.offset_codes, groups.zeros
        has_groups = any(field is not None for field in own)
        packing = packing_for(self.layout, self.num_inputs, has_groups)
        assert packing is not None, "to be checked by `packing_for`"
        self.packing = packing
        numbers = groups.numbers.to(self.device)
        if self.layout.bits == 8:  # words hold unsigned numbers
            numbers = numbers.view(torch.uint8) ^ 128
        times = self.layout.group // packing.span if has_groups else 1

        def placed(field: Tensor | None, is_own: bool) -> Tensor | None:
            if field is None:
                return None
            on_device = field.to(self.device)
            if is_own:
                return _in_blocks(on_device.repeat_interleave(times, 1), packing.num_spans)
            return _in_blocks(on_device, packing.num_supers)

        return [
            _in_words(numbers, packing),
            placed(groups.scales, False),
            placed(groups.codes, True),
            placed(groups.offsets, False),
            placed(groups.offset_codes, True),
            placed(groups.zeros, True),
        ]

    def can_be_joined_to(self, other: GpuMatrix) -> bool:
        """Return whether another matrix with the same inputs can be appended to this one."""
        kinds = [
            [None if field is None else field.dtype for field in one.fields]
            for one in (self, other)
        ]
        is_alike = self.layout == other.layout and self.packing == other.packing
        return is_alike and kinds[0] == kinds[1] and self.num_outputs % OUTPUTS == 0

    def joined_to(self, other: GpuMatrix) -> GpuMatrix:
        """Return a matrix with another one's outputs appended."""
        whole = copy.copy(self)
        whole.num_outputs += other.num_outputs
        whole.num_blocks += other.num_blocks
        whole.fields = [
            None if one is None or more is None else torch.cat((one, more))
            for one, more in zip(self.fields, other.fields, strict=True)
        ]
        return whole

    @property
    def zero(self) -> int:
        """The number in words that stands for 0."""
        has_offsets = self.fields[3] is not None
        return (128 if self.layout.bits == 8 else 0) + (0 if has_offsets else self.layout.zero)

    def rows(self, outputs: Tensor) -> Tensor:
        """Return the weights of some outputs in float32, [outputs, inputs]."""
        packing, block, lane = self.packing, outputs // OUTPUTS, outputs % OUTPUTS
        words = self.fields[0]
        assert words is not None
        shifts = torch.arange(packing.places, device=self.device)[:, None] * packing.bits
        numbers = words[block, :, lane][:, :, None] >> shifts.int() & (1 << packing.bits) - 1
        parts = numbers.view(len(outputs), packing.num_spans, packing.span) - self.zero
        picked = [
            None if field is None else field[block, :, lane].float() for field in self.fields[1:]
        ]
        supers, codes, super_offsets, offset_codes, zeros = picked
        assert supers is not None
        scales = self._of_spans(supers, codes)
        if super_offsets is None:  # only the product rounds, whatever the type of the scales
            moved = parts.float() if zeros is None else parts - zeros[:, :, None]
            weights = moved * scales
        else:
            offsets = self._of_spans(super_offsets, offset_codes)
            weights = torch.addcmul(offsets, parts.float(), scales)
        return weights.flatten(1)[:, : self.num_inputs].contiguous()

    def _of_spans(self, supers: Tensor, codes: Tensor | None) -> Tensor:
        """Return the scales or offsets of spans, [outputs, spans, 1]."""
        wide = supers.repeat_interleave(self.packing.ratio, dim=1)[:, : self.packing.num_spans]
        return (wide if codes is None else wide * codes)[:, :, None]


def slice_size(num_inputs: int) -> int:
    """Return the preferred number of outputs in a slice of a matrix."""
    return max(1, _SLICE // num_inputs // OUTPUTS) * OUTPUTS


def _in_blocks(field: Tensor, count: int) -> Tensor:
    """Return [outputs, N] as [blocks, count, 128], padded with 0."""
    missing = count - field.shape[1], -len(field) % OUTPUTS
    padded = pad(field, (0, missing[0], 0, missing[1]))
    return padded.view(-1, OUTPUTS, count).transpose(1, 2).contiguous()


def _in_words(numbers: Tensor, packing: Packing) -> Tensor:
    """Return [outputs, inputs] numbers in 32-bit words, [blocks, chunks, 128, unit]."""
    missing = packing.num_chunks * packing.chunk - numbers.shape[1], -len(numbers) % OUTPUTS
    padded = pad(numbers, (0, missing[0], 0, missing[1]))
    parts = padded.view(-1, OUTPUTS, packing.num_chunks, packing.places, packing.unit)
    words = torch.zeros_like(parts[:, :, :, 0], dtype=torch.int32)
    for place in range(packing.places):
        words |= parts[:, :, :, place].int() << place * packing.bits
    return words.transpose(1, 2).contiguous()
