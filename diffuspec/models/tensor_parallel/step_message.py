"""The bytes with which rank 0 broadcasts a step.

A header in JSON, then the token ids of the prefixes, then masks. Nothing in it is ever evaluated,
because request ids and stop strings come from users.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.errors import VerifierError
from diffuspec.core.params import SamplingParams
from diffuspec.core.states import StatesWanted
from diffuspec.core.types import DraftTree, TokenIds, VerifyRequest
from diffuspec.text.answer_matchers import Admitted

_LENGTH_BYTES = 8  # size of the header's length, which is little-endian


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of all ranks. A step without requests shows that rank 0 is alive."""

    number: int  # counts from 1, without gaps
    released: Sequence[str] = ()  # request ids to forget first
    requests: Sequence[VerifyRequest] = ()
    admitted: Sequence[Admitted | None] = ()  # one for each request
    is_last: bool = False


def encode_step(step: Step) -> bytes:
    header = {
        "number": step.number,
        "released": list(step.released),
        "requests": [_describe(request) for request in step.requests],
        "admitted": [found and [found.nodes, found.masks.shape] for found in step.admitted],
        "is_last": step.is_last,
    }
    text = json.dumps(header).encode()
    prefixes = [request.prefix.astype("<i4").tobytes() for request in step.requests]
    masks = [found.masks.tobytes() for found in step.admitted if found is not None]
    return b"".join([len(text).to_bytes(_LENGTH_BYTES, "little"), text, *prefixes, *masks])


def decode_step(message: bytes) -> Step:
    """Decode a step. Raises VerifierError for a malformed message."""
    try:
        end = _LENGTH_BYTES + int.from_bytes(message[:_LENGTH_BYTES], "little")
        header = json.loads(message[_LENGTH_BYTES:end])
        lengths = [fields["num_tokens"] for fields in header["requests"]]
        token_ids, rest = _split(message[end:], "<i4", sum(lengths))
        admitted: list[Admitted | None] = []
        for fields in header["admitted"]:
            if fields is None:
                admitted.append(None)
                continue
            nodes, shape = fields
            masks, rest = _split(rest, "u1", math.prod(shape))
            admitted.append(Admitted(nodes, masks.reshape(shape)))
        if rest:
            raise ValueError(f"{len(rest)} bytes too many")
        token_ids = token_ids.astype(np.int32)
        prefixes = np.split(token_ids, np.cumsum(lengths)[:-1]) if lengths else []
        requests = [
            _request(fields, prefix)
            for fields, prefix in zip(header["requests"], prefixes, strict=True)
        ]
        return Step(header["number"], header["released"], requests, admitted, header["is_last"])
    except (ValueError, KeyError, TypeError) as error:
        raise VerifierError(f"a message between ranks cannot be read: {error!r}") from error


def _split(data: bytes, dtype: str, count: int) -> tuple[NDArray[Any], bytes]:
    """Return the first `count` numbers of a message, and its rest."""
    size = count * np.dtype(dtype).itemsize
    if len(data) < size:
        raise ValueError(f"{len(data)} bytes for {count} numbers of {dtype}")
    return np.frombuffer(data[:size], dtype).copy(), data[size:]


def _describe(request: VerifyRequest) -> dict[str, Any]:
    return {
        "request_id": request.request_id,
        "num_tokens": len(request.prefix),
        "num_prompt_tokens": request.num_prompt_tokens,
        "token_ids": request.tree.token_ids,
        "parents": request.tree.parents,
        "sampling": asdict(request.sampling),
        "states_wanted": request.states_wanted and asdict(request.states_wanted),
        "max_read_tokens": request.max_read_tokens,
    }


def _request(fields: dict[str, Any], prefix: TokenIds) -> VerifyRequest:
    return VerifyRequest(
        request_id=fields["request_id"],
        prefix=prefix,
        num_prompt_tokens=fields["num_prompt_tokens"],
        tree=DraftTree(tuple(fields["token_ids"]), tuple(fields["parents"])),
        sampling=SamplingParams(**fields["sampling"]),
        states_wanted=_states_wanted(fields["states_wanted"]),
        max_read_tokens=fields["max_read_tokens"],
    )


def _states_wanted(fields: dict[str, Any] | None) -> StatesWanted | None:
    return None if fields is None else StatesWanted(tuple(fields["layers"]), fields["first"])
