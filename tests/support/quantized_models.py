"""Tiny models stored as AWQ, GPTQ and compressed-tensors, beside the weights that they stand for.

Numbers are packed here by the formats' own definitions, or by the package compressed-tensors.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from compressed_tensors.compressors.naive_quantized import IntQuantizationCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.checkpoints import save_target

Tensors: TypeAlias = dict[str, Tensor]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of successive outputs in a word
_SHAPE = {"hidden_size": 128, "intermediate_size": 256, "initializer_range": 0.15}


@dataclass(frozen=True)
class Format:
    """How linear layers are stored."""

    config: Mapping[str, Any]  # quantization_config
    store: Callable[[Tensor], tuple[Tensors, Tensor]]  # what stands for a weight, and its numbers


def save_quantized(path: Path, form: Format, family: str = "llama", **config: Any) -> Path:
    """Save a random model with quantised layers. Returns a directory of the same in float32."""
    plain = save_target(path.parent / f"{path.name}-plain", family, **_SHAPE | config)
    quantize(plain, path, form)
    return plain


def quantize(plain: Path, path: Path, form: Format) -> None:
    """Save a directory's model with quantised layers, and the same in float32 in its place."""
    shutil.copytree(plain, path)
    weights = {name: one.bfloat16() for name, one in load_file(plain / "model.safetensors").items()}
    stored: Tensors = {}
    for name, weight in weights.items():
        if not name.endswith("_proj.weight"):
            stored[name] = weight
            continue
        tensors, weights[name] = form.store(weight.float())
        layer = name.removesuffix(".weight")
        stored |= {f"{layer}.{end}": one.contiguous() for end, one in tensors.items()}
    meta = {"format": "pt"}
    save_file({name: one.float() for name, one in weights.items()}, plain / FILE, meta)
    save_file(stored, path / FILE, meta)
    edit_quantization(path, form.config)


FILE = "model.safetensors"


def edit_quantization(path: Path, config: Mapping[str, Any]) -> None:
    """Set the quantization_config of a directory."""
    data = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(data | {"quantization_config": config}))


def _rounded(weight: Tensor, group: int, bits: int, is_symmetric: bool) -> tuple[Tensor, ...]:
    """Return numbers without signs, [outputs, inputs], scales and zeros, [outputs, groups]."""
    most = 2**bits - 1
    parts = weight.view(len(weight), -1, group)
    if is_symmetric:
        scales = (parts.abs().amax(2) / (2 ** (bits - 1) - 1)).half()
        zeros = torch.full_like(scales, 2 ** (bits - 1))
    else:
        scales = ((parts.amax(2) - parts.amin(2)) / most).half()
        zeros = (-parts.amin(2) / scales.float()).round().clamp(1, most)
    numbers = (parts / scales.float()[:, :, None] + zeros[:, :, None].float()).round()
    return numbers.clamp(0, most).int().flatten(1), scales, zeros.int()


def _weight(numbers: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    parts = numbers.view(*scales.shape, -1)
    return ((parts - zeros[:, :, None]) * scales.float()[:, :, None]).flatten(1)


def packed(numbers: Tensor, bits: int, order: Sequence[int] | None = None) -> Tensor:
    """Return words of 32 bits of the last dimension's numbers, the first of an order lowest."""
    count = 32 // bits
    parts = numbers.long().view(*numbers.shape[:-1], -1, count)
    words = sum(parts[..., one] << bits * place for place, one in enumerate(order or range(count)))
    assert isinstance(words, Tensor)
    return torch.where(words < 2**31, words, words - 2**32).int()


def _store_awq(group: int) -> Callable[[Tensor], tuple[Tensors, Tensor]]:
    def store(weight: Tensor) -> tuple[Tensors, Tensor]:
        numbers, scales, zeros = _rounded(weight, group, 4, False)
        stored = {
            "qweight": packed(numbers.T, 4, AWQ_ORDER),
            "qzeros": packed(zeros.T, 4, AWQ_ORDER),
            "scales": scales.T,
        }
        return stored, _weight(numbers, scales, zeros)

    return store


def _store_gptq(
    group: int, bits: int, is_symmetric: bool, shift: int
) -> Callable[[Tensor], tuple[Tensors, Tensor]]:
    def store(weight: Tensor) -> tuple[Tensors, Tensor]:
        num_inputs = weight.shape[1]
        size = num_inputs if group == -1 else group
        numbers, scales, zeros = _rounded(weight, size, bits, is_symmetric)
        stored = {
            "qweight": packed(numbers, bits).T,
            "qzeros": packed(zeros.T - shift, bits),
            "scales": scales.T,
            "g_idx": (torch.arange(num_inputs) // size).int(),
            "bias": torch.zeros(len(weight)).half(),  # as older programs write it for every layer
        }
        return stored, _weight(numbers, scales, zeros)

    return store


def _store_compressed(
    weights: QuantizationArgs, compressor: Any
) -> Callable[[Tensor], tuple[Tensors, Tensor]]:
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)

    def store(weight: Tensor) -> tuple[Tensors, Tensor]:
        size = weights.group_size or weight.shape[1]
        _, scales, zeros = _rounded(weight, size, weights.num_bits, bool(weights.symmetric))
        state = {"weight": weight, "weight_scale": scales.bfloat16()}
        if not weights.symmetric:
            state["weight_zero_point"] = (zeros - 2 ** (weights.num_bits - 1)).to(torch.int8)
        stored = compressor.compress(state, scheme)
        exact = stored | {"weight_scale": stored["weight_scale"].float()}
        return stored, compressor.decompress(exact, scheme)["weight"]

    return store


def _compressed(form: str, inputs: dict[str, Any] | None = None, **arguments: Any) -> Format:
    weights = QuantizationArgs(**arguments)
    group = {
        "targets": ["Linear"],
        "weights": weights.model_dump(),
        "input_activations": inputs,
        "output_activations": None,
    }
    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }
    is_packed = form == "pack-quantized"
    compressor = PackedQuantizationCompressor if is_packed else IntQuantizationCompressor
    return Format(config, _store_compressed(weights, compressor))


def _gptq(bits: int, group: int, is_symmetric: bool, form: str = "gptq") -> Format:
    shift = 1 if form == "gptq" else 0
    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": False,
        "sym": is_symmetric,
        "checkpoint_format": form,
    }
    return Format(config, _store_gptq(group, bits, is_symmetric, shift))


def _awq(group: int) -> Format:
    config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "version": "gemm",
        "zero_point": True,
        "modules_to_not_convert": None,
    }
    return Format(config, _store_awq(group))


ROUNDED_INPUTS = {
    "num_bits": 8,
    "type": "int",
    "strategy": "token",
    "dynamic": True,
    "symmetric": True,
    "group_size": None,
}
FORMATS = {
    "AWQ": _awq(128),
    "AWQ, groups of 32": _awq(32),
    "GPTQ": _gptq(4, 128, True),
    "GPTQ, zeros, groups of 64": _gptq(4, 64, False),
    "GPTQ 2, zeros": _gptq(4, 128, False, "gptq_v2"),
    "GPTQ, 8 bits, one group": _gptq(8, -1, True),
    "GPTQ, 8 bits, zeros": _gptq(8, 32, False),
    "W4A16": _compressed("pack-quantized", num_bits=4, strategy="group", group_size=128),
    "W4A16, zeros": _compressed(
        "pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=False
    ),
    "W4A16, by channel": _compressed("pack-quantized", num_bits=4, strategy="channel"),
    "W8A16": _compressed("pack-quantized", num_bits=8, strategy="group", group_size=128),
    "W8A16, int8": _compressed("int-quantized", num_bits=8, strategy="channel"),
    "W8A16, int8, zeros": _compressed(
        "int-quantized", num_bits=8, strategy="channel", symmetric=False
    ),
}
W8A8 = _compressed("int-quantized", ROUNDED_INPUTS, num_bits=8, strategy="channel")
