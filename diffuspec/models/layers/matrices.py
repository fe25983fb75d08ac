"""Quantised matrices as they are stored, in the layout of the device that is to multiply them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor

from diffuspec.models.kernels import quantized
from diffuspec.models.kernels.products import Int8Matrix
from diffuspec.models.kernels.quantized import Groups, Layout, QuantizedMatrix
from diffuspec.models.kernels.triton import matrix as on_gpu
from diffuspec.models.kernels.triton.matrix import GpuMatrix

AnyQuantized: TypeAlias = QuantizedMatrix | GpuMatrix
StoredMatrix: TypeAlias = AnyQuantized | Int8Matrix | Tensor  # a tensor of any type


def matrix_of(
    layout: Layout, shape: tuple[int, ...], slices: Iterable[Groups], device: torch.device
) -> AnyQuantized:
    """Return a matrix of slices of its outputs, each but the last of `slice_size` outputs."""
    if device.type == "cpu":
        return QuantizedMatrix(layout, shape, slices)
    return GpuMatrix(layout, shape, slices, device)


def slice_size(num_inputs: int, device: torch.device) -> int:
    """Return how many outputs are unpacked at a time."""
    if device.type == "cpu":
        return quantized.slice_size(num_inputs)
    return on_gpu.slice_size(num_inputs)


def moved(matrix: StoredMatrix, device: torch.device) -> StoredMatrix:
    """Return a matrix on a device; those that are quantised in groups are there already."""
    if isinstance(matrix, Int8Matrix):
        return Int8Matrix(*(field.to(device) for field in matrix))
    return matrix.to(device) if isinstance(matrix, Tensor) else matrix
