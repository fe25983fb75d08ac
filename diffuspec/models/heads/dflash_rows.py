"""Runs a DFlash drafter beside its target, with a cache of its own.

A slot's row j is of the token `first` + j of a prefix, up to the last but one: keys and values that
were made of the target's hidden states. The rows of a block stand behind them until the next draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from diffuspec.algorithm.lattice import Pruning, build_lattices
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import DraftRequest, Lattice, TokenIds
from diffuspec.models.attention.cache import KVCache
from diffuspec.models.attention.packed import PackedBatch
from diffuspec.models.attention.scoring import Scoring
from diffuspec.models.attention.segment import Segment
from diffuspec.models.draft_rows import draft_rounds, with_noise
from diffuspec.models.heads.dflash import DFlashModel
from diffuspec.models.heads.features import Features
from diffuspec.models.heads.target_layers import TargetLayers, by_padded_rows
from diffuspec.models.runner import padded_size

MAX_CONTEXT_ROWS = 2048  # of hidden states that are read at a time


@dataclass(slots=True, eq=False)
class _Session:
    """One request's draft."""

    request: DraftRequest
    features: Features
    slot: int
    num_cached: int  # rows of the prefix

    @property
    def token_ids(self) -> TokenIds:
        """The tokens of the prefix's rows."""
        return self.request.prefix[self.features.first : -1]


class DFlashLattices:
    """Makes lattices of known hidden states; a StateReader finds these."""

    def __init__(
        self, model: DFlashModel, layers: TargetLayers, target: TargetInfo, pruning: Pruning
    ) -> None:
        self._model = model
        self._layers = layers
        self._target = target
        self._pruning = pruning
        self._block_size = model.settings.block_size
        self._cache = KVCache(
            model.cache_shape,
            target.max_sequences,
            target.max_model_len + self._block_size,
            layers.dtype,
            layers.device,
        )

    @torch.inference_mode()
    def lattices(
        self, requests: Sequence[DraftRequest], features: Sequence[Features]
    ) -> list[Lattice]:
        """Return one lattice per request, in order, of block_size - 1 positions at most."""
        found: dict[int, Lattice] = {}
        for places in draft_rounds(requests, self._cache.num_slots):
            self._cache.begin_step()
            sessions = [self._begin(requests[place], features[place]) for place in places]
            self._read(sessions)
            found.update(zip(places, self._guess(sessions), strict=True))
        return [found[place] for place in range(len(requests))]

    def _begin(self, request: DraftRequest, features: Features) -> _Session:
        token_ids = request.prefix[features.first : -1]
        slot, num_cached = self._cache.acquire(request.request_id, token_ids, len(token_ids))
        return _Session(request, features, slot, num_cached)

    def _read(self, sessions: Sequence[_Session]) -> None:
        """Put keys and values of the prefixes' new rows into the cache."""
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
        states = torch.cat([session.features.states[rows] for session, rows in parts])
        positions = np.concatenate(
            [session.features.first + np.arange(rows.start, rows.stop) for session, rows in parts]
        )
        padding = self._padding(len(states))
        made = self._model.context(
            functional.pad(states.to(self._layers.device, self._layers.dtype), (0, 0, 0, padding)),
            self._padded(positions, padding),
        )
        first = 0
        for session, rows in parts:
            last = first + rows.stop - rows.start
            for table, new in zip(self._cache.layers(session.slot), made, strict=True):
                table[:, rows] = new[:, first:last]
            self._cache.commit(session.slot, session.token_ids[rows], last - first)
            session.num_cached, first = rows.stop, last

    def _guess(self, sessions: Sequence[_Session]) -> list[Lattice]:
        """Run the sessions' blocks, and make lattices of their logits."""
        size, mask = self._block_size, self._model.settings.mask_token_id
        blocks = [np.full(size, mask, np.int32) for _ in sessions]
        for session, block in zip(sessions, blocks, strict=True):
            block[0] = session.request.prefix[-1]
        offsets = np.arange(size, dtype=np.int32)
        positions = [len(session.request.prefix) - 1 + offsets for session in sessions]
        padding = self._padding(size * len(sessions))
        attention = _BlockAttention(self._model, self._cache, sessions, blocks, positions, padding)
        hidden = self._model(
            self._layers.embed(self._padded(np.concatenate(blocks), padding)),
            self._padded(np.concatenate(positions), padding),
            attention,
        )
        lengths = [min(one.request.num_draft_tokens, size - 1) for one in sessions]
        firsts = range(1, size * len(sessions), size)
        wanted = [slice(first, first + k) for first, k in zip(firsts, lengths, strict=True)]
        logits = self._logits(torch.cat([hidden[rows] for rows in wanted]))
        pairs = zip(sessions, torch.split(logits, lengths), strict=True)
        ends = self._target.eos_token_ids
        noisy = torch.cat([with_noise(rows, session.request, ends) for session, rows in pairs])
        keeps = [session.request.num_alternatives > 0 for session in sessions]
        return build_lattices(noisy, lengths, self._pruning, keeps)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of the target's ids, [R, V] float32; -inf where nothing is drafted."""
        model, num_ids = self._model, self._target.vocab_size
        if model.head is None or model.token_ids is None:
            logits = self._layers.logits(hidden)
        else:
            own = by_padded_rows(model.head, hidden).float()
            shape = len(hidden), self._layers.vocab_size
            logits = torch.full(shape, -torch.inf, device=own.device)
            logits[:, model.token_ids] = own
        logits[:, num_ids:] = -torch.inf
        if model.settings.mask_token_id < num_ids:
            logits[:, model.settings.mask_token_id] = -torch.inf
        return logits

    def _padding(self, num_rows: int) -> int:
        return padded_size(num_rows) - num_rows if self._layers.device.type == "cpu" else 0

    def _padded(self, values: TokenIds, padding: int) -> torch.Tensor:
        padded = np.pad(values.astype(np.int64), (0, padding))
        return torch.from_numpy(padded).to(self._layers.device)


class _BlockAttention:
    """The `Attention` of blocks: rows see the prefix, and all of their block or what is before."""

    def __init__(
        self,
        model: DFlashModel,
        cache: KVCache,
        sessions: Sequence[_Session],
        blocks: Sequence[TokenIds],
        positions: Sequence[TokenIds],
        num_padding: int,
    ) -> None:
        self._is_causal = model.settings.causal_layers
        rows = list(zip(sessions, blocks, positions, strict=True))
        self._parts = {
            is_causal: PackedBatch(
                [
                    Segment(
                        session.slot,
                        session.num_cached,
                        block,
                        places,
                        "causal" if is_causal else "full",
                        (),
                    )
                    for session, block, places in rows
                ],
                cache,
                num_padding=num_padding,
            )
            for is_causal in set(self._is_causal)
        }

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scoring: Scoring,
    ) -> torch.Tensor:
        return self._parts[self._is_causal[layer]].attend(layer, query, key, value, scoring)
