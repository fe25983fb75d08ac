"""Batches of requests as deltas and rows, and back.

Rows of one request (hypothetical continuations) refer to a single delta, their common prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.types import NO_TOKENS, DraftRequest, Lattice, TokenIds, VerifyRequest
from diffuspec.rpc.messages.bounds import Bounds
from diffuspec.rpc.messages.prefixes import (
    Held,
    PrefixStore,
    apply_delta,
    encode_delta,
    num_common_tokens,
    pack_token_ids,
    to_bytes,
    to_token_ids,
)
from diffuspec.rpc.messages.values import (
    TREE_SHAPE_NAMES,
    TREE_SHAPES,
    lattice_from_proto,
    states_from_proto,
    states_to_proto,
    tree_from_proto,
    tree_to_proto,
    wanted_from_proto,
    wanted_to_proto,
)
from diffuspec.v1.drafter_pb2 import DraftRequest as DraftBatch
from diffuspec.v1.path_scorer_pb2 import SearchRequest
from diffuspec.v1.types_pb2 import DraftRow, PrefixDelta
from diffuspec.v1.verifier_pb2 import VerifyRequest as VerifyBatch, VerifyRow

DraftingBatch: TypeAlias = DraftBatch | SearchRequest


class _Place(NamedTuple):
    """The location of a row's prefix in a batch: a delta, and tokens after it."""

    delta: int
    token_ids: Sequence[int]


def encode_draft_rows(
    batch: DraftingBatch, requests: Sequence[DraftRequest], store: PrefixStore
) -> None:
    """Put the requests into a batch. The stream records their prefixes as sent."""
    deltas, places = _encode_prefixes(requests, store)
    batch.prefixes.extend(deltas)
    batch.rows.extend(
        [
            DraftRow(
                prefix=place.delta,
                token_ids=place.token_ids,
                num_draft_tokens=request.num_draft_tokens,
                tree_shape=TREE_SHAPES[request.tree_shape],
                max_nodes=request.max_nodes,
                drafter_weight=request.drafter_weight,
                num_alternatives=request.num_alternatives,
                num_prompt_tokens=request.num_prompt_tokens,
                states=states_to_proto(request.states),
            )
            for request, place in zip(requests, places, strict=True)
        ]
    )


def encode_verify_rows(
    batch: VerifyBatch, requests: Sequence[VerifyRequest], store: PrefixStore
) -> None:
    """Put the requests into a batch. The stream records their prefixes as sent."""
    deltas, places = _encode_prefixes(requests, store)
    batch.prefixes.extend(deltas)
    batch.rows.extend(
        [
            VerifyRow(
                prefix=place.delta,
                token_ids=place.token_ids,
                num_prompt_tokens=request.num_prompt_tokens,
                tree=tree_to_proto(request.tree),
                states_wanted=wanted_to_proto(request.states_wanted),
                max_read_tokens=request.max_read_tokens,
            )
            for request, place in zip(requests, places, strict=True)
        ]
    )


def _encode_prefixes(
    requests: Sequence[DraftRequest | VerifyRequest], store: PrefixStore
) -> tuple[list[PrefixDelta], list[_Place]]:
    groups: dict[tuple[str, int], list[int]] = {}
    for row, request in enumerate(requests):
        groups.setdefault((request.request_id, id(request.sampling)), []).append(row)
    deltas: list[PrefixDelta] = []
    places = [_Place(0, ())] * len(requests)
    for (request_id, _), rows in groups.items():
        shared = requests[rows[0]].prefix
        if len(rows) > 1:
            shared = shared[: num_common_tokens([to_bytes(requests[row].prefix) for row in rows])]
        for row in rows:
            rest = requests[row].prefix[len(shared) :]
            places[row] = _Place(len(deltas), rest.tolist())
        first = requests[rows[0]]
        prediction = first.prediction if isinstance(first, DraftRequest) else NO_TOKENS
        deltas.append(encode_delta(store, request_id, shared, first.sampling, prediction))
    store.trim()
    return deltas, places


class BatchReader:
    """Converts the batches of one stream to requests.

    Their ids get a prefix that is unique to the stream, since two coordinators may use the same
    ids.
    """

    def __init__(self, store: PrefixStore, bounds: Bounds, scope: str) -> None:
        self._store = store
        self._bounds = bounds
        self.scope = scope
        self._forgotten: list[str] = []

    def take_forgotten(self) -> list[str]:
        """Return the request ids for which the stream had no more room."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def draft_requests(self, batch: DraftingBatch) -> list[DraftRequest]:
        """Return the requests. Raises InvalidRequestError, and StalePrefixError."""
        bounds = self._bounds
        bounds.check_batch(len(batch.prefixes), len(batch.rows), bounds.max_draft_rows)
        for row in batch.rows:
            bounds.check_draft_row(row)
            if row.tree_shape not in TREE_SHAPE_NAMES:
                raise InvalidRequestError(f"there is no tree shape {row.tree_shape}")
        held = self._read_prefixes(batch.prefixes)
        prefixes = self._row_prefixes(batch.rows, held)
        return [
            DraftRequest(
                request_id=self.scope + batch.prefixes[row.prefix].request_id,
                prefix=prefix,
                num_draft_tokens=row.num_draft_tokens,
                tree_shape=TREE_SHAPE_NAMES[row.tree_shape],
                max_nodes=row.max_nodes,
                drafter_weight=row.drafter_weight,
                sampling=held[row.prefix].sampling,
                num_alternatives=row.num_alternatives,
                num_prompt_tokens=row.num_prompt_tokens,
                states=states_from_proto(row),
                prediction=held[row.prefix].prediction,
            )
            for row, prefix in zip(batch.rows, prefixes, strict=True)
        ]

    def lattices(self, batch: SearchRequest) -> list[Lattice]:
        """Return one lattice per row. Raises InvalidRequestError."""
        if len(batch.lattices) != len(batch.rows):
            raise InvalidRequestError(
                f"a batch must have a lattice per row, got {len(batch.lattices)} for "
                f"{len(batch.rows)} rows"
            )
        lattices = [lattice_from_proto(lattice) for lattice in batch.lattices]
        for lattice, row in zip(lattices, batch.rows, strict=True):
            self._bounds.check_lattice(lattice, row.num_draft_tokens)
        return lattices

    def verify_requests(self, batch: VerifyBatch) -> list[VerifyRequest]:
        """Return the requests. Raises InvalidRequestError, and StalePrefixError."""
        bounds = self._bounds
        bounds.check_batch(len(batch.prefixes), len(batch.rows), bounds.target.max_sequences)
        held = self._read_prefixes(batch.prefixes)
        prefixes = self._row_prefixes(batch.rows, held)
        for row, prefix in zip(batch.rows, prefixes, strict=True):
            bounds.check_verify_row(row, len(prefix))
        return [
            VerifyRequest(
                request_id=self.scope + batch.prefixes[row.prefix].request_id,
                prefix=prefix,
                num_prompt_tokens=row.num_prompt_tokens,
                tree=tree_from_proto(row.tree),
                sampling=held[row.prefix].sampling,
                states_wanted=wanted_from_proto(row),
                max_read_tokens=row.max_read_tokens if row.HasField("max_read_tokens") else None,
            )
            for row, prefix in zip(batch.rows, prefixes, strict=True)
        ]

    def _read_prefixes(self, deltas: Sequence[PrefixDelta]) -> list[Held]:
        for delta in deltas:
            self._bounds.check_delta(delta)
        held = [apply_delta(self._store, delta) for delta in deltas]
        self._forgotten += self._store.trim()
        for one in held:
            self._bounds.check_sampling(one.sampling)
        return held

    def _row_prefixes(
        self, rows: Iterable[DraftRow | VerifyRow], held: Sequence[Held]
    ) -> list[TokenIds]:
        prefixes = []
        for row in rows:
            if row.prefix >= len(held):
                raise InvalidRequestError(f"a row builds on prefix {row.prefix} of {len(held)}")
            base = held[row.prefix]
            self._bounds.check_prefix(base.num_tokens + len(row.token_ids), row.token_ids)
            data = base.data + pack_token_ids(row.token_ids) if row.token_ids else base.data
            prefixes.append(to_token_ids(data))
        return prefixes
