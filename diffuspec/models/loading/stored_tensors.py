"""Tensors in safetensors files: checked headers, and memory-mapped numbers."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffuspec.core.errors import ModelLoadError
from diffuspec.text.directory import check_is_file, check_is_no_pointer

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
# Files have at most 5 GB: with this many tensors, each would have 50 KB. Models with hundreds of
# experts in each layer have some thousands in a file.
_MAX_TENSORS = 100_000
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The location of a tensor in a file."""

    file: Path
    name: str
    type_name: str
    shape: tuple[int, ...]
    start: int  # offset of the tensor's bytes in the file
    num_bytes: int

    @property
    def num_numbers(self) -> int:
        return math.prod(self.shape)

    def read(self) -> Tensor:
        """Return its numbers, memory-mapped for as long as the tensor is held.

        Raises ModelLoadError.
        """
        if self.type_name not in _TYPES:
            raise ModelLoadError(
                f"{self.file}: {self.name} is stored as {self.type_name}, which is not supported; "
                f"{', '.join(_TYPES)} are"
            )
        dtype = _TYPES[self.type_name]
        if self.num_bytes != self.num_numbers * dtype.itemsize:
            raise ModelLoadError(
                f"{self.file} has a corrupt safetensors header: {self.name} has {self.num_bytes} "
                f"bytes for {self.num_numbers} numbers of type {self.type_name}"
            )
        if not self.num_bytes:
            return torch.empty(self.shape, dtype=dtype)
        mapped = np.memmap(self.file, np.uint8, "c", self.start, (self.num_bytes,))
        is_aligned = self.start % dtype.itemsize == 0
        return (
            torch.from_numpy(mapped if is_aligned else mapped.copy()).view(dtype).view(self.shape)
        )


def stored_tensors(file: Path) -> list[StoredTensor]:
    """Read the header of a safetensors file. Raises ModelLoadError if the file is damaged."""
    check_is_file(file)
    check_is_no_pointer(file)
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MAX_HEADER_BYTES + 1
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise ModelLoadError(f"{file} is truncated or not a safetensors file")
        header = stream.read(length)
    begin = 8 + length
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        if len(entries) > _MAX_TENSORS:
            raise ValueError(f"it names {len(entries)} tensors, more than {_MAX_TENSORS}")
        found = [_tensor(file, name, entry, begin) for name, entry in entries.items()]
        end = max((tensor.start + tensor.num_bytes for tensor in found), default=begin)
    except RecursionError as error:
        raise ModelLoadError(f"the safetensors header of {file} is nested too deeply") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelLoadError(f"{file} has a corrupt safetensors header: {error}") from error
    if end != size:
        raise ModelLoadError(
            f"{file} is truncated or corrupt: its header promises {end} bytes, it has {size}"
        )
    return found


def _tensor(file: Path, name: str, entry: Any, begin: int) -> StoredTensor:
    first, end = entry["data_offsets"]
    if not 0 <= first <= end:
        raise ValueError(f"{name} has bytes {first} to {end}")
    shape = tuple(int(size) for size in entry["shape"])
    return StoredTensor(file, name, str(entry["dtype"]), shape, begin + first, end - first)
