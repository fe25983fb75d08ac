"""A model from a GGUF file, whose weights stay quantised as stored.

Tensors are looked up by their names in transformers' models.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.integrations.gguf.reader import GgufHeader, TensorInfo

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.kernels.quantized import Groups
from diffuspec.models.layers.quantized import AnyQuantized, matrix_of, slice_size
from diffuspec.models.loading.backend import Backend
from diffuspec.models.loading.gguf_blocks import FORMATS, PLAIN_TYPES, type_name
from diffuspec.models.loading.stored_model import check_can_stay_quantized, empty_model, fill

_ROPE_FACTORS = "rope_freqs.weight"  # divisors of the rotary frequencies

_OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_OF_LAYERS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_FAMILIES = ("llama", "qwen2", "qwen3")
_INSTEAD = "`diffuspec model import` makes a model directory of it, which can"


class _GgufTensors:
    """The tensors of a file of the Llama family."""

    def __init__(
        self,
        path: Path,
        num_heads: int,
        num_kv_heads: int,
        is_llama: bool,
        device: torch.device,
    ) -> None:
        """is_llama: queries and keys are stored with the halves of their heads interleaved.

        device: determines the layout of quantised matrices.
        """
        header = GgufHeader.from_file(str(path))
        self._path, self._start, self._device = path, header.data_start, device
        self._infos = {info.name: info for info in header.tensors}
        self._heads = {"q_proj": num_heads, "k_proj": num_kv_heads} if is_llama else {}
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return _stored_name(name) in self._infos

    def matrix(self, name: str, shape: tuple[int, int]) -> AnyQuantized | Tensor:
        """Return a weight as stored; plain ones are memory-mapped. Raises ModelLoadError."""
        info = self._info(name, shape)
        if info.ggml_type in PLAIN_TYPES:
            return self._plain(name, info)
        if info.ggml_type not in FORMATS:
            known = ", ".join(one.name for one in FORMATS.values())
            raise ModelLoadError(
                f"{self._path}: {_stored_name(name)} is stored as {type_name(info.ggml_type)}, "
                f"which is not supported; {known}, F32, F16 and BF16 are, and `diffuspec model "
                "import` reads all that transformers reads"
            )
        layout = FORMATS[info.ggml_type].layout
        return matrix_of(layout, shape, self._groups(name, info), self._device)

    def vector(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return an unquantised tensor in a type, in its own memory. Raises ModelLoadError."""
        info = self._info(name, shape)
        if info.ggml_type not in PLAIN_TYPES:
            raise ModelLoadError(
                f"{self._path}: {_stored_name(name)} is stored as {type_name(info.ggml_type)}, it "
                "must be F32, F16 or BF16"
            )
        return self._plain(name, info).to(dtype, copy=True)

    def check_all_read(self) -> None:
        """Raise ModelLoadError if a tensor was not used."""
        if left := sorted(set(self._infos) - self._read):
            raise ModelLoadError(
                f"{self._path}: {len(left)} tensors are of no use to its architecture: "
                + ", ".join(left[:3])
            )

    def _info(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """Return the location of a tensor of this shape. Raises ModelLoadError."""
        stored = _stored_name(name)
        if stored not in self._infos:
            raise ModelLoadError(f"{self._path} has no {stored}")
        self._read.add(stored)
        info = self._infos[stored]
        if info.shape != shape:
            raise ModelLoadError(
                f"{self._path}: {stored} has the shape {list(info.shape)}, by the header it would "
                f"be {list(shape)}"
            )
        return info

    def _plain(self, name: str, info: TensorInfo) -> Tensor:
        mapped, order = self._bytes(info), self._order(name)
        raw = torch.from_numpy(mapped if order is None else mapped[order])
        return raw.view(PLAIN_TYPES[info.ggml_type]).view(info.shape)

    def _bytes(self, info: TensorInfo) -> np.ndarray:
        """Return the mapped bytes of a tensor, [outputs, bytes]; released with the array."""
        return np.memmap(
            self._path,
            np.uint8,
            "c",
            self._start + info.offset,
            (info.shape[0], info.nbytes // info.shape[0]),
        )

    def _groups(self, name: str, info: TensorInfo) -> Iterator[Groups]:
        kind, order = FORMATS[info.ggml_type], self._order(name)
        mapped = self._bytes(info)
        step = slice_size(info.shape[1], self._device)
        for start in range(0, len(mapped), step):
            place = slice(start, start + step)
            raw = torch.from_numpy(mapped[place] if order is None else mapped[order[place]])
            yield kind.split(raw.to(self._device).view(len(raw), -1, kind.num_bytes))

    def _order(self, name: str) -> np.ndarray | None:
        """Return the stored index of each of our outputs, unless all are in order."""
        heads = self._heads.get(name.split(".")[-2]) if name.count(".") > 1 else None
        if heads is None:
            return None
        num_outputs = self._infos[_stored_name(name)].shape[0]
        return np.arange(num_outputs).reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def _stored_name(name: str) -> str:
    """Return the name in GGUF files of a parameter of transformers' models."""
    module, _, kind = name.rpartition(".")
    if module in _OUTER:
        return f"{_OUTER[module]}.{kind}"
    parts = module.split(".", 3)
    if len(parts) == 4 and parts[3] in _OF_LAYERS:
        return f"blk.{parts[2]}.{_OF_LAYERS[parts[3]]}.{kind}"
    return name


def read_gguf_model(path: Path, config: Any, backend: Backend, num_ranks: int) -> Any:
    """Return the causal LM of a file. Raises ModelLoadError."""
    if config.model_type not in _FAMILIES:
        raise ModelLoadError(
            f"{path}: GGUF files of {config.model_type} cannot be run as they are, those of "
            f"{', '.join(_FAMILIES)} can: {_INSTEAD}"
        )
    dtype, device = backend.dtype, backend.device
    check_can_stay_quantized(path, "a GGUF file", dtype, device, num_ranks, _INSTEAD)
    model = empty_model(path, config, dtype)
    is_llama = config.model_type == "llama"
    heads = config.num_attention_heads, config.num_key_value_heads
    tensors = _GgufTensors(path, *heads, is_llama, device)
    if _ROPE_FACTORS in tensors:
        frequencies = model.model.rotary_emb.inv_freq
        factors = tensors.vector(_ROPE_FACTORS, tuple(frequencies.shape), torch.float32)
        frequencies /= factors
    fill(model, tensors, backend)
    return model
