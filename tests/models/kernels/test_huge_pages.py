"""Tensors in huge pages hold their numbers, whatever others are made."""

from __future__ import annotations

import errno
import mmap

import pytest
import torch

from diffuspec.models.kernels import huge_pages
from diffuspec.models.kernels.huge_pages import empty, zeros


def test_small_tensors_share_a_chunk_without_overlapping() -> None:
    tensors = [torch.full((3, 5 + i), i, dtype=torch.int8) for i in range(4)]
    tensors.append(torch.arange(6.0).view(2, 3).T)
    copies = [empty(tensor.shape, tensor.dtype).copy_(tensor) for tensor in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        assert copy.dtype == tensor.dtype and torch.equal(copy, tensor)
        assert copy.data_ptr() % 64 == 0


def test_a_tensor_may_be_larger_than_a_chunk() -> None:
    large = torch.ones(40 << 20, dtype=torch.uint8)
    assert int(empty(large.shape, large.dtype).copy_(large).sum()) == len(large)


def test_a_tensor_may_have_no_numbers() -> None:
    assert empty((0, 4), torch.float32).shape == (0, 4)


def test_zeros_have_memory_of_their_own() -> None:
    first, second = zeros((3, 5), torch.bfloat16), zeros((3, 5), torch.bfloat16)
    first.fill_(1)
    assert second.shape == (3, 5) and second.dtype == torch.bfloat16
    assert not second.any()


def test_a_kernel_without_huge_pages_gives_usual_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Memory)
    assert not zeros((3, 5), torch.float32).any()


def test_zeros_are_zeros_on_kernels_that_provide_no_memory_in_advance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(huge_pages, "_MADV_POPULATE_WRITE", -1)
    assert not zeros((3, 5), torch.float32).any()
