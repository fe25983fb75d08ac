"""Decoder layers of the Llama family, in few operations.

transformers' layers start about 60 operations each. In a step with few rows that takes as long as
reading the weights. These layers start a dozen; if their products are our own, one on a CPU and
nine on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from diffuspec.models.attention.interface import (
    Attention,
    HeadNorms,
    Heads,
    Projections,
    Scoring,
    attend_heads,
    attending,
    current_attention,
)
from diffuspec.models.attention.packed import PackedBatch
from diffuspec.models.kernels import operations
from diffuspec.models.kernels.decoder import (
    AttentionPieces,
    LayerStack,
    LayerWeights,
    Norms,
    Products,
)
from diffuspec.models.kernels.products import CpuProduct, FusedProduct
from diffuspec.models.layers.linear import FusedNorm, KernelLinear, Sibling
from diffuspec.models.tensor_parallel.collectives import Agree

_FAMILIES = frozenset(
    {"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"}
)
_MODELS = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)
_NUM_TRIED = 3  # rows in a trial
# Largest norm of the differences in a trial, relative to that of the outputs; rounding causes some.
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


class FusedDecoderLayer(nn.Module):
    """A layer of the Llama family over packed rows, [1, T, H]."""

    def __init__(self, layer: Any, scoring: Scoring) -> None:
        super().__init__()
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        self.input_layernorm: FusedNorm | nn.Identity = layer.input_layernorm
        self.post_attention_layernorm: FusedNorm = layer.post_attention_layernorm
        # transformers' models read this attribute
        self.attention_type = getattr(layer, "attention_type", None)
        qkv = layer.self_attn.q_proj.product
        self._qkv, self._gate_up = qkv.layer, layer.mlp.gate_proj.product.layer
        self._dim = layer.self_attn.head_dim
        num_heads, num_kv_heads, _ = (size // self._dim for size in qkv.sizes)
        self._num_heads = num_heads, num_kv_heads, num_kv_heads
        self._head_norms: HeadNorms | None = None
        if hasattr(layer.self_attn, "q_norm"):
            norms = layer.self_attn.q_norm, layer.self_attn.k_norm
            weights = torch.stack([norm.weight for norm in norms])
            self._head_norms = HeadNorms(weights, norms[0].epsilon)
        self._scoring = scoring
        self.parts = self._parts()
        self._as_one = None if self.parts is None else LayerStack([self.parts])

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: int | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **_: Any,
    ) -> Tensor:
        assert position_embeddings is not None
        rows, (cos, sin) = hidden_states[0], position_embeddings
        if self._as_one is not None and (pieces := _current_pieces()):
            return self._as_one(rows, cos[0], sin[0], pieces).unsqueeze(0)
        qkv = self._qkv(self.input_layernorm(rows))
        heads = Heads(qkv, cos[0], sin[0], self._num_heads, self._head_norms)
        attended = attend_heads(self.self_attn, heads, attention_mask, self._scoring)
        rows, normed = self._projected(rows, attended.flatten(1))
        return self._fed_forward(rows, normed).unsqueeze(0)

    def _projected(self, rows: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows plus their projected attention, and the norm of that."""
        layer, norm = self.self_attn.o_proj, self.post_attention_layernorm
        if (product := _fused_product(layer)) is None:
            return operations.norm_of_sum(rows, layer(attended), norm.weight, norm.epsilon)
        rows = product(attended, rows)
        return rows, norm(rows)

    def _fed_forward(self, rows: Tensor, normed: Tensor) -> Tensor:
        """Return rows plus what the MLP computes from their norms."""
        product = _fused_product(self._gate_up)
        gated = product.gated(normed) if product else operations.gate(self._gate_up(normed))
        product = _fused_product(self.mlp.down_proj)
        return product(gated, rows) if product else rows + self.mlp.down_proj(gated)

    def _parts(self) -> LayerWeights | None:
        """Return the parts of the layer if all of its products are our own."""
        layers = self._qkv, self.self_attn.o_proj, self._gate_up, self.mlp.down_proj
        products = [layer.product for layer in layers if isinstance(layer, KernelLinear)]
        own = [product for product in products if isinstance(product, CpuProduct)]
        if len(own) < len(layers):
            return None
        first, last = self.input_layernorm, self.post_attention_layernorm
        heads = self._head_norms
        norms = first, last, heads
        if len({norm.epsilon for norm in norms if isinstance(norm, FusedNorm | HeadNorms)}) > 1:
            return None
        return LayerWeights(
            Products(*own),
            Norms(
                first.weight if isinstance(first, FusedNorm) else None,
                last.weight,
                *(heads.weights if heads else ()),
            ),
            index=self.self_attn.layer_idx,
            num_heads=self._num_heads[0],
            num_kv_heads=self._num_heads[1],
            dim=self._dim,
            window=self._scoring.window,
            epsilon=last.epsilon,
            scaling=self._scoring.scaling,
        )


class FusedDecoder(nn.ModuleList):
    """All decoder layers of a model, run in one operation.

    A model iterates over a slice of its layers. If nothing needs the values between layers, the
    slice contains only this operation.
    """

    def __init__(self, layers: Sequence[FusedDecoderLayer], parts: Sequence[LayerWeights]) -> None:
        super().__init__(layers)
        self._as_one = LayerStack(parts)

    @property
    def is_one(self) -> bool:
        """Return whether the running forward can go through all layers at once."""
        layers: Iterable[Any] = self._modules.values()
        return _current_pieces() is not None and not any(one._forward_hooks for one in layers)

    def __getitem__(self, index: Any) -> Any:
        layers = list(self._modules.values())
        return [self.decode] if index == slice(None, len(layers)) and self.is_one else layers[index]

    def decode(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: Any
    ) -> Tensor:
        """Return the rows after the last layer, [1, T, H]; angles are [1, T, dim]."""
        (cos, sin), pieces = position_embeddings, _current_pieces()
        assert pieces is not None
        return self._as_one(hidden_states[0], cos[0], sin[0], pieces).unsqueeze(0)


class FusedForward:
    """The forward of a causal LM whose decoder layers are a single operation.

    transformers' own forward goes through a dozen wrappers, which take as long as a layer.
    """

    def __init__(self, model: Any, layers: FusedDecoder) -> None:
        self._forward, self._head = model.forward, model.lm_head
        self._base, self._layers = model.base_model, layers

    def __call__(self, **inputs: Any) -> Any:
        base, layers = self._base, self._layers
        if base._forward_hooks or not layers.is_one:
            return self._forward(**inputs)
        embedded = base.embed_tokens(inputs["input_ids"])
        angles = base.rotary_emb(embedded, position_ids=inputs["position_ids"])
        kept = layers.decode(embedded, angles).index_select(1, inputs["logits_to_keep"])
        return SimpleNamespace(logits=self._head(base.norm(kept)))


def use_fused_forward(model: Any) -> None:
    """Replace the forward of a causal LM whose decoder layers have been fused into one."""
    layers = getattr(model.base_model, "layers", None)
    if type(model).__name__ in _MODELS and isinstance(layers, FusedDecoder):
        model.forward = FusedForward(model, layers)


def _fused_product(layer: nn.Module) -> FusedProduct | None:
    """Return a layer's product if it adds and gates."""
    product = layer.product if isinstance(layer, KernelLinear) else None
    return product if isinstance(product, FusedProduct) else None


def _current_pieces() -> AttentionPieces | None:
    attention = current_attention()
    return attention.pieces if isinstance(attention, PackedBatch) else None


@torch.inference_mode()
def use_fused_layers(base: Any, agree: Agree = bool) -> None:
    """Fuse the `layers` of a model whose linear layers and norms have been replaced.

    Layers of other families, or with other computations, are left unchanged. `base` is the model
    below the head; its `rotary_emb` returns the angles of positions. Ranks of a model `agree`.
    """
    layers = getattr(base, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        return
    for index, layer in enumerate(layers):
        if type(layer).__name__ in _FAMILIES and agree(_has_known_parts(layer)):
            replacement = _fused(layer, base, agree)
            if replacement is not None:
                layers[index] = replacement
    replaced = [layer for layer in layers if isinstance(layer, FusedDecoderLayer)]
    parts = [layer.parts for layer in replaced if layer.parts is not None]
    if len(parts) == len(layers):
        base.layers = FusedDecoder(replaced, parts)


def _has_known_parts(layer: Any) -> bool:
    attention, mlp = layer.self_attn, layer.mlp
    first = attention.q_proj, mlp.gate_proj
    norms = [layer.post_attention_layernorm]
    if not isinstance(layer.input_layernorm, nn.Identity):
        norms.append(layer.input_layernorm)
    heads = [getattr(attention, name) for name in ("q_norm", "k_norm") if hasattr(attention, name)]
    return (
        all(isinstance(part, Sibling) for part in first)
        and all(isinstance(norm, FusedNorm) for norm in norms + heads)
        and len({norm.epsilon for norm in heads}) <= 1
        and layer.self_attn.config.hidden_act == "silu"
    )


def _fused(layer: Any, base: Any, agree: Agree) -> FusedDecoderLayer | None:
    """Return the replacement of a layer if it computes the same for random rows."""
    random = torch.Generator().manual_seed(0)
    like = layer.post_attention_layernorm.weight
    rows = torch.randn(1, _NUM_TRIED, len(like), generator=random).to(like)
    positions = torch.arange(1, 1 + _NUM_TRIED, device=like.device)[None]
    angles = base.rotary_emb(rows, positions)
    if angles[0].shape[-1] != layer.self_attn.head_dim:
        return None
    with attending(_TrialAttention()) as attention:
        expected = layer(
            rows, attention_mask=None, position_ids=positions, position_embeddings=angles
        )
        assert attention.scoring is not None
        if not attention.scoring.is_plain:
            return None
        replacement = FusedDecoderLayer(layer, attention.scoring)
        differences = (replacement(rows, position_embeddings=angles) - expected).float()
    is_same = differences.norm() <= _TOLERANCES[like.dtype] * expected.float().norm()
    return replacement if agree(bool(is_same)) else None


class _TrialAttention(Attention):
    """A stand-in for attention: each row gets its own value, scaled by its query and a key."""

    def __init__(self) -> None:
        self.scoring: Scoring | None = None

    def attend(self, layer: int, rows: Projections, scoring: Scoring) -> Tensor:
        query, key, value = rows
        self.scoring = scoring
        copies = query.shape[0] // key.shape[0]
        key, value = (x.repeat_interleave(copies, dim=0) for x in (key, value))
        scores = (query * key.roll(1, dims=1)).sum(-1, keepdim=True).float().sigmoid()
        return (value * scores.to(value.dtype)).transpose(0, 1)
