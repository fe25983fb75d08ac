"""The requests of one engine: their tokens, and how much may be drafted for each."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Sequence
from dataclasses import dataclass, field
from typing import Literal

from diffuspec.adl.acceptance import SharedExpectation
from diffuspec.algorithm.outcomes import OutcomeModel
from diffuspec.core.interfaces import TargetInfo
from diffuspec.draft_server.request import EngineRequest
from diffuspec.v1.draft_service_pb2 import Hello, RequestRow


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
        forget: Callable[[EngineRequest], None],
    ) -> None:
        """`name`: unique among engines. `forget` is called with each request that has ended."""
        self._name = name
        self._hello = hello
        self._info = info
        self._weight = drafter_weight
        self._forget = forget
        self._shared = SharedExpectation(min(hello.max_draft_tokens, 128))
        self._outcomes = OutcomeModel()
        self._by_id: dict[str, EngineRequest] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def items(self) -> ItemsView[str, EngineRequest]:
        """The requests, by the engine's ids."""
        return self._by_id.items()

    def end(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            request = self._by_id.pop(request_id, None)
            if request is not None:
                self._forget(request)

    def end_all(self) -> None:
        self.end([*self._by_id])

    def take(self, rows: Sequence[RequestRow]) -> Advance:
        """Add the new tokens of all rows. Requests that have been absent for long are ended."""
        found = Advance()
        for number, row in enumerate(rows):
            request = self._by_id.get(row.request_id)
            if request is None and not row.base_length:
                request, found.is_whole = self._new(row), False
            if request is None or row.base_length > request.num_tokens:
                found.requests.append(self._make("", 0))
                found.unknown.add(number)
                found.is_whole = False
                continue
            verdict = request.advance(row.base_length, row.token_ids)
            if verdict is not None:
                found.num_accepted += verdict.num_accepted_tokens
            request.priority = row.priority
            self._bound(request, row)
            # the most recent one last
            self._by_id[row.request_id] = self._by_id.pop(row.request_id)
            found.requests.append(request)
        self.end([*self._by_id][: max(len(self._by_id) - 2 * self._hello.max_requests, 0)])
        return found

    def _bound(self, request: EngineRequest, row: RequestRow) -> None:
        """Update how much may be drafted for a request from now on."""
        is_foreign = max(row.token_ids, default=0) >= self._info.vocab_size
        request.is_foreign = request.is_foreign or is_foreign
        fits = request.num_tokens < self._info.max_model_len and not request.is_foreign
        limits = (row.max_draft_tokens, self._hello.max_draft_tokens)
        request.max_draft_tokens = min(one for one in limits if one) if fits else 0
        longest = min(self._hello.max_model_len, self._info.max_model_len)
        request.num_left = row.max_tokens_left or longest - request.num_tokens
        if request.num_tokens >= self._info.max_model_len:
            request.drop_tokens()

    def _new(self, row: RequestRow) -> EngineRequest:
        request = self._make(f"{self._name}/{row.request_id}", row.num_prompt_tokens)
        self._by_id[row.request_id] = request
        return request

    def _make(self, name: str, num_prompt_tokens: int) -> EngineRequest:
        shared, outcomes = self._shared, self._outcomes
        return EngineRequest(name, num_prompt_tokens, shared, outcomes, self._weight)
