"""Runs an EAGLE head beside its target, with its own cache.

Row j of a prefix takes token j + 1 and the hidden state of token j. Rows with known states stay in
the cache; those of drafted tokens, which use guessed states, follow them until the next draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import DraftRequest, TokenIds
from diffuspec.models.attention.interface import Attention
from diffuspec.models.attention.packed import PackedBatch
from diffuspec.models.attention.segment import Segment
from diffuspec.models.heads.features import Features, salt_of
from diffuspec.models.heads.head_runner import HeadRunner
from diffuspec.models.heads.nodes import Candidates, DraftNode, Level, Place, likeliest_after
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.models.pages.store import CacheShape
from diffuspec.models.pages.table import PageTable

_MAX_TREE_ROWS = 64  # nodes of a draft that may have children
MAX_PREFILL_ROWS = 512  # rows of one request in one forward


@dataclass(slots=True, eq=False)
class _Session:
    """The rows of one request's draft. Row 0 is that of token `first`."""

    request: DraftRequest
    features: Features
    table: PageTable
    num_cached: int  # cached rows of the prefix
    num_drafted: int = 0  # rows after those of the prefix
    output: torch.Tensor | None = None  # [H], output of the prefix's last row

    @property
    def token_ids(self) -> TokenIds:
        """The tokens of the prefix's rows."""
        return self.request.prefix[self.features.first + 1 :]


@dataclass(slots=True, eq=False)
class _HeadInputs:
    """The rows of several requests in one forward of the head."""

    segments: list[Segment] = field(default_factory=list)
    states: list[torch.Tensor] = field(default_factory=list)  # one for each segment, [rows, H]


class EagleModel(Protocol):
    """A head of the EAGLE family: EagleHead or Eagle3Head."""

    @property
    def cache_shape(self) -> CacheShape: ...

    def embed(self, token_ids: torch.Tensor, target: TargetLayers) -> torch.Tensor:
        """Return the embeddings of tokens, [T, H]."""
        ...

    def logits(self, outputs: torch.Tensor, target: TargetLayers) -> torch.Tensor:
        """Return logits over the target's ids, [R, V] float32; -inf for ids never drafted."""
        ...

    def __call__(
        self,
        embedded: torch.Tensor,
        states: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
    ) -> torch.Tensor:
        """Map embeddings and the states before them to outputs, [T, H].

        The states of a call are the target's, or the head's own outputs for the tokens before.
        """
        ...


class EagleRunner(HeadRunner):
    """A LevelHead: an EAGLE head beside its target."""

    def __init__(self, head: EagleModel, layers: TargetLayers, target: TargetInfo) -> None:
        super().__init__(layers, target, head.cache_shape, _MAX_TREE_ROWS)
        self._head = head
        self._sessions: dict[str, _Session] = {}

    @torch.inference_mode()
    def begin(self, requests: Sequence[DraftRequest], features: Sequence[Features]) -> None:
        self._cache.begin_step()
        self._sessions = {}
        for request, known in zip(requests, features, strict=True):
            token_ids = request.prefix[known.first + 1 :]
            salt = salt_of(request, known)
            table = self._cache.acquire(request.request_id, token_ids, salt=salt)
            session = _Session(request, known, table, table.length)
            while len(token_ids) - session.num_cached > MAX_PREFILL_ROWS:
                self._read([session])
            self._sessions[request.request_id] = session
        self._read(list(self._sessions.values()))

    @torch.inference_mode()
    def candidates(self, level: Level, count: int) -> list[list[Candidates]]:
        below = [(self._sessions[request.request_id], nodes) for request, nodes in level]
        if level[0][1][0].path:
            self._guess(below)
        outputs, places = [], []
        for session, nodes in below:
            for node in nodes:
                output = node.output if node.path else session.output
                assert output is not None, "the root's rows were read"
                outputs.append(output)
                position = len(session.request.prefix) + len(node.path)
                places.append(Place(session.request, position, node.path))
        logits = self._head.logits(torch.stack(outputs), self._layers)
        found = iter(likeliest_after(logits, places, self._target, count))
        return [[next(found) for _ in nodes] for _, nodes in below]

    def _read(self, sessions: Sequence[_Session]) -> None:
        """Run uncached rows of the prefixes, at most MAX_PREFILL_ROWS of each."""
        rows = _HeadInputs()
        for session in sessions:
            start = session.num_cached
            token_ids = session.token_ids[start : start + MAX_PREFILL_ROWS]
            end = start + len(token_ids)
            positions = session.features.first + np.arange(start, end)
            rows.segments.append(Segment(session.table, start, token_ids, positions, "causal", ()))
            rows.states.append(session.features.rows(start, end))
        outputs = self._run(rows)
        for session, segment in zip(sessions, rows.segments, strict=True):
            mine, outputs = outputs[: segment.num_rows], outputs[segment.num_rows :]
            session.output = mine[-1]
            session.num_cached += segment.num_rows
            token_ids = session.token_ids[segment.start : session.num_cached]
            self._cache.commit(session.table, token_ids, segment.num_rows)

    def _guess(self, below: Sequence[tuple[_Session, Sequence[DraftNode]]]) -> None:
        """Run the rows of drafted tokens, which gives each node its output."""
        rows = _HeadInputs()
        for session, nodes in below:
            rows.segments.append(_segment(session, nodes))
            states = [_state_before(session, node) for node in nodes]
            rows.states.append(torch.stack(states))
        outputs = iter(self._run(rows))
        for _, nodes in below:
            for node in nodes:
                node.output = next(outputs)

    def _run(self, rows: _HeadInputs) -> torch.Tensor:
        num_rows = sum(segment.num_rows for segment in rows.segments)
        padding = self._padding(num_rows)
        token_ids = np.concatenate([segment.token_ids for segment in rows.segments])
        positions = np.concatenate([segment.positions for segment in rows.segments])
        packed = PackedBatch(rows.segments, self._cache, num_padding=padding)
        outputs: torch.Tensor = self._head(
            self._head.embed(self._padded(token_ids, padding), self._layers),
            self._padded_states(torch.cat(rows.states), padding),
            self._padded(positions, padding),
            packed,
        )
        return outputs[:num_rows]


def _segment(session: _Session, nodes: Sequence[DraftNode]) -> Segment:
    """Lay out rows of nodes; each sees the prefix, the nodes above it and itself."""
    first, num_rows = session.num_drafted, session.num_drafted + len(nodes)
    visible = np.zeros((len(nodes), num_rows), np.bool_)
    for row, node in enumerate(nodes):
        above = node.above.rows if node.above is not None else ()
        node.rows = (*above, first + row)
        visible[row, list(node.rows)] = True
    session.num_drafted = num_rows
    last = len(session.request.prefix) - 2  # position of the prefix's last row
    token_ids = np.array([node.token_id for node in nodes], np.int32)
    positions = np.array([last + len(node.path) for node in nodes])
    return Segment(session.table, session.num_cached + first, token_ids, positions, visible, ())


def _state_before(session: _Session, node: DraftNode) -> torch.Tensor:
    above = node.above
    output = above.output if above is not None and above.path else session.output
    assert output is not None, "what is above a node comes first"
    return output
