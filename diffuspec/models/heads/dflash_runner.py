"""Runs a DFlash drafter beside its target, with its own cache.

Row j of a table belongs to token `first` + j of a prefix: its keys and values are computed from the
target's hidden states. The rows of a block follow until the next draft. A block begins with the
tokens whose states are unknown: the last one, and those of a hypothetical prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diffuspec.algorithm.lattice import Pruning, build_lattices
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import DraftRequest, Lattice, TokenIds
from diffuspec.models.attention.interface import Attention, Projections, Scoring
from diffuspec.models.attention.packed import PackedBatch
from diffuspec.models.attention.segment import Segment, Visible
from diffuspec.models.draft_requests import with_noise
from diffuspec.models.heads.dflash import DFlashModel
from diffuspec.models.heads.features import Features, salt_of
from diffuspec.models.heads.head_runner import HeadRunner
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.models.kernels.operations import most_probable
from diffuspec.models.pages.cache import KVCache
from diffuspec.models.pages.table import PageTable

MAX_CONTEXT_ROWS = 2048  # rows of hidden states read at a time


@dataclass(slots=True, eq=False)
class _Session:
    """The drafts of one request id: for a prefix, or for its hypothetical continuations.

    The tokens with known states are the same in all of them.
    """

    requests: list[DraftRequest]
    features: Features
    table: PageTable
    num_cached: int  # rows of the prefix

    @property
    def num_known(self) -> int:
        """Number of prefix tokens up to the last one whose state is known."""
        return self.features.first + len(self.features)

    @property
    def token_ids(self) -> TokenIds:
        """The tokens whose states are known."""
        return self.requests[0].prefix[self.features.first : self.num_known]

    def takes(self, request: DraftRequest, features: Features) -> bool:
        """Return whether a request with the same id can be drafted in this session."""
        end = features.first + len(features)
        mine = self.requests[0].prefix[: self.num_known]
        same = (features.first, end) == (self.features.first, self.num_known)
        return same and np.array_equal(request.prefix[:end], mine)


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """The rows of one draft: the tokens with unknown states, and masks."""

    session: _Session
    request: DraftRequest
    token_ids: TokenIds  # [block_size]
    num_given: int

    @property
    def positions(self) -> TokenIds:
        first = self.session.num_known
        return np.arange(first, first + len(self.token_ids), dtype=np.int32)

    @property
    def num_draft_tokens(self) -> int:
        return min(self.request.num_draft_tokens, len(self.token_ids) - self.num_given)


class DFlashRunner(HeadRunner):
    """Makes lattices from known hidden states, which a StateReader provides."""

    def __init__(
        self, model: DFlashModel, layers: TargetLayers, target: TargetInfo, pruning: Pruning
    ) -> None:
        self._model = model
        self._pruning = pruning
        self._block_size = model.settings.block_size
        super().__init__(layers, target, model.cache_shape, self._block_size)

    @torch.inference_mode()
    def lattices(
        self, requests: Sequence[DraftRequest], features: Sequence[Features]
    ) -> list[Lattice]:
        """Return one lattice per request, in order, of at most block_size - 1 positions."""
        found: dict[int, Lattice] = {}
        left = list(range(len(requests)))
        while left:
            self._cache.begin_step()
            sessions: dict[str, _Session] = {}
            places = [
                place for place in left if self._joins(sessions, requests[place], features[place])
            ]
            left = [place for place in left if place not in places]
            self._read(list(sessions.values()))
            by_request = self._guess([self._block(sessions, requests[place]) for place in places])
            found.update(zip(places, by_request, strict=True))
        return [found[place] for place in range(len(requests))]

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The target's layers whose states it reads."""
        return self._model.settings.target_layer_ids

    @property
    def max_unknown(self) -> int:
        """Most prefix tokens without known states, before the last token, that fit into a block."""
        return self._block_size - 2

    def _joins(
        self, sessions: dict[str, _Session], request: DraftRequest, features: Features
    ) -> bool:
        """Add a request to the sessions of a forward, if it can be drafted with them."""
        session = sessions.get(request.request_id)
        if session is not None:
            takes = session.takes(request, features)
            if takes:
                session.requests.append(request)
            return takes
        if len(sessions) == self._target.max_sequences:
            return False
        end = features.first + len(features)
        token_ids = request.prefix[features.first : end]
        salt = salt_of(request, features)
        table = self._cache.acquire(request.request_id, token_ids, len(token_ids), salt)
        sessions[request.request_id] = _Session([request], features, table, table.length)
        return True

    def _block(self, sessions: dict[str, _Session], request: DraftRequest) -> _Block:
        session = sessions[request.request_id]
        given = request.prefix[session.num_known :]
        token_ids = np.full(self._block_size, self._model.settings.mask_token_id, np.int32)
        token_ids[: len(given)] = given
        return _Block(session, request, token_ids, len(given))

    def _read(self, sessions: Sequence[_Session]) -> None:
        """Write keys and values of the prefixes' new rows into the cache."""
        while new := [one for one in sessions if one.num_cached < len(one.token_ids)]:
            parts, room = [], MAX_CONTEXT_ROWS
            for session in new:
                start, end = session.num_cached, len(session.token_ids)
                rows = slice(start, min(end, start + room))
                room -= rows.stop - rows.start
                parts.append((session, rows))
                if not room:
                    break
            self._read_rows(parts)

    def _read_rows(self, parts: Sequence[tuple[_Session, slice]]) -> None:
        known = [session.features.rows(rows.start, rows.stop) for session, rows in parts]
        states = torch.cat(known)
        positions = np.concatenate(
            [session.features.first + np.arange(rows.start, rows.stop) for session, rows in parts]
        )
        padding = self._padding(len(states))
        made = self._model.context(
            self._padded_states(states, padding),
            self._padded(positions, padding),
        )
        first = 0
        for session, rows in parts:
            last = first + rows.stop - rows.start
            new = [layer[:, first:last] for layer in made]
            self._cache.reserve(session.table, rows.stop)
            self._cache.store.write(session.table.pages, rows.start, new)
            self._cache.commit(session.table, session.token_ids[rows], last - first)
            session.num_cached, first = rows.stop, last

    def _guess(self, blocks: Sequence[_Block]) -> list[Lattice]:
        """Run blocks, and make lattices from their logits."""
        padding = self._padding(self._block_size * len(blocks))
        attention = _BlockAttention(self._model, self._cache, blocks, padding)
        token_ids = np.concatenate([block.token_ids for block in blocks])
        positions = np.concatenate([block.positions for block in blocks])
        hidden = self._model(
            self._layers.embed(self._padded(token_ids, padding)),
            self._padded(positions, padding),
            attention,
        )
        lengths = [block.num_draft_tokens for block in blocks]
        firsts = [n * self._block_size + block.num_given for n, block in enumerate(blocks)]
        wanted = [hidden[first : first + k] for first, k in zip(firsts, lengths, strict=True)]
        pairs = zip(blocks, torch.split(self._logits(torch.cat(wanted)), lengths), strict=True)
        ends = self._target.eos_token_ids
        noisy = torch.cat([with_noise(rows, block.request, ends) for block, rows in pairs])
        keeps = [block.request.num_alternatives > 0 for block in blocks]
        found = most_probable(noisy, self._pruning.max_candidates)
        return build_lattices(*found, lengths, self._pruning, keeps)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Return logits over the target's ids, [R, V] float32; -inf for ids never drafted."""
        model, num_ids = self._model, self._target.vocab_size
        logits = self._layers.logits(hidden) if model.head is None else model.head(hidden)
        logits[:, num_ids:] = -torch.inf
        if model.settings.mask_token_id < num_ids:
            logits[:, model.settings.mask_token_id] = -torch.inf
        return logits


class _BlockAttention(Attention):
    """Attention of blocks: rows see the prefix, and all of their block or its earlier rows.

    Blocks of one session use the same rows, one after the other.
    """

    def __init__(
        self, model: DFlashModel, cache: KVCache, blocks: Sequence[_Block], num_padding: int
    ) -> None:
        self._is_causal = model.settings.causal_layers
        self._parts = {
            is_causal: PackedBatch(
                [_segment(block, is_causal) for block in blocks], cache, num_padding=num_padding
            )
            for is_causal in set(self._is_causal)
        }

    def attend(self, layer: int, rows: Projections, scoring: Scoring) -> Tensor:
        return self._parts[self._is_causal[layer]].attend(layer, rows, scoring)


def _segment(block: _Block, is_causal: bool) -> Segment:
    session = block.session
    visible: Visible = "causal" if is_causal else "full"
    return Segment(session.table, session.num_cached, block.token_ids, block.positions, visible, ())
