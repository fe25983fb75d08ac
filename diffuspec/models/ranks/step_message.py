"""The message with which rank 0 broadcasts a step, as bytes.

A header in JSON, then the token ids of the prefixes. It is data only, and never evaluated: request
ids and stop strings come from users.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from diffuspec.core.errors import VerifierError
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import DraftTree, StatesWanted, TokenIds, VerifyRequest

_LENGTH_BYTES = 8  # of the header, little-endian


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of all ranks. A step without requests shows that rank 0 is alive."""

    number: int  # from 1, without gaps
    released: Sequence[str] = ()  # request ids to forget first
    requests: Sequence[VerifyRequest] = ()
    is_last: bool = False


def encode_step(step: Step) -> bytes:
    header = {
        "number": step.number,
        "released": list(step.released),
        "requests": [_describe(request) for request in step.requests],
        "is_last": step.is_last,
    }
    text = json.dumps(header).encode()
    prefixes = [request.prefix.astype("<i4").tobytes() for request in step.requests]
    return b"".join([len(text).to_bytes(_LENGTH_BYTES, "little"), text, *prefixes])


def decode_step(message: bytes) -> Step:
    """Decode a step. Raises VerifierError if the message is not one."""
    try:
        end = _LENGTH_BYTES + int.from_bytes(message[:_LENGTH_BYTES], "little")
        header = json.loads(message[_LENGTH_BYTES:end])
        token_ids = np.frombuffer(message[end:], "<i4").astype(np.int32)
        lengths = [fields["num_tokens"] for fields in header["requests"]]
        if sum(lengths) != len(token_ids):
            raise ValueError(f"{len(token_ids)} token ids for prefixes of {lengths}")
        prefixes = np.split(token_ids, np.cumsum(lengths)[:-1]) if lengths else []
        requests = [
            _request(fields, prefix)
            for fields, prefix in zip(header["requests"], prefixes, strict=True)
        ]
        return Step(header["number"], header["released"], requests, header["is_last"])
    except (ValueError, KeyError, TypeError) as error:
        raise VerifierError(f"a message between ranks cannot be read: {error!r}") from error


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
