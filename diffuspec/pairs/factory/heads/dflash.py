"""Trains a DFlash drafter, which guesses blocks after random places of answers.

It starts from some of the target's own layers. Each row of a block learns the token at its
position, half from the answer and half from the target's probabilities; later rows count less,
since they only matter if all earlier ones were right.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import Qwen3Config

from diffuspec.models.attention.interface import Attention, Projections, Scoring
from diffuspec.models.heads.checkpoint import SPECULATORS
from diffuspec.models.heads.dflash import DFlashModel, DFlashSettings, default_layer_ids
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.pairs.factory.blocks import Blocks, place_blocks
from diffuspec.pairs.factory.heads.learner import Rows, right_tokens
from diffuspec.pairs.factory.loss import Head, in_slices

ROWS_PER_ANSWER_TOKEN = 2.0  # rows of blocks for each answer token
LIKELY_SHARE = 0.5  # weight of the target's probabilities in the loss
GIVEN_SHARE = 0.2  # share of batches whose blocks begin with several known tokens
PROBES = 6  # drafts measured in each answer


class DFlashLearner:
    """A Learner: a drafter that starts from some of the target's layers."""

    def __init__(
        self,
        target: Any,
        layers: TargetLayers,
        settings: DFlashSettings,
        kept: Sequence[int],
        token_ids: torch.Tensor,
    ) -> None:
        """kept: indices of the target's layers. token_ids [B, N]: examples that show its states."""
        self._layers = layers
        self._settings = settings
        self._target_config = target.config
        self.module = DFlashModel(settings)
        start_from_layers(self.module.to(layers.device), target, kept, token_ids)

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        return self._settings.target_layer_ids

    def config(self) -> dict[str, Any]:
        """Return the configuration as vLLM's speculators have it, which `vllm serve` reads."""
        settings = self._settings
        model: dict[str, Any] = settings.model.to_diff_dict()
        model.pop("_attn_implementation", None)
        return {
            "architectures": ["DFlashSpeculator"],
            "aux_hidden_state_layer_ids": [layer + 1 for layer in settings.target_layer_ids],
            "block_size": settings.block_size,
            "draft_vocab_size": self._layers.vocab_size,
            "dtype": "bfloat16",
            "mask_token_id": settings.mask_token_id,
            "num_target_layers": self._layers.num_layers,
            "sliding_window_non_causal": True,
            "speculators_config": self._proposals(),
            SPECULATORS: "dflash",
            "transformer_layer_config": model,
        }

    def _proposals(self) -> dict[str, Any]:
        """Return how tokens are proposed, and to which target."""
        greedy = {"proposal_type": "greedy", "speculative_tokens": self._settings.block_size - 1}
        return {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {
                "architectures": list(self._target_config.architectures or ()),
                "name_or_path": str(Path(self._target_config.name_or_path).resolve()),
            },
        }

    def loss(self, rows: Rows, head: Head) -> torch.Tensor:
        batch, size = rows.batch, self._settings.block_size
        answered = int(batch.is_answer.sum()) // len(batch.token_ids)
        count = max(1, round(ROWS_PER_ANSWER_TOKEN * answered / size))
        # Drawn on the CPU, whose random state is saved in checkpoints.
        starts = torch.multinomial(batch.is_answer.float().cpu(), count, replacement=True)
        blocks = place_blocks(batch, starts.to(batch.token_ids.device), size)
        num_given = 1
        if torch.rand(()) < GIVEN_SHARE:  # the states of the last tokens may be unknown
            num_given = int(torch.randint(1, max(2, size // 2 + 1), ()))
        labels = _own_labels(blocks, size)
        kept = (labels >= 0) & (blocks.offsets >= num_given)
        hidden = self.states(rows, blocks, num_given)[kept]
        row, column = kept.nonzero(as_tuple=True)
        before = rows.states[row, blocks.positions[row, column] - 1]
        rate = max(1.0, size / 2 - 1)  # places after which a row's weight is 1/e
        weights = torch.exp((num_given - blocks.offsets[kept]) / rate)

        def loss(
            states: torch.Tensor, labels: torch.Tensor, true: torch.Tensor, weights: torch.Tensor
        ) -> torch.Tensor:
            logprobs = head.logprobs(states)
            with torch.no_grad():
                likely = head.logprobs(true).exp()
            soft = -(likely * logprobs).sum(-1)
            hard = head.cross_entropies(logprobs, labels)
            return ((LIKELY_SHARE * soft + (1 - LIKELY_SHARE) * hard) * weights).sum()

        total = in_slices(loss, hidden, labels[kept], before, weights)
        return total / weights.sum().clamp(min=1e-6)

    def right(self, rows: Rows) -> torch.Tensor:
        batch, size = rows.batch, self._settings.block_size
        spread = torch.linspace(0.0, 0.9, PROBES, device=batch.token_ids.device)
        places = [torch.nonzero(row).squeeze(1) for row in batch.is_answer]
        starts = torch.stack([place[(spread * len(place)).long()] for place in places])
        blocks = place_blocks(batch, starts, size)
        hidden, labels = self.states(rows, blocks), _own_labels(blocks, size)
        right = right_tokens(self._layers.head, hidden.flatten(0, 1), labels.flatten())
        return right.reshape(-1, size)[:, 1:]

    def states(self, rows: Rows, blocks: Blocks, num_given: int = 1) -> torch.Tensor:
        """Return the drafter's outputs for blocks of given tokens and masks, [B, M, H]."""
        token_ids, features = rows.batch.token_ids, rows.features
        assert features is not None, "the learner names the layers that it reads"
        size, num_tokens = token_ids.shape
        first = blocks.offsets < num_given
        own = token_ids.gather(1, blocks.positions.clamp(max=num_tokens - 1))
        ids = torch.where(first, own, self._settings.mask_token_id)
        clean = torch.arange(num_tokens, device=token_ids.device)
        before = clean < blocks.starts[:, :, None]
        together = blocks.block_ids[:, :, None] == blocks.block_ids[:, None]
        context = self.module.context(features.flatten(0, 1), clean.repeat(size))
        attention = _BlocksOfBatch(context, torch.cat([before, together], dim=-1))
        embedded = self._layers.embed(ids.flatten())
        hidden: torch.Tensor = self.module(embedded, blocks.positions.flatten(), attention)
        return hidden.reshape(size, -1, hidden.shape[-1])


def _own_labels(blocks: Blocks, size: int) -> torch.Tensor:
    """Return the token at each row's own position; -1: none to guess."""
    after = blocks.labels.reshape(len(blocks.labels), -1, size)
    return functional.pad(after[..., :-1], (1, 0), value=-1).flatten(1)


class _BlocksOfBatch(Attention):
    """Attention of the blocks of equally long sequences: a mask says which columns rows see."""

    def __init__(self, context: Sequence[torch.Tensor], visible: torch.Tensor) -> None:
        """context: each layer's keys and values; visible: [B, M, N + M]."""
        self._context = context
        self._visible = visible.unsqueeze(1)

    def attend(self, layer: int, rows: Projections, scoring: Scoring) -> torch.Tensor:
        size = len(self._visible)
        query, key, value, keys, values = (
            x.reshape(len(x), size, -1, x.shape[-1]).transpose(0, 1)
            for x in (*rows, self._context[2 * layer], self._context[2 * layer + 1])
        )
        # Kernels that take a mask do not let heads share keys.
        share = query.shape[1] // key.shape[1]
        keys = torch.cat([keys, key], dim=2).repeat_interleave(share, 1)
        values = torch.cat([values, value], dim=2).repeat_interleave(share, 1)
        output = functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=self._visible, scale=scoring.scaling
        )
        return output.transpose(1, 2).flatten(0, 1)


def settings_for(
    target: Any, num_layers: int, block_size: int, mask_token_id: int
) -> DFlashSettings:
    """Return the settings of a drafter with layers of the target's size."""
    heads = target.num_attention_heads
    model = Qwen3Config(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        num_key_value_heads=getattr(target, "num_key_value_heads", None) or heads,
        head_dim=getattr(target, "head_dim", None) or target.hidden_size // heads,
        hidden_act=getattr(target, "hidden_act", "silu"),
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=getattr(target, "rms_norm_eps", 1e-6),
        rope_parameters=dict(target.rope_parameters),
        attention_bias=target.model_type == "qwen2" or getattr(target, "attention_bias", False),
    )
    read = tuple(default_layer_ids(target.num_hidden_layers, num_layers))
    return DFlashSettings(model, read, block_size, mask_token_id, (False,) * num_layers)


@torch.no_grad()
def start_from_layers(
    model: DFlashModel, target: Any, kept: Sequence[int], token_ids: torch.Tensor
) -> None:
    """Initialise a drafter's weights so that it approximates these layers of the target.

    Its context is the mean of the states that it reads, each scaled to the same size. Norms before
    attention are merged into the projections after them: the context has one norm for all layers.
    Norms of queries and keys, if the target has none, get the sizes measured for some token ids,
    [B, N].
    """
    base = target.base_model
    states = base(input_ids=token_ids, use_cache=False, output_hidden_states=True).hidden_states
    for layer, number in zip(model.layers, kept, strict=True):
        _take_layer(layer, base.layers[number], states[number].flatten(0, 1).float())
    parts = []
    for number in model.settings.target_layer_ids:
        size = states[number + 1].float().square().mean(-1).sqrt().median()
        parts.append(torch.eye(states[0].shape[-1], device=size.device) / size)
    model.fc.weight.copy_(torch.cat(parts, dim=1) / len(parts))
    model.norm.weight.copy_(base.norm.weight)


def _take_layer(layer: Any, source: Any, inputs: torch.Tensor) -> None:
    """Copy the weights of a layer of the target; inputs [T, H] are examples of its inputs."""
    own, given = layer.state_dict(), source.state_dict()
    fitting = {name: x for name, x in given.items() if name in own and x.shape == own[name].shape}
    layer.load_state_dict(fitting, strict=False)
    attention = layer.self_attn
    for module in (attention.q_proj, attention.k_proj, attention.v_proj):
        module.weight.mul_(given["input_layernorm.weight"].float())
    layer.input_layernorm.weight.fill_(1.0)
    if "self_attn.o_proj.bias" in own and "self_attn.o_proj.bias" not in given:
        attention.o_proj.bias.zero_()
    if "self_attn.q_norm.weight" in given:
        return
    normed = layer.input_layernorm(inputs)
    for name in ("q", "k"):
        norm, module = getattr(attention, f"{name}_norm"), getattr(attention, f"{name}_proj")
        by_head = module(normed).unflatten(-1, (-1, attention.head_dim))
        norm.weight.copy_(by_head.square().mean((0, 1)).sqrt())
