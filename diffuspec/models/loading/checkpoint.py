"""Checkpoint: facts about a model directory that are known before its weights are read."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from diffuspec.core.drafter_config import MIN_CONTEXT_TOKENS
from diffuspec.core.errors import ModelLoadError, OutOfMemoryError
from diffuspec.core.params import MAX_DRAFT_TOKENS
from diffuspec.models.loading.families import (
    FAMILIES,
    DiffusionFamily,
    DiffusionSettings,
    find_family,
    read_settings,
    why_refused,
)
from diffuspec.models.loading.quantization import MARKS, Quantization, read_quantization
from diffuspec.models.loading.stored_tensors import stored_tensors
from diffuspec.text.directory import check_directory, check_is_file, read_json
from diffuspec.text.gguf_directory import WEIGHTS, model_directory
from diffuspec.text.gguf_file import inspect_gguf

_DIFFUSION_KEYS = ("mask_token_id", "diffusion_attention")  # some families have their own mask
_WITH_ALIBI = ("bloom", "mpt")  # always; a falcon says so in its config.json
_MAX_LAYERS = 10_000
_STORED_MEMORY = 1.2  # memory per byte of files while quantised weights are being read
# Files that older directories have besides config.json, and the quantisation method of each.
_OLD_CONFIGS = {"quantize_config.json": "gptq", "quant_config.json": "awq"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model directory whose config.json and safetensors headers have been read and checked."""

    path: Path
    config: dict[str, Any]
    num_weights: int  # number of elements in all tensors
    gguf: Path | None = None  # GGUF file whose weights stay quantised
    quantization: Quantization | None = None  # format of safetensors whose weights stay quantised
    is_drawn: bool = False  # path is a config.json, and weights are drawn

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes that the weights take in memory, in a type or as stored."""
        if self.gguf is None and self.quantization is None:
            return self.num_weights * dtype.itemsize
        files = weight_files(self.path) if self.gguf is None else [self.gguf]
        return int(sum(file.stat().st_size for file in files) * _STORED_MEMORY)

    def check_is_plain(self, use: str) -> None:
        """Raise ModelLoadError if its weights are quantised, which `use` does not allow."""
        if self.gguf is not None or self.quantization is not None:
            raise ModelLoadError(
                f"{self.path} has quantised weights, but {use} needs a model directory in "
                "bfloat16, float16 or float32"
            )

    @property
    def family(self) -> DiffusionFamily | None:
        """Its entry in the table of diffusion LMs; None if it has none."""
        return find_family(self.config)

    @property
    def is_diffusion(self) -> bool:
        """Whether it was trained to fill masks rather than to continue text."""
        if self.family is not None:
            return True
        family = CONFIG_MAPPING[self.config["model_type"]]
        marks = [name for name in _DIFFUSION_KEYS if not hasattr(family, name)]
        return any(self.config.get(name) is not None for name in marks)

    @property
    def max_positions(self) -> int:
        """Length in tokens of the longest sequence it was trained for. Raises ModelLoadError."""
        model_type = self.config["model_type"]
        name = _own_name(model_type, "max_position_embeddings")
        value = self.config.get(name)
        if value is None:
            raise ModelLoadError(
                f"{self.path}: its config.json lacks {name}, without which {model_type} is not "
                "supported: add the number of positions that it was trained for"
            )
        if not isinstance(value, int) or value < 2:
            raise ModelLoadError(f"{self.path}: {name} must be 2 or more, got {value!r}")
        return value

    @property
    def diffusion(self) -> DiffusionSettings:
        """Settings for drafting, by its own files. Raises ModelLoadError if it is no diffusion
        LM.
        """
        return self.diffusion_with(None)

    def diffusion_with(self, block_size: int | None) -> DiffusionSettings:
        """Return the settings for drafting. block_size: the configured one, if any.

        Raises ModelLoadError if it is not a diffusion LM.
        """
        if self.gguf is not None:  # no key of such a file says that it is one
            raise ModelLoadError(
                f"{self.gguf} is a causal LM: a GGUF file can be a target, or a drafter of kind "
                "sps; a diffusion LM is a model directory, whose weights may be AWQ, GPTQ or "
                "compressed-tensors"
            )
        return read_settings(self.path, self.config, block_size)

    def context_tokens_with(self, size: int | None) -> int | None:
        """Return how many tokens of a prompt it reads as a drafter; None: all.

        size: the configured number, which takes precedence over the directory's. Raises
        ModelLoadError.
        """
        if size is None:
            size = self.config.get("draft_context_tokens")
        if size is not None and (not isinstance(size, int) or size < MIN_CONTEXT_TOKENS):
            raise ModelLoadError(
                f"{self.path}: draft_context_tokens must be {MIN_CONTEXT_TOKENS} or more, got "
                f"{size!r}"
            )
        return size

    def check_autoregressive(self, role: str, *, may_be_block_causal: bool = False) -> None:
        """Raise ModelLoadError if it is a diffusion LM; the message names its `role`.

        may_be_block_causal: accept a diffusion LM that continues text where there are no masks.
        """
        if may_be_block_causal and self.is_diffusion and self.diffusion.continues_text:
            return
        if self.is_diffusion:
            raise ModelLoadError(
                f"{self.path} is a diffusion LM: it can draft, but {role} must be a causal LM"
            )

    def check_room_for_drafts(self, block_size: int = 1) -> None:
        """Check that the longest draft fits after a prefix of one token. Raises ModelLoadError.

        block_size: the last block of a draft is padded to this size.
        """
        longest = MAX_DRAFT_TOKENS + block_size - 1
        if self.max_positions <= longest:
            raise ModelLoadError(
                f"{self.path} was trained for {self.max_positions} positions; it must be more than "
                f"{longest}, the tokens of the longest draft"
            )


def inspect_checkpoint(path: Path) -> Checkpoint:
    """Read config.json and the headers of the weights.

    Raises ModelLoadError if it is not a model directory, is damaged, or is not supported.
    """
    path = model_directory(path)
    config = inspect_config(path).config
    quantization = _read_quantization(path, config)
    if (path / "generation_config.json").exists():
        read_json(path, "generation_config.json")  # transformers would ignore a damaged file
    if (path / WEIGHTS).is_file():
        file = (path / WEIGHTS).resolve()
        return Checkpoint(path, config, inspect_gguf(file).num_weights, file)
    files = weight_files(path)
    tensors = [tensor for file in files for tensor in stored_tensors(file)]
    if quantization is not None and not any(tensor.name.endswith(MARKS) for tensor in tensors):
        raise ModelLoadError(
            f"{path}: its weights are quantised by {quantization.method}, says its config, but "
            f"none of its safetensors files has tensors that end in {', '.join(MARKS)}"
        )
    num_weights = sum(tensor.num_numbers for tensor in tensors)
    return Checkpoint(path, config, num_weights, None, quantization)


def inspect_config(path: Path) -> Checkpoint:
    """Read only config.json, as if there were no weights. Raises ModelLoadError."""
    check_directory(path)
    config = read_json(path, "config.json")
    check_family(path, config)
    _check_layers(path, config)
    return Checkpoint(path, config, 0)


def check_family(path: Path, config: dict[str, Any]) -> None:
    """Raise ModelLoadError for families that we cannot run."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelLoadError(f"{path}: config.json has no model_type")
    if model_type in _WITH_ALIBI or config.get("alibi"):
        raise ModelLoadError(
            f"{path}: model_type {model_type!r} is not supported: it biases its attention by the "
            "distance of tokens (ALiBi), and ours does not"
        )
    if find_family(config) is None and model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        if (reason := why_refused(path, config)) is not None:
            raise ModelLoadError(f"{path}: model_type {model_type!r} is not supported: {reason}")
        raise ModelLoadError(
            f"{path}: model_type {model_type!r} is not supported; supported are the causal LMs of "
            f"transformers {transformers.__version__}, as drafters those with mask_token_id and "
            f"diffusion_attention in config.json, and {_list_families()}"
        )


def _check_layers(path: Path, config: dict[str, Any]) -> None:
    """Raise ModelLoadError for a number of layers that would only fill the memory."""
    name = _own_name(config["model_type"], "num_hidden_layers")
    value = config.get(name)
    if isinstance(value, int) and value > _MAX_LAYERS:
        raise ModelLoadError(f"{path}: {name} must be at most {_MAX_LAYERS}, got {value!s:.40}")


def _read_quantization(path: Path, config: dict[str, Any]) -> Quantization | None:
    """Return how weights are quantised, if at all. Raises ModelLoadError."""
    for key in ("quantization_config", "compression_config"):
        if config.get(key) is not None:
            return read_quantization(f"{path}: {key} of config.json", config[key])
    for name, method in _OLD_CONFIGS.items():
        if (path / name).exists():
            return read_quantization(
                f"{path}: {name}", {"quant_method": method} | read_json(path, name)
            )
    return None


def _list_families() -> str:
    names = list(dict.fromkeys(family.name for family in FAMILIES.values()))
    return ", ".join(names[:-1]) + f" and {names[-1]}"


def check_fits(path: Path, weight_bytes: int, cache_bytes: int, device: torch.device) -> None:
    """Raise OutOfMemoryError if weights and cache exceed the device's free memory."""
    available = _available_bytes(device)
    if weight_bytes + cache_bytes > available:
        raise OutOfMemoryError(
            f"{path} needs {_gib(weight_bytes)} for weights and {_gib(cache_bytes)} for its cache, "
            f"but {device} has {_gib(available)} free: use a smaller dtype, lower cache_memory "
            "or max_sequences, or spread it over more devices"
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def memory_bytes(device: torch.device) -> int:
    """Return the memory of a GPU, or what of the machine's memory is free."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return _available_bytes(device)


def _available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_free_bytes_of_machine(), _free_bytes_of_container())


def _free_bytes_of_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if "MemAvailable" in line)
    except (OSError, StopIteration):  # not Linux: count all installed memory
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
    """Return a setting's key in the config.json of a family, such as n_positions for GPT-2."""
    if model_type not in CONFIG_MAPPING:
        return key
    return str(CONFIG_MAPPING[model_type].attribute_map.get(key, key))


def _own_file(path: Path, name: object) -> Path:
    """Return a file that the index names. Raises ModelLoadError if it is outside the directory."""
    parts = Path(name).parts if isinstance(name, str) else ()
    if not parts or ".." in parts or Path(*parts).is_absolute():
        raise ModelLoadError(
            f"{path}: model.safetensors.index.json names the file {name!r:.80}: names must be "
            "relative to the directory, without .."
        )
    return path.joinpath(*parts)


def weight_files(path: Path) -> list[Path]:
    """Return the safetensors files of a model directory. Raises ModelLoadError."""
    if (path / "model.safetensors.index.json").exists():
        weight_map = read_json(path, "model.safetensors.index.json").get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelLoadError(f"{path}: model.safetensors.index.json has no weight_map")
        files = [_own_file(path, name) for name in weight_map.values()]
        files = sorted(set(files))
        for file in files:
            if not file.is_file():
                check_is_file(file)
                raise ModelLoadError(f"{path}: {file.name} is named in the index but missing")
        whole = path / "model.safetensors"
        if whole.is_file() and whole not in files:
            raise ModelLoadError(
                f"{path} has model.safetensors beside an index of other files: remove what is stale"
            )
        return files
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    if shards := sorted(path.glob("model-*-of-*.safetensors")):
        raise ModelLoadError(
            f"{path} has {shards[0].name}, but no model.safetensors.index.json that names all such "
            "files: fetch it, too"
        )
    if any(path.glob("*.bin")) or any(path.glob("*.pt")):
        raise ModelLoadError(
            f"{path} has pickled weights only, which are never loaded: convert them to safetensors"
        )
    raise ModelLoadError(f"{path} has no model.safetensors")
