"""Prefixes as deltas: what both ends of a stream remember of each request.

The sender sends the tokens after those that the receiver already holds, with the number and hash of
the latter. If the receiver has forgotten these, or never had them, the sender sends all tokens.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from diffuspec.core.errors import InvalidRequestError, StalePrefixError
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import NO_TOKENS, TokenIds
from diffuspec.rpc.messages.values import sampling_from_proto, sampling_to_proto
from diffuspec.v1.types_pb2 import PrefixDelta

_DIGEST_SIZE = 8
TOKEN_SIZE = 4


class Held(NamedTuple):
    """A prefix known to both ends."""

    data: bytes  # its token ids, as little-endian int32
    hasher: hashlib.blake2b  # over all of data
    sampling: SamplingParams
    prediction: TokenIds = NO_TOKENS

    @property
    def num_tokens(self) -> int:
        return len(self.data) // TOKEN_SIZE

    def hasher_at(self, num_tokens: int) -> hashlib.blake2b:
        """Return the hasher over the first `num_tokens` tokens; it must not be updated."""
        if num_tokens == self.num_tokens:
            return self.hasher
        return _hasher(self.data[: num_tokens * TOKEN_SIZE])

    def extended(
        self, num_tokens: int, tail: bytes, sampling: SamplingParams, prediction: TokenIds
    ) -> Held:
        """Return the first `num_tokens` tokens followed by those of `tail`."""
        hasher = self.hasher_at(num_tokens)
        if tail:
            hasher = hasher.copy()
            hasher.update(tail)
        return Held(self.data[: num_tokens * TOKEN_SIZE] + tail, hasher, sampling, prediction)


class PrefixStore:
    """The prefixes of one stream; the least recently used are forgotten first."""

    def __init__(self, max_prefixes: int, max_tokens: int) -> None:
        self._max_prefixes = max_prefixes
        self._max_tokens = max_tokens
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def request_ids(self) -> list[str]:
        return list(self._held)

    def get(self, request_id: str) -> Held | None:
        return self._held.get(request_id)

    def put(self, request_id: str, held: Held) -> None:
        self.forget(request_id)
        self._held[request_id] = held
        self._num_tokens += held.num_tokens

    def trim(self) -> list[str]:
        """Forget the prefixes beyond the limits; return their request ids."""
        forgotten = []
        while len(self._held) > self._max_prefixes or self._num_tokens > self._max_tokens:
            oldest = next(iter(self._held))
            self.forget(oldest)
            forgotten.append(oldest)
        return forgotten

    def forget(self, request_id: str) -> None:
        held = self._held.pop(request_id, None)
        if held is not None:
            self._num_tokens -= held.num_tokens


def encode_delta(
    store: PrefixStore,
    request_id: str,
    prefix: TokenIds,
    sampling: SamplingParams,
    prediction: TokenIds = NO_TOKENS,
) -> PrefixDelta:
    """Return the part of a prefix that the receiver lacks, and remember it as sent."""
    held = store.get(request_id)
    data = to_bytes(prefix)
    if held is None:
        base, length = _nothing(sampling), 0
    elif data.startswith(held.data):
        base, length = held, held.num_tokens
    else:
        base, length = held, num_common_tokens([held.data, data])
    delta = PrefixDelta(
        request_id=request_id,
        base_length=length,
        base_hash=_digest(base.hasher_at(length)) if length else 0,
        token_ids=prefix[length:].tolist(),
    )
    if held is None or not _are_same(held, sampling, prediction):
        delta.sampling.CopyFrom(sampling_to_proto(sampling))
        delta.prediction.extend(prediction.tolist())
    tail = data[length * TOKEN_SIZE :]
    store.put(request_id, base.extended(length, tail, sampling, prediction))
    return delta


def apply_delta(store: PrefixStore, delta: PrefixDelta) -> Held:
    """Return the prefix that results from a delta, and remember it.

    Raises StalePrefixError if the base is unknown, and InvalidRequestError for ids of more than 31
    bits and wrong sampling parameters.
    """
    request_id, length = delta.request_id, delta.base_length
    held = store.get(request_id)
    base = _nothing(SamplingParams()) if held is None or not length else held
    if length > base.num_tokens or (length and _digest(base.hasher_at(length)) != delta.base_hash):
        raise StalePrefixError(f"the first {length} tokens of request {request_id} are not held")
    if delta.HasField("sampling"):
        sampling = sampling_from_proto(delta.sampling)
        prediction = to_token_ids(pack_token_ids(delta.prediction))
    elif held is None:
        raise StalePrefixError(f"no sampling parameters of request {request_id} are held")
    else:
        sampling, prediction = held.sampling, held.prediction
    extended = base.extended(length, pack_token_ids(delta.token_ids), sampling, prediction)
    store.put(request_id, extended)
    return extended


def pack_token_ids(token_ids: Sequence[int]) -> bytes:
    """Return ids as little-endian int32. Raises InvalidRequestError for more than 31 bits."""
    try:
        return struct.pack(f"<{len(token_ids)}i", *token_ids)
    except struct.error as error:
        raise InvalidRequestError(f"token ids must be below 2**31, got {max(token_ids)}") from error


def to_bytes(token_ids: TokenIds) -> bytes:
    return token_ids.astype("<i4", copy=False).tobytes()


def to_token_ids(data: bytes) -> TokenIds:
    """Return tokens that share these bytes and must not be modified."""
    return np.frombuffer(data, "<i4")


def num_common_tokens(prefixes: Sequence[bytes]) -> int:
    """Return the number of leading tokens, of four bytes each, that all prefixes share."""
    shortest = min(prefixes, key=len)
    num_tokens = len(shortest) // TOKEN_SIZE
    if all(prefix.startswith(shortest) for prefix in prefixes):
        return num_tokens
    first, last = min(prefixes), max(prefixes)  # all prefixes share what these two share
    differs = np.frombuffer(first, "<i4", num_tokens) != np.frombuffer(last, "<i4", num_tokens)
    return int(differs.argmax())


def _are_same(held: Held, sampling: SamplingParams, prediction: TokenIds) -> bool:
    if sampling is not held.sampling and sampling != held.sampling:
        return False
    return prediction is held.prediction or np.array_equal(prediction, held.prediction)


def _nothing(sampling: SamplingParams) -> Held:
    return Held(b"", _hasher(b""), sampling)


def _hasher(data: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=_DIGEST_SIZE)


def _digest(hasher: hashlib.blake2b) -> int:
    return int.from_bytes(hasher.digest(), "little")
