"""Lookahead decoding: drafts n-grams that Jacobi iteration finds alongside the answer.

Fu et al., Break the Sequential Dependency of LLM Inference Using Lookahead Decoding (arXiv
2402.02057); algorithm and constants are those of Spec-Bench's model/lade. A window of W columns and
N - 1 rows of guesses is part of every verification. The first row is a chain, and the other rows of
a column are a branch below that column's guess, so the whole window is a tree. The target's tokens
after the last row complete W n-grams, which go into a pool, and become the new last row. Up to G
n-grams of the pool that follow the last token are verified in the same pass.

Differences from the original: a correct guess is accepted like any draft; the pool also takes
n-grams of prompt and answer; and there are fewer columns if there is no room for more in the
requested nodes or tokens. The policy `cost_aware` drops the window, since it is hardly ever
accepted, and keeps the pool of prompt and answer. To verify the whole window, use the policy
`fixed` with at least W + N - 2 tokens, and max_nodes of 2 * W * (N - 1).
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

from diffuspec.core.drafter_config import LookaheadConfig
from diffuspec.core.interfaces import ObservableVerifier, Observation, PathScorer, TargetInfo
from diffuspec.core.types import Draft, DraftRequest, TokenIds
from diffuspec.drafters.kind import DrafterKind, Target
from diffuspec.drafters.tree_builder import ROOT, TreeBuilder, draft_each

# P(token accepted | parent accepted): for the first token of an n-gram by its rank in the pool,
# latest first; for its other tokens; and for a guess in the window.
_FIRST_PRIORS = (0.3, 0.12, 0.08, 0.05)
_NEXT_PRIOR = 0.6
_GUESS_PRIOR = 0.015

_MAX_DRAFTS_PER_REQUEST = 32  # drafts that may still be verified, hypothetical prefixes included


@dataclass(slots=True)
class _State:
    """The window and n-grams of one request."""

    rows: list[list[int]]  # rows 1 to N - 1 of the window, of equal length
    pool: dict[int, OrderedDict[tuple[int, ...], None]] = field(default_factory=dict)
    num_read: int = 0  # tokens of the text whose n-grams are in the pool


class LookaheadDrafter:
    """A Drafter that observes the verifier in this process.

    The window and the pool of a request are guesses, and may be dropped at any time: if requests
    are not released, only those of the latest requests are kept.
    """

    num_top = 0
    hidden_layers = ()

    def __init__(
        self,
        config: LookaheadConfig,
        info: TargetInfo,
        verifier: ObservableVerifier,
    ) -> None:
        self._config = config
        self._eos_token_ids = frozenset(info.eos_token_ids)
        self._max_requests = info.max_sequences
        self._states: OrderedDict[str, _State] = OrderedDict()
        self._drafted: OrderedDict[bytes, str] = OrderedDict()  # request ids by prefix
        self._lock = Lock()  # verifications are observed in the verifier's thread
        self._verifier = verifier
        verifier.add_observer(self)

    @property
    def is_active(self) -> bool:
        """Whether there are requests to draft for."""
        return bool(self._states)

    def observe(self, observations: Sequence[Observation]) -> None:
        """Take the tokens after the last row of each verified window."""
        with self._lock:
            for one in observations:
                state = self._states.get(self._drafted.pop(one.prefix.tobytes(), ""))
                if state is not None:
                    self._advance(state, one)

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return one draft per request, in order."""
        with self._lock:
            return draft_each(requests, self._draft)

    async def release(self, request_id: str) -> None:
        self._states.pop(request_id, None)

    def close(self) -> None:
        self._verifier.remove_observer(self)

    def _draft(self, request: DraftRequest) -> Draft:
        state = self._state_of(request)
        self._read(state, request.prefix)
        builder = TreeBuilder(request, self._eos_token_ids)
        num_columns = len(state.rows[0]) if state.rows else 0
        num_rows = self._config.ngram_tokens - 1
        has_room = num_columns + num_rows - 1 <= request.num_draft_tokens
        num_guesses = (request.max_nodes - num_columns * num_rows * has_room) // num_rows
        self._add_ngrams(builder, state, request, min(num_guesses, self._config.num_guesses))
        if has_room:
            _add_window(builder, state.rows)
        self._drafted[request.prefix.tobytes()] = request.request_id
        if len(self._drafted) > _MAX_DRAFTS_PER_REQUEST * self._max_requests:
            self._drafted.popitem(last=False)
        return builder.draft()

    def _add_ngrams(
        self, builder: TreeBuilder, state: _State, request: DraftRequest, count: int
    ) -> None:
        """Add the latest n-grams of the pool that follow the last token."""
        known = reversed(state.pool.get(int(request.prefix[-1]), OrderedDict()))
        for place, ngram in zip(range(count), known, strict=False):
            first = _FIRST_PRIORS[min(place, len(_FIRST_PRIORS) - 1)]
            confidences = [math.log(first)] + [math.log(_NEXT_PRIOR)] * (len(ngram) - 1)
            builder.add_chain(ngram[: request.num_draft_tokens], confidences)

    def _state_of(self, request: DraftRequest) -> _State:
        state = self._states.get(request.request_id)
        if state is None:
            state = self._states[request.request_id] = _State(self._first_rows(request))
        self._states.move_to_end(request.request_id)
        if len(self._states) > self._max_requests:
            self._states.popitem(last=False)
        return state

    def _first_rows(self, request: DraftRequest) -> list[list[int]]:
        """Return a window of one row of random tokens of the text; empty if it has no room."""
        num_rows = self._config.ngram_tokens - 1
        room = request.num_draft_tokens - num_rows + 1, request.max_nodes // (2 * num_rows)
        num_columns = min(self._config.num_columns, *room)
        text = request.prefix.tolist()
        return [random.Random(len(text)).choices(text, k=num_columns)] if num_columns > 0 else []

    def _read(self, state: _State, text: TokenIds) -> None:
        """Add the n-grams of new text to the pool."""
        size = self._config.ngram_tokens
        first = max(state.num_read - size + 1, 0)
        new = text[first:].tolist()
        for start in range(len(new) - size + 1):
            self._put(state, new[start], tuple(new[start + 1 : start + size]))
        state.num_read = max(state.num_read, len(text))

    def _put(self, state: _State, token_id: int, ngram: tuple[int, ...]) -> None:
        """Make an n-gram the latest one after a token; drop the oldest beyond G."""
        known = state.pool.setdefault(token_id, OrderedDict())
        known[ngram] = None
        known.move_to_end(ngram)
        if len(known) > self._config.num_guesses:
            known.popitem(last=False)

    def _advance(self, state: _State, one: Observation) -> None:
        """Complete the columns with the target's tokens; do nothing if not all were verified."""
        edges = zip(one.tree.parents, one.tree.token_ids, strict=True)
        nodes = {edge: node for node, edge in enumerate(edges)}
        rows, found = state.rows, list[int]()
        above: int | None = ROOT
        for column in range(len(rows[0]) if rows else 0):
            above = nodes.get((above, rows[0][column])) if above is not None else None
            node = above
            for row in rows[1:]:
                node = nodes.get((node, row[column])) if node is not None else None
            if node is None:
                return
            found.append(one.token_ids[1 + node])
        if len(rows) == self._config.ngram_tokens - 1:
            for key, *ngram in zip(*rows, found, strict=True):
                self._put(state, key, tuple(ngram))
            rows = rows[1:]
        if found:
            state.rows = [*rows, found]


def _add_window(builder: TreeBuilder, rows: Sequence[Sequence[int]]) -> None:
    """Add the first row as a chain, and below each of its tokens the rest of that column."""
    confidence = math.log(_GUESS_PRIOR)
    above: int | None = ROOT
    for column in range(len(rows[0]) if rows else 0):
        above = builder.add(above, rows[0][column], confidence) if above is not None else None
        node = above
        for row in rows[1:]:
            node = builder.add(node, row[column], confidence) if node is not None else None


def _load(
    config: LookaheadConfig, target: Target, path_scorer: PathScorer | None
) -> LookaheadDrafter:
    return LookaheadDrafter(config, target.info, target.observed)


KIND = DrafterKind(LookaheadConfig, _load, observes=True)
