"""Tells whether ranks, maybe on several nodes, load the same model: checksums of their files."""

from __future__ import annotations

import zlib
from pathlib import Path

import torch

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.loading.checkpoint import weight_files
from diffuspec.models.tensor_parallel.collectives import all_equal

_NUM_BLOCKS = 64  # read of each file: another training run changes nearly all blocks
_BLOCK_BYTES = 1 << 12


def check_same_files(path: Path, device: torch.device) -> None:
    """Raise ModelLoadError on all ranks if one of them loads another model."""
    if not all_equal(_fingerprint(path), device):
        raise ModelLoadError(
            f"{path} differs from the directory of another rank: copy the same one to all nodes"
        )


def _fingerprint(path: Path) -> int:
    """Return a checksum of a directory's config.json and of blocks all over its weights."""
    checksum = zlib.crc32((path / "config.json").read_bytes())
    for file in weight_files(path):
        size = file.stat().st_size
        checksum = zlib.crc32(size.to_bytes(8, "little"), checksum)
        with file.open("rb") as weights:
            for offset in range(0, size, max(_BLOCK_BYTES, size // _NUM_BLOCKS)):
                weights.seek(offset)
                checksum = zlib.crc32(weights.read(_BLOCK_BYTES), checksum)
    return checksum
