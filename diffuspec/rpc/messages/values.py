"""Values of diffuspec.core.types as messages, and back.

Conversion is exact, including floats. The form of a message (dimensions, one confidence per node)
is checked here; the roles check the meaning of its values.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import HostedDrafter, TargetInfo
from diffuspec.core.pages import PageUse
from diffuspec.core.params import MAX_DRAFT_TOKENS, SamplingParams, TreeShape
from diffuspec.core.states import StateRows, StatesWanted
from diffuspec.core.types import Draft, DraftTree, Lattice, TokenLogprobs, Verdict
from diffuspec.rpc.messages.parameters import (
    enum_numbers,
    parameters_from_proto,
    parameters_to_proto,
)
from diffuspec.v1 import types_pb2, verifier_pb2

TREE_SHAPES: dict[Any, Any] = enum_numbers(types_pb2.TreeShape.DESCRIPTOR)  # numbers by TreeShape
TREE_SHAPE_NAMES: dict[int, TreeShape] = {number: name for name, number in TREE_SHAPES.items()}

_DEFAULT_SAMPLING = SamplingParams()
_MAX_CANDIDATES = 256
_STATE_BYTES = 2  # bytes of one number in a hidden state
_MAX_STATE_BYTES = 2 * StateRows.MAX_BYTES

_Alternatives: TypeAlias = tuple[tuple[tuple[int, float], ...], ...]


def same_fields(kind: type[Any], value: object) -> dict[str, Any]:
    """Return the fields of a dataclass, from an instance or a message with the same fields."""
    return {field.name: getattr(value, field.name) for field in fields(kind)}


def sampling_to_proto(sampling: SamplingParams) -> types_pb2.SamplingParams:
    """Return a message. Raises InvalidRequestError for numbers that no field can hold."""
    return parameters_to_proto(sampling, types_pb2.SamplingParams)


def sampling_from_proto(message: types_pb2.SamplingParams) -> SamplingParams:
    """Return the parameters in a message. Raises InvalidRequestError."""
    return parameters_from_proto(message, _DEFAULT_SAMPLING)


def wanted_to_proto(wanted: StatesWanted | None) -> types_pb2.StatesWanted | None:
    if wanted is None:
        return None
    return types_pb2.StatesWanted(layers=wanted.layers, first=wanted.first)


def wanted_from_proto(message: Any) -> StatesWanted | None:
    """Return the wanted states in a message that has such a field."""
    if not message.HasField("states_wanted"):
        return None
    return StatesWanted(tuple(message.states_wanted.layers), message.states_wanted.first)


def states_to_proto(states: StateRows | None) -> types_pb2.StateRows | None:
    if states is None:
        return None
    rows, columns = states.dims
    return types_pb2.StateRows(
        first=states.first, num_rows=rows, num_columns=columns, data=states.data
    )


def states_from_proto(message: Any) -> StateRows | None:
    """Return the states in a message that has such a field. Raises InvalidRequestError."""
    if not message.HasField("states"):
        return None
    states = message.states
    dims = states.num_rows, states.num_columns
    if len(states.data) != _STATE_BYTES * math.prod(dims) or len(states.data) > _MAX_STATE_BYTES:
        raise InvalidRequestError(
            f"hidden states of shape {list(dims)} must be {_STATE_BYTES * math.prod(dims)} bytes, "
            f"at most {_MAX_STATE_BYTES}, got {len(states.data)}"
        )
    return StateRows(states.first, dims, states.data)


def tree_to_proto(tree: DraftTree) -> types_pb2.DraftTree:
    return types_pb2.DraftTree(token_ids=tree.token_ids, parents=tree.parents)


def tree_from_proto(message: types_pb2.DraftTree) -> DraftTree:
    return DraftTree(tuple(message.token_ids), tuple(message.parents))


def put_drafts(message: types_pb2.Drafts, drafts: Iterable[Draft]) -> None:
    """Put drafts into their message in place, since messages are copied into other messages."""
    message.SetInParent()
    for draft in drafts:
        _put_draft(message.drafts.add(), draft)


def _put_draft(message: types_pb2.Draft, draft: Draft) -> None:
    message.tree.token_ids.extend(draft.tree.token_ids)
    message.tree.parents.extend(draft.tree.parents)
    message.confidences.extend(draft.confidences)
    message.num_tokens_before_eos = draft.num_tokens_before_eos
    message.drafter_choices.extend(draft.drafter_choices)
    message.proxy_choices.extend(draft.proxy_choices)
    message.draft_seconds = draft.draft_seconds
    message.search_seconds = draft.search_seconds
    message.transport_seconds = draft.transport_seconds
    message.num_refreshed = draft.num_refreshed
    if draft.states_wanted is not None:
        message.states_wanted.layers.extend(draft.states_wanted.layers)
        message.states_wanted.first = draft.states_wanted.first
    if draft.alternatives:
        _put_alternatives(message.alternatives, draft.alternatives)


def draft_from_proto(message: types_pb2.Draft, transport_seconds: float = 0.0) -> Draft:
    """Return a draft, with transport_seconds added to its own. Raises InvalidRequestError."""
    num_nodes = len(message.tree.token_ids)
    if not len(message.tree.parents) == len(message.confidences) == num_nodes:
        raise InvalidRequestError(
            f"a draft must have a parent and a confidence per node, got "
            f"{len(message.tree.parents)} and {len(message.confidences)} for {num_nodes} nodes"
        )
    return Draft(
        tree=tree_from_proto(message.tree),
        confidences=tuple(message.confidences),
        num_tokens_before_eos=message.num_tokens_before_eos,
        drafter_choices=tuple(message.drafter_choices),
        proxy_choices=tuple(message.proxy_choices),
        draft_seconds=message.draft_seconds,
        search_seconds=message.search_seconds,
        alternatives=_alternatives_from_proto(message.alternatives),
        transport_seconds=message.transport_seconds + transport_seconds,
        states_wanted=wanted_from_proto(message),
        num_refreshed=message.num_refreshed,
    )


def _put_alternatives(message: types_pb2.Alternatives, alternatives: _Alternatives) -> None:
    rows = {id(entry): entry for entry in alternatives}  # nodes may share the object
    numbers = {key: number for number, key in enumerate(rows)}
    token_ids = [token_id for entry in rows.values() for token_id, _ in entry]
    logprobs = [logprob for entry in rows.values() for _, logprob in entry]
    message.row_lengths.extend([len(entry) for entry in rows.values()])
    message.token_ids = struct.pack(f"<{len(token_ids)}i", *token_ids)
    message.logprobs = struct.pack(f"<{len(logprobs)}d", *logprobs)
    message.rows.extend([numbers[id(entry)] for entry in alternatives])


def _alternatives_from_proto(message: types_pb2.Alternatives) -> _Alternatives:
    ends = [0, *itertools.accumulate(message.row_lengths)]
    if (len(message.token_ids), len(message.logprobs)) != (4 * ends[-1], 8 * ends[-1]):
        raise InvalidRequestError(
            f"{ends[-1]} alternatives must be {4 * ends[-1]} and {8 * ends[-1]} bytes, got "
            f"{len(message.token_ids)} and {len(message.logprobs)}"
        )
    token_ids = struct.unpack(f"<{ends[-1]}i", message.token_ids)
    pairs = tuple(zip(token_ids, struct.unpack(f"<{ends[-1]}d", message.logprobs), strict=True))
    rows = [pairs[start:end] for start, end in itertools.pairwise(ends)]
    highest = max(message.rows, default=-1)
    if highest >= len(rows):
        raise InvalidRequestError(f"alternatives are in row {highest} of {len(rows)}")
    return tuple([rows[row] for row in message.rows])


def _pairs(token_ids: Any, logprobs: Any) -> tuple[tuple[int, float], ...]:
    if len(token_ids) != len(logprobs):
        raise InvalidRequestError(
            f"{len(token_ids)} token ids but {len(logprobs)} log-probabilities"
        )
    return tuple(zip(token_ids, logprobs, strict=True))


def lattice_to_proto(lattice: Lattice) -> types_pb2.Lattice:
    num_positions, max_candidates = lattice.token_ids.shape
    return types_pb2.Lattice(
        num_positions=num_positions,
        max_candidates=max_candidates,
        token_ids=lattice.token_ids.astype("<i4", copy=False).tobytes(),
        logprobs=lattice.logprobs.astype("<f4", copy=False).tobytes(),
        num_candidates=lattice.num_candidates.astype("<i4", copy=False).tobytes(),
        num_tokens_before_eos=lattice.num_tokens_before_eos,
        num_refreshed=lattice.num_refreshed,
    )


def lattice_from_proto(message: types_pb2.Lattice) -> Lattice:
    """Return a lattice that shares the message's bytes. Raises InvalidRequestError."""
    rows, columns = message.num_positions, message.max_candidates
    if rows > MAX_DRAFT_TOKENS or columns > _MAX_CANDIDATES:
        raise InvalidRequestError(
            f"a lattice must have at most {MAX_DRAFT_TOKENS} positions of {_MAX_CANDIDATES} "
            f"candidates, got {rows} of {columns}"
        )
    token_ids: NDArray[np.int32] = _table("token_ids", message.token_ids, "<i4", (rows, columns))
    logprobs: NDArray[np.float32] = _table("logprobs", message.logprobs, "<f4", (rows, columns))
    counts: NDArray[np.int32] = _table("num_candidates", message.num_candidates, "<i4", (rows,))
    if rows and not 1 <= counts.min() <= counts.max() <= columns:
        raise InvalidRequestError(
            f"num_candidates must be from 1 to {columns}, got {counts.min()} to {counts.max()}"
        )
    if np.isnan(logprobs).any():
        raise InvalidRequestError("a lattice's log-probabilities must be numbers, got NaN")
    known = message.num_tokens_before_eos, message.num_refreshed
    return Lattice(token_ids, logprobs, counts, *known)


def _table(name: str, data: bytes, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    expected = 4 * math.prod(shape)  # for int32 and float32 alike
    if len(data) != expected:
        raise InvalidRequestError(
            f"{name} of shape {list(shape)} must be {expected} bytes, got {len(data)}"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def verdict_to_proto(verdict: Verdict) -> verifier_pb2.Verdict:
    return verifier_pb2.Verdict(
        token_ids=verdict.token_ids,
        accepted_nodes=verdict.accepted_nodes,
        logprobs=[logprobs_to_proto(one) for one in verdict.logprobs or ()],
        verify_seconds=verdict.verify_seconds,
        transport_seconds=verdict.transport_seconds,
        states=states_to_proto(verdict.states),
        num_cached_tokens=verdict.num_cached_tokens,
        num_unread_tokens=verdict.num_unread_tokens,
        is_held=verdict.is_held,
        pages=verdict.pages and verifier_pb2.PageUse(**verdict.pages._asdict()),
    )


def verdict_from_proto(message: verifier_pb2.Verdict, transport_seconds: float = 0.0) -> Verdict:
    """Return a verdict, with transport_seconds added to its own. Raises InvalidRequestError."""
    num_tokens = len(message.token_ids)
    if len(message.accepted_nodes) != num_tokens - 1:
        raise InvalidRequestError(
            f"a verdict must have one token more than accepted nodes, got {num_tokens} tokens and "
            f"{len(message.accepted_nodes)} nodes"
        )
    if len(message.logprobs) not in (0, num_tokens):
        raise InvalidRequestError(
            f"a verdict must have no log-probabilities or one per token, got "
            f"{len(message.logprobs)} for {num_tokens} tokens"
        )
    return Verdict(
        token_ids=tuple(message.token_ids),
        accepted_nodes=tuple(message.accepted_nodes),
        logprobs=tuple(map(logprobs_from_proto, message.logprobs)) or None,
        verify_seconds=message.verify_seconds,
        transport_seconds=message.transport_seconds + transport_seconds,
        states=states_from_proto(message),
        num_cached_tokens=message.num_cached_tokens,
        num_unread_tokens=message.num_unread_tokens,
        is_held=message.is_held,
        pages=(
            PageUse(message.pages.num_free, message.pages.num_shared)
            if message.HasField("pages")
            else None
        ),
    )


def logprobs_to_proto(logprobs: TokenLogprobs) -> types_pb2.TokenLogprobs:
    return types_pb2.TokenLogprobs(
        logprob=logprobs.logprob,
        top_token_ids=[token_id for token_id, _ in logprobs.top],
        top_logprobs=[logprob for _, logprob in logprobs.top],
        rank=logprobs.rank,
    )


def logprobs_from_proto(message: types_pb2.TokenLogprobs) -> TokenLogprobs:
    top = _pairs(message.top_token_ids, message.top_logprobs)
    return TokenLogprobs(message.logprob, top, message.rank if message.HasField("rank") else None)


def info_to_proto(
    info: TargetInfo, drafters: Sequence[HostedDrafter] = ()
) -> verifier_pb2.GetInfoResponse:
    hosted = [verifier_pb2.HostedDrafter(**same_fields(HostedDrafter, one)) for one in drafters]
    return verifier_pb2.GetInfoResponse(**same_fields(TargetInfo, info), drafters=hosted)


def info_from_proto(message: verifier_pb2.GetInfoResponse) -> TargetInfo:
    found = same_fields(TargetInfo, message)
    found["eos_token_ids"] = tuple(message.eos_token_ids)
    found["num_pages"] = message.num_pages if message.HasField("num_pages") else None
    found["row_multiple"] = message.row_multiple or 1  # 0: from an older verifier
    return TargetInfo(**found)


def hosted_from_proto(message: verifier_pb2.GetInfoResponse) -> tuple[HostedDrafter, ...]:
    return tuple(HostedDrafter(**same_fields(HostedDrafter, one)) for one in message.drafters)
