"""Hidden states of the latest verified prefixes, found by their tokens.

A head drafts for a prefix from the states of its tokens. States are known for tokens that the
target computed while it was observed; tokens cached before that have none, unless another observed
prefix of the same salt had the same beginning. An unknown state costs drafts but changes no answer.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import torch

from diffuspec.core.interfaces import Observation
from diffuspec.core.types import DraftRequest, TokenIds, num_shared_tokens

_MIN_ROWS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Hidden states of successive tokens of a prefix, from token `first` on."""

    first: int
    states: torch.Tensor  # [num_tokens - first, D]


def salt_of(request: DraftRequest, features: Features) -> str:
    """Return the salt of a request's rows in a head's cache, where row 0 is not always token 0."""
    return f"{features.first} {request.sampling.cache_salt!r}"


@dataclass(slots=True, eq=False)
class _Sequence:
    """Tokens, and the states of those from `first` on. A row of the table is written only once."""

    token_ids: TokenIds
    first: int
    table: torch.Tensor  # [rows, D]; it has spare rows to grow
    salt: str | None  # cache_salt of the requests that share the states

    def num_shared(self, token_ids: TokenIds, salt: str | None) -> int:
        """Return the number of leading tokens in common; none with another salt."""
        return num_shared_tokens(self.token_ids, token_ids) if salt == self.salt else 0

    def states(self, end: int) -> torch.Tensor:
        return self.table[: end - self.first]

    def extend(self, token_ids: TokenIds, states: torch.Tensor) -> None:
        """Replace the tokens by longer ones; `states` are those of the new tokens at the end."""
        num_old = len(token_ids) - len(states) - self.first
        size = num_old + len(states)
        if size > len(self.table):
            table = states.new_empty(max(2 * size, _MIN_ROWS), states.shape[-1])
            table[:num_old] = self.table[:num_old]
            self.table = table
        self.table[num_old:size] = states
        self.token_ids = token_ids


class FeatureStore:
    """Keeps the latest sequences of tokens, and the states of all or some of these tokens.

    A sequence that continues a stored one extends it; if it branches off, the common part is
    copied. Thread-safe.
    """

    def __init__(self, num_sequences: int, keeps_all: bool = True) -> None:
        """keeps_all: False: keep only each sequence's last state."""
        self._num_sequences = num_sequences
        self._keeps_all = keeps_all
        self._sequences: list[_Sequence] = []  # least recently used first
        self._lock = threading.Lock()

    def add(self, one: Observation) -> None:
        """Store the states of the prefix's tokens and of those accepted after it."""
        num_tail = len(one.prefix) - one.num_cached
        accepted = [one.tree.token_ids[node] for node in one.accepted_nodes]
        token_ids = np.concatenate([one.prefix, np.array(accepted, np.int32)])
        rows = [*range(num_tail), *(num_tail + node for node in one.accepted_nodes)]
        states = torch.cat([layer[rows] for layer in one.hidden_states], dim=-1)
        self.extend(token_ids, one.num_cached, states, one.salt)

    def extend(
        self, token_ids: TokenIds, start: int, states: torch.Tensor, salt: str | None = None
    ) -> None:
        """Store the states of these tokens from `start` on."""
        with self._lock:
            sequence, states = self._continued(token_ids, start, states, salt)
            if len(states):
                if not self._keeps_all:
                    states = states[-1:]
                    sequence = _Sequence(token_ids[:0], len(token_ids) - 1, states[:0], salt)
                sequence.extend(token_ids, states)
            self._sequences.append(sequence)
            del self._sequences[: -self._num_sequences]

    def find(
        self, prefix: TokenIds, max_unknown: int = 0, salt: str | None = None
    ) -> Features | None:
        """Return the known states of a prefix; its last token has none before the next step.

        None if more than max_unknown other tokens at its end have no states.
        """
        token_ids = prefix[:-1]
        with self._lock:
            best, most = None, len(token_ids) - max_unknown - 1
            for one in reversed(self._sequences):
                num = one.num_shared(token_ids, salt)
                if num > max(most, one.first):
                    best, most = one, num
            if best is None:
                return None
            self._sequences.remove(best)
            self._sequences.append(best)
            return Features(best.first, best.states(most))

    def num_known(self, token_ids: TokenIds, salt: str | None = None) -> int:
        """Return the number of leading tokens with known states."""
        with self._lock:
            whole = (one for one in self._sequences if one.first == 0)
            return max((sequence.num_shared(token_ids, salt) for sequence in whole), default=0)

    def _continued(
        self, token_ids: TokenIds, start: int, states: torch.Tensor, salt: str | None
    ) -> tuple[_Sequence, torch.Tensor]:
        """Return the sequence to extend (stored, copied or new) and the states that it lacks.

        A stored one is removed from the store. states: those of the tokens from `start` on.
        """
        shared = [sequence for sequence in self._sequences if sequence.salt == salt]
        lengths = [(sequence.num_shared(token_ids, salt), sequence) for sequence in shared]
        known = [(num, one) for num, one in lengths if one.first <= start <= num]
        if not known:
            return _Sequence(token_ids[:0], start, states[:0], salt), states
        num, best = max(known, key=lambda pair: pair[0])
        states = states[num - start :]
        if num == len(best.token_ids) or not len(states):
            self._sequences.remove(best)
            return best, states
        return _Sequence(token_ids[:0], best.first, best.states(num), salt), states
