"""The requests of one engine: their tokens, and how much may be drafted for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, ItemsView, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams
from diffuspec.draft_server.held_tokens import TOKENS_PER_REQUEST, HeldTokens
from diffuspec.draft_server.request import EngineRequest
from diffuspec.draft_server.validation import highest_token_id
from diffuspec.speculation.acceptance import SharedAcceptance
from diffuspec.v1.draft_service_pb2 import Hello, RequestRow

_TURN_SECONDS = 0.005  # time after which other engines get a turn


@dataclass(slots=True)
class Advance:
    """The requests of a step, and sums over its rows."""

    requests: list[EngineRequest] = field(default_factory=list)  # one for each row, in order
    unknown: set[int] = field(default_factory=set)  # rows whose base is unknown here
    num_accepted: int = 0  # drafted tokens accepted
    is_whole: bool = True  # whether the engine only verified, without prefills


class EngineRequests:
    """Holds the requests of one engine, the most recent ones last.

    Of requests that are not drafted for, only the length is held: they are too long, have tokens
    that the drafter does not know, or find no room beside those of all engines.
    """

    def __init__(
        self,
        name: str,
        hello: Hello,
        info: TargetInfo,
        drafter_weight: float | Literal["adaptive"],
        forget: Callable[[Sequence[EngineRequest]], None],
        held_tokens: HeldTokens,
    ) -> None:
        """`name`: unique among engines. `forget` is called with requests that are held no more."""
        self.num_held = self.most_held = 0  # see Holder
        self._name = name
        self._hello = hello
        self._info = info
        self._weight = drafter_weight
        # The salt is the engine's, not the tenant's: any engine may name any tenant.
        self._sampling = SamplingParams(cache_salt=name)
        self._forget = forget
        self._shared = SharedAcceptance(hello.max_draft_tokens)
        self._by_id: dict[str, EngineRequest] = {}
        self._lengths: dict[str, int] = {}  # tokens of requests that are not drafted for, by id
        self._without_drafts = self._make("", 0)  # in answers, in place of each of these requests
        self._held_tokens = held_tokens
        held_tokens.add(self)

    def __len__(self) -> int:
        return len(self._by_id) + len(self._lengths)

    def items(self) -> ItemsView[str, EngineRequest]:
        """The requests that may be drafted for, by the engine's ids."""
        return self._by_id.items()

    def end(self, request_ids: Iterable[str]) -> None:
        """Remove requests; unknown ones are ignored."""
        ended = []
        for request_id in request_ids:
            self._lengths.pop(request_id, None)
            if (request := self._pop(request_id)) is not None:
                ended.append(request)
        if ended:
            self._forget(ended)

    def close(self) -> None:
        """Remove all requests: the engine has gone."""
        self.end([*self._by_id, *self._lengths])
        self._held_tokens.remove(self)

    def give_up_one(self) -> bool:
        """See Holder."""
        request_id = next(iter(self._by_id), None)
        if request_id is None:
            return False
        request = self._by_id[request_id]
        request.max_draft_tokens = 0  # a step in progress may still refer to it
        self.end([request_id])
        self._lengths[request_id] = request.num_tokens
        return True

    async def take(self, rows: Sequence[RequestRow]) -> Advance:
        """Add the new tokens of all rows. Requests that have been absent for long are ended.

        Other engines are served meanwhile. Raises InvalidRequestError for an unknown token id.
        """
        advance, turn = Advance(), time.monotonic()
        for number, row in enumerate(rows):
            if time.monotonic() - turn > _TURN_SECONDS:
                await asyncio.sleep(0)
                turn = time.monotonic()
            is_known = self._is_known(row)
            advance.is_whole &= is_known
            if is_known or not row.base_length:
                advance.num_accepted += self._add(row)
            else:
                advance.unknown.add(number)
            advance.requests.append(self._by_id.get(row.request_id, self._without_drafts))
        most = self._hello.max_requests
        self.end([*self._by_id][: max(len(self._by_id) - 2 * most, 0)])
        self.end([*self._lengths][: max(len(self._lengths) - most, 0)])
        return advance

    def _is_known(self, row: RequestRow) -> bool:
        """Return whether a row builds on tokens that are held here, or on a known length."""
        request = self._by_id.get(row.request_id)
        if request is not None:
            return row.base_length <= request.num_tokens
        return row.base_length == self._lengths.get(row.request_id)

    def _add(self, row: RequestRow) -> int:
        """Add the tokens of a row that may be added. Returns how many of them were drafted."""
        token_ids = row.token_ids[: self._info.max_model_len]
        highest = highest_token_id(token_ids, self._hello)
        length, num_accepted = row.base_length + len(row.token_ids), 0
        request, was_given_up = self._pop(row.request_id), row.request_id in self._lengths
        if request is not None:
            verdict = request.advance(row.base_length, token_ids)
            num_accepted = verdict.num_accepted_tokens if verdict is not None else 0
        may_draft = length < self._info.max_model_len and highest < self._info.vocab_size
        may_draft = may_draft and not (was_given_up and row.base_length)
        self._lengths.pop(row.request_id, None)
        if may_draft and self._held_tokens.make_room(self, TOKENS_PER_REQUEST + length):
            if request is None:
                request = self._make(f"{self._name}/{row.request_id}", row.num_prompt_tokens)
                request.advance(0, token_ids)
            self._by_id[row.request_id] = request
            self.num_held += _num_held(request)
            self.most_held = max(self.most_held, self.num_held)
            self._bound(request, row)
            return num_accepted
        if request is not None:
            self._forget([request])
        self._lengths[row.request_id] = length
        return num_accepted

    def _pop(self, request_id: str) -> EngineRequest | None:
        request = self._by_id.pop(request_id, None)
        if request is not None:
            self.num_held -= _num_held(request)
        return request

    def _bound(self, request: EngineRequest, row: RequestRow) -> None:
        """Update how much may be drafted for a request."""
        limits = (row.max_draft_tokens, self._hello.max_draft_tokens)
        request.max_draft_tokens = min(limit for limit in limits if limit)
        left = min(self._hello.max_model_len, self._info.max_model_len) - request.num_tokens
        request.num_left = min(row.max_tokens_left or left, left)
        request.priority = row.priority

    def _make(self, name: str, num_prompt_tokens: int) -> EngineRequest:
        weight, sampling = self._weight, self._sampling
        return EngineRequest(name, num_prompt_tokens, self._shared, weight, sampling)


def _num_held(request: EngineRequest) -> int:
    return TOKENS_PER_REQUEST + request.num_tokens
