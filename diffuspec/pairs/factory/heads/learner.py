"""The training shared by all kinds of draft heads.

A row is a token of an answer, with the target's hidden state there. The target's own head turns
that state into the next token, so the heads' guesses begin with the token after the next. Rows only
count if the tokens that they guess are in the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from diffuspec.pairs.factory.examples import Batch
from diffuspec.pairs.factory.loss import SLICE_ROWS, Head, in_slices

HEAD_DECAY = 0.8  # weight of a head's loss relative to the previous head's
NUM_GUESSES = 3  # number of guesses measured after a row


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch with the target's hidden states."""

    batch: Batch
    states: torch.Tensor  # output of the last norm, [B, N, H]
    features: torch.Tensor | None = None  # states of the layers read, [B, N, ids * H]

    def wanted(self, distance: int) -> torch.Tensor:
        """Mark the rows whose next `distance` tokens are all in an answer, [B, N]."""
        answer = self.batch.is_answer
        marks = torch.ones_like(answer)
        for step in range(1, distance + 1):
            marks &= ahead(answer, step)
        return marks


class Learner(Protocol):
    """Draft heads of one kind in training."""

    @property
    def module(self) -> nn.Module:
        """The module to train; its parameters have the names of the checkpoint's tensors."""
        ...

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Layers whose output it reads, counted from 0, besides the target's last states."""
        ...

    def config(self) -> dict[str, Any]:
        """Return the checkpoint's config.json."""
        ...

    def loss(self, rows: Rows, head: Head) -> torch.Tensor:
        """Return the loss of a batch; `head` computes the logits."""
        ...

    def right(self, rows: Rows) -> torch.Tensor:
        """Mark the right guesses, [R, n], of rows followed by all guessed tokens."""
        ...


def ahead(values: torch.Tensor, step: int) -> torch.Tensor:
    """Shift the values [B, N, ...] by `step` places, filling with 0 at the end."""
    after = torch.zeros_like(values)
    after[:, : values.shape[1] - step] = values[:, step:]
    return after


def token_loss(head: Head, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the tokens that the target's head predicts, [R, H]."""

    def loss(states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return head.cross_entropies(head.logprobs(states), labels).sum()

    return in_slices(loss, states, labels) / max(1, len(labels))


def right_tokens(
    layer: Callable[[torch.Tensor], torch.Tensor], states: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """Mark the states [R, H] for which the target's head predicts the right token."""
    slices = zip(*(torch.split(one, SLICE_ROWS) for one in (states, token_ids)), strict=True)
    return torch.cat([layer(some).argmax(-1) == wanted for some, wanted in slices])


def weighted(losses: list[torch.Tensor]) -> torch.Tensor:
    """Return the weighted sum of the heads' losses; each head counts less than the previous one."""
    return sum((HEAD_DECAY**place * loss for place, loss in enumerate(losses)), torch.zeros(()))
