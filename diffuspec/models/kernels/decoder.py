"""Decoder layers of the Llama family as one operation, using `CpuProduct`s."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffuspec.models.kernels import operations
from diffuspec.models.kernels.products import CpuProduct, Matrix
from diffuspec.models.kernels.visible_columns import VisibleColumns

if operations.is_available:
    from diffuspec.models.kernels import _cpu


class _Layer(ctypes.Structure):
    """See cpu/layer.h."""

    _fields_ = (
        ("input_norm", ctypes.c_void_p),
        ("output_norm", ctypes.c_void_p),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("qkv", Matrix),
        ("output", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("index", ctypes.c_int),
        ("num_heads", ctypes.c_int),
        ("num_kv_heads", ctypes.c_int),
        ("dim", ctypes.c_int),
        ("window", ctypes.c_int),
        ("epsilon", ctypes.c_float),
        ("scaling", ctypes.c_float),
    )


class _Piece(ctypes.Structure):
    """See cpu/layer.h."""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("layer_stride", ctypes.c_int64),
        ("page_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("has_transposed_keys", ctypes.c_int64),
        ("pages", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("columns", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("first_row", ctypes.c_int),
        ("num_rows", ctypes.c_int),
        ("start", ctypes.c_int),
        ("base", ctypes.c_int),
    )


class PageMemory(NamedTuple):
    """Where kernels find the pages of a cache."""

    keys: int  # address of layer 0's keys
    values: int
    layer_stride: int  # bytes between layers
    page_stride: int  # numbers between pages
    head_stride: int  # numbers between heads
    has_transposed_keys: bool  # see `operations.attend`


class AttentionPieces:
    """The cache columns that the rows of a forward see, in all layers."""

    def __init__(
        self,
        memory: PageMemory,
        segments: Sequence[tuple[NDArray[np.int32], Sequence[VisibleColumns], int]],
    ) -> None:
        """Each segment has its sequence's pages, its rows and their number."""
        self._owners = [parts[:2] for parts in segments]  # own the arrays to which pieces point
        pieces, first = [], 0
        for pages, rows, num_rows in segments:
            table = pages.__array_interface__["data"][0]
            for part in rows:
                row = part.first_row
                place = first + row, part.num_rows, part.start + row, part.base
                pieces.append(_Piece(*memory, table, *part.addresses, *place))
            first += num_rows
        self.count = len(pieces)
        self._pieces = (_Piece * self.count)(*pieces)
        self.address = ctypes.addressof(self._pieces)


class Products(NamedTuple):
    """The products of a layer."""

    qkv: CpuProduct
    output: CpuProduct
    gate_up: CpuProduct
    down: CpuProduct


class Norms(NamedTuple):
    """The weights of a layer's norms; None for a missing norm, usually those of heads."""

    input: Tensor | None
    output: Tensor
    query: Tensor | None = None
    key: Tensor | None = None


class LayerWeights:
    """A layer that computes the same as `FusedDecoderLayer`."""

    def __init__(
        self,
        products: Products,
        norms: Norms,
        *,
        index: int,
        num_heads: int,
        num_kv_heads: int,
        dim: int,
        window: int | None,
        epsilon: float,
        scaling: float,
    ) -> None:
        """window and epsilon are those of `operations`; index: the layer's index."""
        self.owners = products, norms  # owners of the memory to which the structure points
        self.structure = _Layer(
            *(None if norm is None else norm.data_ptr() for norm in norms),
            *(product.matrix for product in products),
            index,
            num_heads,
            num_kv_heads,
            dim,
            window or 0,
            epsilon,
            scaling,
        )


class LayerStack:
    """Successive layers, computed in one call to the same bits as one by one."""

    def __init__(self, layers: Sequence[LayerWeights]) -> None:
        self._owners = [layer.owners for layer in layers]
        self._layers = (_Layer * len(layers))(*(layer.structure for layer in layers))
        self._address = ctypes.addressof(self._layers)

    def __call__(self, rows: Tensor, cos: Tensor, sin: Tensor, pieces: AttentionPieces) -> Tensor:
        """Return the outputs of rows [T, H], all of which are in `pieces`; angles are [T, dim]."""
        rows, outputs = rows.contiguous(), torch.empty_like(rows)
        _cpu.decode(
            operations.TYPES[rows.dtype],
            torch.get_num_threads(),
            self._address,
            len(self._layers),
            rows.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            outputs.data_ptr(),
            len(rows),
            pieces.address,
            pieces.count,
        )
        return outputs
