"""The tensors of a GGUF file, read by the names that transformers' models give them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers.integrations.gguf.reader import GgufHeader, TensorInfo

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.loading.gguf_blocks import FORMATS, PLAIN_TYPES
from diffuspec.models.rows.quantized import Groups, QuantizedMatrix

ROPE_FACTORS = "rope_freqs.weight"  # by which the frequencies of rotary positions are divided

_SLICE = 1024  # outputs that are taken apart at a time
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


class GgufTensors:
    """The tensors of a file of the Llama family."""

    def __init__(self, path: Path, num_heads: int, num_kv_heads: int, is_llama: bool) -> None:
        """is_llama: queries and keys are stored with the halves of their heads interleaved."""
        header = GgufHeader.from_file(str(path))
        self._path, self._start = path, header.data_start
        self._infos = {info.name: info for info in header.tensors}
        self._heads = {"q_proj": num_heads, "k_proj": num_kv_heads} if is_llama else {}
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return _stored_name(name) in self._infos

    def plain(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Return a tensor of plain numbers, in the type it is stored in or another."""
        info = self._info(name)
        raw = torch.from_numpy(self._bytes(info)[self._order(name, info.shape[0])])
        found = raw.view(PLAIN_TYPES[info.ggml_type]).view(info.shape)
        return found if dtype is None else found.to(dtype)

    def is_plain(self, name: str) -> bool:
        """Whether a tensor has plain numbers. Raises ModelLoadError if it is of no known format."""
        kind = self._info(name).ggml_type
        if kind not in PLAIN_TYPES and kind not in FORMATS:
            known = ", ".join(one.name for one in FORMATS.values())
            raise ModelLoadError(
                f"{self._path}: {_stored_name(name)} is stored in a format (number {kind}) that is "
                f"not supported; {known}, F32, F16 and BF16 are, and `diffuspec model import` "
                "reads all that transformers reads"
            )
        return kind in PLAIN_TYPES

    def quantized(self, name: str) -> QuantizedMatrix:
        """Return a matrix that stays quantised."""
        info = self._info(name)
        return QuantizedMatrix(FORMATS[info.ggml_type].layout, info.shape, self._groups(name))

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises ModelLoadError unless a tensor has this shape."""
        found = self._info(name).shape
        if found != shape:
            raise ModelLoadError(
                f"{self._path}: {_stored_name(name)} has the shape {list(found)}, by the header "
                f"it would be {list(shape)}"
            )

    def check_all_read(self) -> None:
        """Raises ModelLoadError if a tensor was not asked for."""
        if left := sorted(set(self._infos) - self._read):
            raise ModelLoadError(
                f"{self._path}: {len(left)} tensors are of no use to its architecture: "
                + ", ".join(left[:3])
            )

    def _info(self, name: str) -> TensorInfo:
        stored = _stored_name(name)
        if stored not in self._infos:
            raise ModelLoadError(f"{self._path} has no {stored}")
        self._read.add(stored)
        return self._infos[stored]

    def _bytes(self, info: TensorInfo) -> np.ndarray:
        """Return the mapped bytes of a tensor, [outputs, bytes]; released with the array."""
        return np.memmap(
            self._path,
            np.uint8,
            "r",
            self._start + info.offset,
            (info.shape[0], info.nbytes // info.shape[0]),
        )

    def _groups(self, name: str) -> Iterator[Groups]:
        info = self._info(name)
        kind, order = FORMATS[info.ggml_type], self._order(name, info.shape[0])
        mapped = self._bytes(info)
        for start in range(0, len(order), _SLICE):
            raw = torch.from_numpy(mapped[order[start : start + _SLICE]])
            yield kind.split(raw.view(len(raw), -1, kind.num_bytes))

    def _order(self, name: str, num_outputs: int) -> np.ndarray:
        """Return where each of our outputs is stored."""
        order = np.arange(num_outputs)
        heads = self._heads.get(name.split(".")[-2]) if name.count(".") > 1 else None
        if heads is None:
            return order
        return order.reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def _stored_name(name: str) -> str:
    """Return the name in GGUF files of a parameter of transformers' models."""
    module, _, kind = name.rpartition(".")
    if module in _OUTER:
        return f"{_OUTER[module]}.{kind}"
    parts = module.split(".", 3)
    if len(parts) == 4 and parts[3] in _OF_LAYERS:
        return f"blk.{parts[2]}.{_OF_LAYERS[parts[3]]}.{kind}"
    return name
