"""What can be known of a model directory before its weights are read."""

from __future__ import annotations

import json
import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from transformers import CONFIG_MAPPING

from diffuspec.core.errors import ModelLoadError, OutOfMemoryError
from diffuspec.core.params import MAX_DRAFT_TOKENS

DiffusionAttention = Literal["full", "block_causal"]

_DREAM_MODEL_TYPE = "Dream"
_MAX_HEADER_BYTES = 100_000_000  # the safetensors format's own limit


@dataclass(frozen=True, slots=True)
class DiffusionSettings:
    """What makes a causal LM's weights a diffusion LM."""

    mask_token_id: int
    attention: DiffusionAttention


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A directory whose config.json and safetensors headers have been read and make sense."""

    path: Path
    config: dict[str, Any]
    num_weights: int  # over all tensors

    @property
    def is_dream(self) -> bool:
        """Dream is Qwen2 under another name: same tensors, full attention."""
        return bool(self.config.get("model_type") == _DREAM_MODEL_TYPE)

    @property
    def is_diffusion(self) -> bool:
        """Whether its weights predict masked tokens and not the next one."""
        return self.is_dream or "diffusion_attention" in self.config

    @property
    def max_positions(self) -> int:
        """Return the longest sequence it was trained for. Raises ModelLoadError."""
        name = _own_name(self.config["model_type"], "max_position_embeddings")
        value = self.config.get(name)
        if not isinstance(value, int) or value < 2:
            raise ModelLoadError(f"{self.path}: {name} must be 2 or more, got {value!r}")
        return value

    @property
    def diffusion(self) -> DiffusionSettings:
        """Return how to draft with it. Raises ModelLoadError when it is no diffusion LM."""
        mask_token_id = self.config.get("mask_token_id")
        if not isinstance(mask_token_id, int):
            raise ModelLoadError(
                f"{self.path} is not a diffusion LM: its config.json has no mask_token_id"
            )
        attention = "full" if self.is_dream else self.config.get("diffusion_attention")
        for known in get_args(DiffusionAttention):
            if attention == known:
                return DiffusionSettings(mask_token_id, known)
        raise ModelLoadError(
            f"{self.path}: config.json must have diffusion_attention 'full' or 'block_causal', "
            f"got {attention!r}"
        )

    def check_room_for_drafts(self) -> None:
        """Raises ModelLoadError if the longest draft does not fit after a token of a prefix."""
        if self.max_positions <= MAX_DRAFT_TOKENS:
            raise ModelLoadError(
                f"{self.path} was trained for {self.max_positions} positions; it must be more than "
                f"{MAX_DRAFT_TOKENS}, the tokens of the longest draft"
            )


def inspect_checkpoint(path: Path) -> Checkpoint:
    """Read config.json and the headers of the weights. Raises ModelLoadError."""
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise ModelLoadError(f"model directory {path} {what}")
    config = read_json(path, "config.json")
    if not isinstance(config.get("model_type"), str):
        raise ModelLoadError(f"{path}: config.json has no model_type")
    files = _weight_files(path)
    return Checkpoint(path, config, sum(_num_weights(file) for file in files))


def read_json(path: Path, name: str) -> dict[str, Any]:
    """Read a JSON object from a model directory. Raises ModelLoadError."""
    try:
        data = json.loads((path / name).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelLoadError(f"{path} has no {name}: not a model directory") from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot read {name}: {error}") from error
    if not isinstance(data, dict):
        raise ModelLoadError(f"{path}: {name} must be a JSON object")
    return data


def check_fits(path: Path, weight_bytes: int, cache_bytes: int, device: torch.device) -> None:
    """Raises OutOfMemoryError when weights and cache together exceed what the device has free."""
    available = _available_bytes(device)
    if weight_bytes + cache_bytes > available:
        raise OutOfMemoryError(
            f"{path} needs {_gib(weight_bytes)} for weights and {_gib(cache_bytes)} for its cache, "
            f"but {device} has {_gib(available)} free: use a smaller dtype, lower max_model_len "
            "or max_sequences, or spread it over more devices"
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_free_bytes_of_machine(), _free_bytes_of_container())


def _free_bytes_of_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if "MemAvailable" in line)
    except (OSError, StopIteration):  # no Linux: take what is installed
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _free_bytes_of_container() -> int:
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        lines = (group / "memory.stat").read_text().splitlines()
        return limit - used + sum(int(x.split()[1]) for x in lines if x.startswith("inactive_file"))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return sys.maxsize


def _own_name(model_type: str, key: str) -> str:
    """Return what config.json calls a setting: some families have names of their own."""
    if model_type not in CONFIG_MAPPING:
        return key
    return str(CONFIG_MAPPING[model_type].attribute_map.get(key, key))


def _weight_files(path: Path) -> list[Path]:
    if (path / "model.safetensors.index.json").exists():
        weight_map = read_json(path, "model.safetensors.index.json").get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelLoadError(f"{path}: model.safetensors.index.json has no weight_map")
        files = [path / str(name) for name in sorted(set(weight_map.values()))]
        for file in files:
            if not file.is_file():
                raise ModelLoadError(f"{path}: {file.name} is named in the index but missing")
        return files
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    if any(path.glob("*.bin")) or any(path.glob("*.pt")):
        raise ModelLoadError(
            f"{path} has pickled weights only, which are never loaded: convert them to safetensors"
        )
    raise ModelLoadError(f"{path} has no model.safetensors")


def _num_weights(file: Path) -> int:
    """Return how many numbers a safetensors file holds, having checked that all of it is there."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MAX_HEADER_BYTES + 1
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise ModelLoadError(f"{file} is truncated or not a safetensors file")
        header = stream.read(length)
    try:
        tensors = json.loads(header)
        tensors.pop("__metadata__", None)
        end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
        count = sum(_product(tensor["shape"]) for tensor in tensors.values())
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelLoadError(f"{file} has a corrupt safetensors header: {error}") from error
    if 8 + length + end != size:
        raise ModelLoadError(
            f"{file} is truncated or corrupt: its header promises {8 + length + end} bytes, "
            f"it has {size}"
        )
    return count


def _product(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
