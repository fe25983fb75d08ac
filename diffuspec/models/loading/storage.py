"""Describes how a model's weights are stored and multiplied, without reading them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from transformers.integrations.gguf.reader import GgufHeader

from diffuspec.models.kernels import levels, operations
from diffuspec.models.kernels.triton.availability import is_available as has_gpu_kernels
from diffuspec.models.loading.checkpoint import Checkpoint, weight_files
from diffuspec.models.loading.gguf_blocks import FORMATS, PLAIN_TYPES, BlockFormat, type_name
from diffuspec.models.loading.stored_tensors import stored_tensors


def describe_weights(checkpoint: Checkpoint) -> Mapping[str, str]:
    """Describe the format, memory and kernels of a model's weights. Raises ConfigError."""
    levels.use_wanted_level()
    is_plain = checkpoint.gguf is None and checkpoint.quantization is None
    if checkpoint.gguf is not None:
        summary, num_bytes = _of_gguf(checkpoint)
    else:
        summary, num_bytes = _of_directory(checkpoint)
    return {
        "stored": summary,
        "in memory": _size(num_bytes) + (" as stored" if is_plain else ", quantised"),
        "on this CPU": _on_cpu(is_plain),
        "on a GPU": _on_gpu(is_plain),
    }


def _size(num_bytes: int) -> str:
    gibibytes = num_bytes / 2**30
    return f"{gibibytes:.1f} GiB" if gibibytes >= 1 else f"{1024 * gibibytes:.1f} MiB"


def _of_gguf(checkpoint: Checkpoint) -> tuple[str, int]:
    """Return the formats in a GGUF file, and the bytes that its weights take in memory."""
    counts: Counter[int] = Counter()
    for info in GgufHeader.from_file(str(checkpoint.gguf)).tensors:
        counts[info.ggml_type] += int(torch.Size(info.shape).numel())
    names, num_bytes = [], 0.0
    for kind, count in counts.most_common():
        share = f"{100 * count / counts.total():.1f} %"
        if kind in FORMATS:
            names.append(f"{FORMATS[kind].name} {share}")
            num_bytes += count * _bytes_of_weight(FORMATS[kind])
        elif kind in PLAIN_TYPES:
            names.append(f"{str(PLAIN_TYPES[kind]).removeprefix('torch.')} {share}")
            num_bytes += count * PLAIN_TYPES[kind].itemsize
        else:
            names.append(f"{type_name(kind)}, which is refused, {share}")
    return f"GGUF, {_millions(counts.total())}: {', '.join(names)}", int(num_bytes)


def _bytes_of_weight(form: BlockFormat) -> float:
    """Return the bytes per weight in our layout, including its share of scales."""
    empty = torch.zeros(1, 1, form.num_bytes, dtype=torch.uint8)
    numbers, *fields = form.split(empty)
    num_bytes = sum(field.nbytes for field in fields if field is not None)
    return (numbers.numel() * form.layout.bits / 8 + num_bytes) / form.num_inputs


def _of_directory(checkpoint: Checkpoint) -> tuple[str, int]:
    """Return how the tensors of a directory are stored, and their bytes."""
    tensors = [one for file in weight_files(checkpoint.path) for one in stored_tensors(file)]
    num_bytes = sum(tensor.num_bytes for tensor in tensors)
    if checkpoint.quantization is not None:
        return checkpoint.quantization.summary, num_bytes
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[tensor.type_name] += tensor.num_numbers
    names = ", ".join(name for name, _ in counts.most_common())
    return f"{_millions(counts.total())}: {names}", num_bytes


def _millions(num_weights: int) -> str:
    return f"{num_weights / 1e6:,.1f} million"


def _on_cpu(is_plain: bool) -> str:
    if not operations.is_available:
        return (
            "torch, as diffuspec's kernels were not compiled" if is_plain else "refused: no kernels"
        )
    return f"diffuspec's products for {levels.describe()}"


def _on_gpu(is_plain: bool) -> str:
    kernels = "diffuspec's products in Triton" + ", cuBLAS for prompts" * is_plain
    if not torch.cuda.is_available():
        return f"{kernels} (there is none here)"
    if has_gpu_kernels():
        return kernels
    return "torch: Triton compiles no kernels here" if is_plain else "refused: no Triton here"
