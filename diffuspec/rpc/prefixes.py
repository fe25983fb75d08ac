"""Prefixes as changes: what both ends of a stream remember of each request.

The sender sends what came after the tokens that the receiver holds already, with their number and
hash. The receiver may have forgotten them, or never had them: then the sender sends them all.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from diffuspec.errors import InvalidRequestError, StalePrefixError
from diffuspec.rpc.convert import sampling_from_proto, sampling_to_proto
from diffuspec.types import SamplingParams, TokenIds
from diffuspec.v1.types_pb2 import PrefixDelta

_NO_TOKENS = np.zeros(0, np.int32)
_DIGEST_SIZE = 8


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A prefix as both ends know it. The tokens never change."""

    token_ids: TokenIds
    hasher: hashlib.blake2b  # over all of them
    sampling: SamplingParams

    def base_hash(self, length: int) -> int:
        """Hash the first so many tokens."""
        return int.from_bytes(self.hasher_at(length).digest(), "little")

    def hasher_at(self, length: int) -> hashlib.blake2b:
        if length == len(self.token_ids):
            return self.hasher
        return _hasher(self.token_ids[:length])

    def extended(self, length: int, token_ids: TokenIds, sampling: SamplingParams) -> Held:
        """Return the first so many tokens with others after them."""
        if not len(token_ids) and length == len(self.token_ids):
            tokens, hasher = self.token_ids, self.hasher
        else:
            tokens = np.concatenate([self.token_ids[:length], token_ids])
            tokens.flags.writeable = False
            hasher = self.hasher_at(length).copy()
            hasher.update(_bytes(token_ids))
        return Held(tokens, hasher, sampling)


class PrefixStore:
    """The prefixes of one stream, the least recently used forgotten first."""

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
        self._num_tokens += len(held.token_ids)

    def trim(self) -> list[str]:
        """Forget what there is no room for. Returns whose prefixes those were."""
        forgotten = []
        while len(self._held) > self._max_prefixes or self._num_tokens > self._max_tokens:
            oldest = next(iter(self._held))
            self.forget(oldest)
            forgotten.append(oldest)
        return forgotten

    def forget(self, request_id: str) -> None:
        held = self._held.pop(request_id, None)
        if held is not None:
            self._num_tokens -= len(held.token_ids)


def encode_delta(
    store: PrefixStore, request_id: str, prefix: TokenIds, sampling: SamplingParams
) -> PrefixDelta:
    """Return what the receiver lacks of a prefix, and remember it as sent."""
    held = store.get(request_id)
    if held is None:
        base = Held(_NO_TOKENS, _hasher(_NO_TOKENS), sampling)
        length = 0
    else:
        base, length = held, num_common_tokens((held.token_ids, prefix))
    delta = PrefixDelta(
        request_id=request_id, base_length=length, token_ids=prefix[length:].tolist()
    )
    if length:
        delta.base_hash = base.base_hash(length)
    if held is None or (sampling is not held.sampling and sampling != held.sampling):
        delta.sampling.CopyFrom(sampling_to_proto(sampling))
    store.put(request_id, base.extended(length, prefix[length:], sampling))
    return delta


def apply_delta(store: PrefixStore, delta: PrefixDelta) -> Held:
    """Return the prefix that a delta makes, and remember it.

    Raises StalePrefixError when the base is not held, InvalidRequestError for ids of more than 31
    bits and for wrong sampling parameters.
    """
    held, length = store.get(delta.request_id), delta.base_length
    if held is None or length == 0:
        base = Held(_NO_TOKENS, _hasher(_NO_TOKENS), SamplingParams())
    else:
        base = held
    if length > len(base.token_ids) or (length and base.base_hash(length) != delta.base_hash):
        raise StalePrefixError(
            f"the first {length} tokens of request {delta.request_id} are not held here"
        )
    if delta.HasField("sampling"):
        sampling = sampling_from_proto(delta.sampling)
    elif held is None:
        raise StalePrefixError(f"no sampling parameters of request {delta.request_id} are held")
    else:
        sampling = held.sampling
    extended = base.extended(length, decode_token_ids(delta.token_ids), sampling)
    store.put(delta.request_id, extended)
    return extended


def decode_token_ids(token_ids: Iterable[int]) -> TokenIds:
    """Return packed ids as an array. Raises InvalidRequestError for more than 31 bits."""
    try:
        return np.array(token_ids, np.int32)
    except OverflowError as error:
        raise InvalidRequestError(f"token ids must be below 2**31: {error}") from error


def num_common_tokens(prefixes: Iterable[TokenIds]) -> int:
    """Return how many leading tokens are the same in all prefixes."""
    first, *others = prefixes
    length = len(first)
    for other in others:
        length = min(length, len(other))
        differs = first[:length] != other[:length]
        if differs.any():
            length = int(differs.argmax())
    return length


def _hasher(token_ids: TokenIds) -> hashlib.blake2b:
    return hashlib.blake2b(_bytes(token_ids), digest_size=_DIGEST_SIZE)


def _bytes(token_ids: TokenIds) -> bytes:
    return token_ids.astype("<i4", copy=False).tobytes()
