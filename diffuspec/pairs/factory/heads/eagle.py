"""Trains an EAGLE head, which guesses the next hidden states and through them the tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers import LlamaConfig, Qwen2Config

from diffuspec.models.attention.interface import Attention, Projections, Scoring
from diffuspec.models.heads.eagle import EagleHead
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.models.hidden_states import HiddenStates
from diffuspec.pairs.factory.heads.learner import (
    NUM_GUESSES,
    Rows,
    ahead,
    right_tokens,
)
from diffuspec.pairs.factory.loss import Head, in_slices

GUESSED_SHARE = 0.5  # share of guessed states in the second pass


class EagleLearner:
    """A Learner: a head initialised with the target's last layer."""

    hidden_layers: tuple[int, ...] = ()

    def __init__(self, target: Any, layers: TargetLayers, token_ids: torch.Tensor) -> None:
        """token_ids [B, N]: examples that show the size of the target's hidden states."""
        self._layers = layers
        self._target_config = target.config
        self.module = start_from_last_layer(target, token_ids)

    def config(self) -> dict[str, Any]:
        settings: dict[str, Any] = eagle_config(self._target_config).to_diff_dict()
        return settings

    def loss(self, rows: Rows, head: Head) -> torch.Tensor:
        """Return the distance between guessed and true states, and between their tokens.

        States are guessed twice: first after true states, then with GUESSED_SHARE of these replaced
        by guesses of the first pass, as happens while drafting.
        """
        guessed = self._guess(rows, rows.states)
        again = self._guess(rows, _with_guesses(rows, guessed.detach(), GUESSED_SHARE))
        kept = rows.wanted(2)[:, :-1]
        true = rows.states[:, 1:][kept]

        def loss(once: torch.Tensor, twice: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                wanted = head.logprobs(true).exp()
            tokens = [-(wanted * head.logprobs(x)).sum() for x in (once, twice)]
            return torch.stack(tokens).sum()

        once, twice = guessed[:, :-1][kept], again[:, :-1][kept]
        tokens = in_slices(loss, once, twice, true) / max(1, len(true))
        states = [functional.smooth_l1_loss(x.float(), true.float()) for x in (once, twice)]
        return tokens + torch.stack(states).sum()

    def right(self, rows: Rows) -> torch.Tensor:
        kept, states, found = rows.wanted(NUM_GUESSES + 1), rows.states, []
        for place in range(NUM_GUESSES):
            guessed = self._guess(rows, states)
            states = _with_guesses(rows, guessed)
            wanted = ahead(rows.batch.token_ids, place + 2)[kept]
            found.append(right_tokens(self._layers.head, ahead(guessed, place)[kept], wanted))
        return torch.stack(found, dim=-1)

    def _guess(self, rows: Rows, states: torch.Tensor) -> torch.Tensor:
        """Return the guessed state of each row's next token, [B, N, H]; the last one is unused."""
        token_ids = rows.batch.token_ids
        batch, num_rows = token_ids.shape
        embedded = self._layers.embed(ahead(token_ids, 1))
        positions = torch.arange(num_rows, device=token_ids.device).repeat(batch)
        inputs = embedded.flatten(0, 1), states.flatten(0, 1), positions
        guessed: torch.Tensor = self.module(*inputs, _CausalBatch(batch))
        return guessed.reshape(batch, num_rows, -1)


def _with_guesses(rows: Rows, guessed: torch.Tensor, share: float = 1.0) -> torch.Tensor:
    """Return the states, with a share of them replaced by the previous row's guess."""
    learnt = functional.pad(rows.wanted(2)[:, :-1], (1, 0)).unsqueeze(-1)
    drawn = torch.rand(learnt.shape) < share  # the CPU's random state is saved in checkpoints
    chosen = learnt & drawn.to(learnt.device)
    return torch.where(chosen, functional.pad(guessed[:, :-1], (0, 0, 1, 0)), rows.states)


class _CausalBatch(Attention):
    """Causal attention of equally long sequences, one after the other."""

    def __init__(self, num_sequences: int) -> None:
        self._num_sequences = num_sequences

    def attend(self, layer: int, rows: Projections, scoring: Scoring) -> torch.Tensor:
        query, key, value = (
            x.reshape(len(x), self._num_sequences, -1, x.shape[-1]).transpose(0, 1) for x in rows
        )
        output = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scoring.scaling, enable_gqa=True
        )
        return output.transpose(1, 2).flatten(0, 1)


def eagle_config(target: Any) -> LlamaConfig | Qwen2Config:
    """Return the configuration of an EAGLE head of the target's size."""
    family = Qwen2Config if target.model_type == "qwen2" else LlamaConfig
    heads = target.num_attention_heads
    config = family(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=getattr(target, "num_key_value_heads", None) or heads,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=getattr(target, "rms_norm_eps", 1e-6),
        rope_parameters=dict(target.rope_parameters),
    )
    config.head_dim = getattr(target, "head_dim", None) or target.hidden_size // heads
    return config


@torch.no_grad()
def start_from_last_layer(target: Any, token_ids: torch.Tensor) -> EagleHead:
    """Return an EAGLE head initialised with the target's last layer, as far as weights fit.

    The head reads and writes states after the target's last norm, for which its layer was not
    trained. So the weights at both ends absorb the scales of the norms, that of the last one
    measured for some token ids, [B, N]. Initially `fc` adds a token's embedding to the previous
    state.
    """
    base = target.base_model
    device = base.norm.weight.device
    head = EagleHead(eagle_config(target.config), has_fc_bias=True).to(device)
    layer: Any = head.layers[0]
    own, last = layer.state_dict(), base.layers[-1].state_dict()
    fitting = {name: x for name, x in last.items() if name in own and x.shape == own[name].shape}
    layer.load_state_dict(fitting, strict=False)
    before = HiddenStates([len(base.layers) - 1])
    with before.record(target):
        base(input_ids=token_ids, use_cache=False)
    before.keep(slice(None))
    size = before.rows(len(base.layers) - 1).float().square().mean().sqrt()
    norm = base.norm.weight.float()
    written, read = norm / size, last["input_layernorm.weight"].float() / norm
    for module in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
        module.weight.mul_(read)
    for module in (layer.self_attn.o_proj, layer.mlp.down_proj):
        module.weight.mul_(written[:, None])
    identity = torch.eye(target.config.hidden_size, device=device)
    head.fc.weight.copy_(torch.cat([identity, identity], dim=1))
    head.fc.bias.zero_()
    return head
