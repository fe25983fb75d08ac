"""What draft heads learn: to guess the target's next tokens from its hidden states.

A row is a token of an answer. Its state is the target's hidden state, of which the target's own
head makes the token after it; the heads' guesses begin with the one after that. Rows are kept as
far as what they guess is in the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from diffuspec.models.attention.scoring import Scoring
from diffuspec.models.heads.eagle import EagleHead
from diffuspec.models.heads.hydra import HydraHeads
from diffuspec.models.heads.medusa import MedusaHeads
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.pairs.factory.examples import Batch

HEAD_DECAY = 0.8  # weight of a head's loss over that of the head before
GUESSED_SHARE = 0.5  # of the states that EAGLE reads the second time


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch with the target's hidden states, [B, N, H]."""

    batch: Batch
    states: torch.Tensor

    def wanted(self, distance: int) -> torch.Tensor:
        """Mark the rows whose next `distance` tokens are all in an answer, [B, N]."""
        answer = self.batch.is_answer
        marks = torch.ones_like(answer)
        for step in range(1, distance + 1):
            marks &= ahead(answer, step)
        return marks


def ahead(values: torch.Tensor, step: int) -> torch.Tensor:
    """Return what stands `step` places on in each row of [B, N, ...]; 0 after the end."""
    after = torch.zeros_like(values)
    after[:, : values.shape[1] - step] = values[:, step:]
    return after


Loss = Callable[[Rows], torch.Tensor]


def medusa_loss(heads: MedusaHeads, layers: TargetLayers, rows: Rows) -> torch.Tensor:
    """Return the heads' cross-entropies, weighted."""
    losses = []
    for head, module in enumerate(heads.heads):
        kept = rows.wanted(head + 2)
        labels = ahead(rows.batch.token_ids, head + 2)[kept]
        output = module(rows.states[kept])
        losses.append(_token_loss(layers, output, heads.shares_head, labels))
    return _weighted(losses)


def hydra_loss(heads: HydraHeads, layers: TargetLayers, rows: Rows) -> torch.Tensor:
    """Return the heads' cross-entropies, weighted; each sees the tokens before its own."""
    losses, token_ids = [], rows.batch.token_ids
    for head in range(heads.num_heads):
        kept = rows.wanted(head + 2)
        before = [ahead(token_ids, step)[kept] for step in range(1, head + 2)]
        inputs = torch.cat([rows.states[kept], *(layers.embed(ids) for ids in before)], dim=-1)
        labels = ahead(token_ids, head + 2)[kept]
        losses.append(_token_loss(layers, heads(head, inputs), heads.shares_head, labels))
    return _weighted(losses)


def eagle_loss(head: EagleHead, layers: TargetLayers, rows: Rows) -> torch.Tensor:
    """Return the distance between guessed and true states, and between the tokens they give.

    They are guessed twice: after true states, and where GUESSED_SHARE of these are guesses of the
    first time, as they are when drafting goes on.
    """
    token_ids, states = rows.batch.token_ids, rows.states
    guessed = guess_states(head, layers, token_ids, states)
    mixed = with_guesses(rows, guessed.detach(), GUESSED_SHARE)
    again = guess_states(head, layers, token_ids, mixed)
    kept = rows.wanted(2)[:, :-1]
    true = states[:, 1:][kept]
    with torch.no_grad():
        wanted = layers.head(true).float().softmax(-1)
    losses = []
    for found in (guessed[:, :-1][kept], again[:, :-1][kept]):
        losses.append(functional.smooth_l1_loss(found.float(), true.float()))
        losses.append(functional.cross_entropy(layers.head(found).float(), wanted))
    return torch.stack(losses).sum()


def guess_states(
    head: EagleHead, layers: TargetLayers, token_ids: torch.Tensor, states: torch.Tensor
) -> torch.Tensor:
    """Return the guessed state of each row's next token, [B, N, H]; the last row's is of no use."""
    batch, num_rows = token_ids.shape
    embedded = layers.embed(ahead(token_ids, 1))
    positions = torch.arange(num_rows, device=token_ids.device).repeat(batch)
    flat = head(embedded.flatten(0, 1), states.flatten(0, 1), positions, CausalBatch(batch))
    guessed: torch.Tensor = flat.reshape(batch, num_rows, -1)
    return guessed


def with_guesses(rows: Rows, guessed: torch.Tensor, share: float = 1.0) -> torch.Tensor:
    """Return the states, a share of them guessed by the row before, where rows learn that."""
    learnt = functional.pad(rows.wanted(2)[:, :-1], (1, 0)).unsqueeze(-1)
    chosen = learnt & (torch.rand(learnt.shape, device=learnt.device) < share)
    return torch.where(chosen, functional.pad(guessed[:, :-1], (0, 0, 1, 0)), rows.states)


class CausalBatch:
    """The `Attention` of sequences of one length, one after the other; rows are causal."""

    def __init__(self, num_sequences: int) -> None:
        self._num_sequences = num_sequences

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scoring: Scoring,
    ) -> torch.Tensor:
        query, key, value = (
            x.reshape(len(x), self._num_sequences, -1, x.shape[-1]).transpose(0, 1)
            for x in (query, key, value)
        )
        output = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scoring.scaling, enable_gqa=True
        )
        return output.transpose(1, 2).flatten(0, 1)


def _token_loss(
    layers: TargetLayers, output: torch.Tensor, shares_head: bool, labels: torch.Tensor
) -> torch.Tensor:
    logits = layers.head(output) if shares_head else output
    return functional.cross_entropy(logits.float(), labels)


def _weighted(losses: list[torch.Tensor]) -> torch.Tensor:
    return sum((HEAD_DECAY**place * loss for place, loss in enumerate(losses)), torch.zeros(()))
