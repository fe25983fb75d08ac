"""The requests of one engine: their tokens, and how much may be drafted for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, ItemsView, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from diffuspec.adl.acceptance import SharedExpectation
from diffuspec.algorithm.outcomes import OutcomeModel
from diffuspec.core.interfaces import TargetInfo
from diffuspec.draft_server.request import EngineRequest
from diffuspec.draft_server.validation import highest_token_id
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
    """Holds the requests of one engine, the most recent ones last."""

    def __init__(
        self,
        name: str,
        hello: Hello,
        info: TargetInfo,
        drafter_weight: float | Literal["adaptive"],
        forget: Callable[[Sequence[EngineRequest]], None],
    ) -> None:
        """`name`: unique among engines. `forget` is called with requests that have ended."""
        self._name = name
        self._hello = hello
        self._info = info
        self._weight = drafter_weight
        self._forget = forget
        self._shared = SharedExpectation(hello.max_draft_tokens)
        self._outcomes = OutcomeModel()
        self._by_id: dict[str, EngineRequest] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def items(self) -> ItemsView[str, EngineRequest]:
        """The requests, by the engine's ids."""
        return self._by_id.items()

    def end(self, request_ids: Iterable[str]) -> None:
        """Remove requests; unknown ones are ignored."""
        ended = [self._by_id.pop(one) for one in request_ids if one in self._by_id]
        if ended:
            self._forget(ended)

    def end_all(self) -> None:
        self.end([*self._by_id])

    async def take(self, rows: Sequence[RequestRow]) -> Advance:
        """Add the new tokens of all rows. Requests that have been absent for long are ended.

        Other engines are served meanwhile. Raises InvalidRequestError for an unknown token id.
        """
        found, turn = Advance(), time.monotonic()
        for number, row in enumerate(rows):
            if time.monotonic() - turn > _TURN_SECONDS:
                await asyncio.sleep(0)
                turn = time.monotonic()
            request = self._by_id.get(row.request_id)
            if request is None or not request.holds(row.base_length):
                found.is_whole = False
                if row.base_length:
                    found.requests.append(self._make("", 0))
                    found.unknown.add(number)
                    continue
                request = self._new(row)
            token_ids = row.token_ids[: self._info.max_model_len]
            highest = highest_token_id(token_ids, self._hello)
            verdict = request.advance(row.base_length, token_ids)
            if verdict is not None:
                found.num_accepted += verdict.num_accepted_tokens
            request.priority = row.priority
            self._bound(request, row, highest)
            # the most recent one last
            self._by_id[row.request_id] = self._by_id.pop(row.request_id)
            found.requests.append(request)
        self.end([*self._by_id][: max(len(self._by_id) - 2 * self._hello.max_requests, 0)])
        return found

    def _bound(self, request: EngineRequest, row: RequestRow, highest: int) -> None:
        """Update how much may be drafted for a request. `highest`: of its new token ids."""
        request.is_foreign = request.is_foreign or highest >= self._info.vocab_size
        length = row.base_length + len(row.token_ids)
        if length >= self._info.max_model_len:
            request.drop_tokens(length)
        limits = (row.max_draft_tokens, self._hello.max_draft_tokens)
        may_draft = not (request.is_foreign or request.is_dropped)
        request.max_draft_tokens = min(one for one in limits if one) if may_draft else 0
        left = min(self._hello.max_model_len, self._info.max_model_len) - request.num_tokens
        request.num_left = min(row.max_tokens_left or left, left)

    def _new(self, row: RequestRow) -> EngineRequest:
        self.end([row.request_id])
        request = self._make(f"{self._name}/{row.request_id}", row.num_prompt_tokens)
        self._by_id[row.request_id] = request
        return request

    def _make(self, name: str, num_prompt_tokens: int) -> EngineRequest:
        shared, outcomes = self._shared, self._outcomes
        return EngineRequest(name, num_prompt_tokens, shared, outcomes, self._weight)
