"""The thread between an asynchronous engine and a draft server.

The engine passes it the results of each step and continues at once. The thread reports the step to
the server, and stores the drafts that the server sends in the table.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from diffuspec_client.client import DraftClient, Row
from diffuspec_client.draft_service_pb2 import OutcomeTable
from diffuspec_client.draft_table import DraftTable
from diffuspec_client.problems import Problems

logger = logging.getLogger(__name__)

Tokens = NDArray[np.int32]


@dataclass
class Report:
    """The results of one step of the engine. Its arrays may only be read after `wait`."""

    request_ids: Sequence[str]
    rows: Sequence[int]  # rows of the table
    lengths: Tokens  # [requests], number of tokens of each after the step
    num_new: Tokens  # [requests], number of new tokens in this step
    new_tokens: Tokens  # [requests, most in a step]; the first num_new of each row are valid
    whole: Mapping[str, Tokens] = field(default_factory=dict)  # all tokens of new requests
    ended: Sequence[str] = ()
    wait: Callable[[], None] = lambda: None  # waits for the copies from the device


class _Request:
    """The tokens of a request, and the draft that the server assumes is being verified."""

    def __init__(self, row: int, tokens: Tokens, num_new: int) -> None:
        self.row = row
        self.num_prompt_tokens = len(tokens) - num_new
        self._tokens = np.empty(2 * len(tokens) + 64, np.int32)
        self._tokens[: len(tokens)] = tokens
        self.num_tokens = len(tokens)
        self.base = 0  # number of tokens that the draft continues
        self.draft: list[int] = []

    @property
    def tokens(self) -> Tokens:
        return self._tokens[: self.num_tokens]

    def grow(self, new: Tokens) -> None:
        end = self.num_tokens + len(new)
        if end > len(self._tokens):
            self._tokens = np.concatenate([self.tokens, np.empty(end, np.int32)])
        self._tokens[self.num_tokens : end] = new
        self.num_tokens = end


class OutcomeFeeder:
    """Reports steps to a server and puts its drafts into a table, in a background thread."""

    def __init__(
        self,
        table: DraftTable,
        connect: Callable[[Callable[[OutcomeTable], None]], DraftClient],
        max_model_len: int,
    ) -> None:
        """`connect` returns a client that passes its tables of outcomes to the given function."""
        self.lost: set[str] = set()  # requests whose tokens must be reported in full
        self._table = table
        self._max_model_len = max_model_len
        self._requests: dict[str, _Request] = {}
        self._answered = 0  # the step to which the requests' drafts belong
        self._early: list[OutcomeTable] = []  # tables that arrived before their step's answer
        self._lock = threading.Lock()
        self._reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self._problems = Problems(logger)
        self._client = connect(self._take)
        self._thread = threading.Thread(target=self._run, name="diffuspec-table", daemon=True)
        self._thread.start()

    @property
    def client(self) -> DraftClient:
        return self._client

    def report(self, report: Report) -> None:
        """Queue the results of a step. Does not block."""
        self._reports.put(report)

    def close(self) -> None:
        self._reports.put(None)
        self._client.close()
        self._thread.join(1.0)

    def _run(self) -> None:
        while True:
            reports = [self._reports.get()]
            while not self._reports.empty():  # a slow server gets several steps at once
                reports.append(self._reports.get())
            known = [one for one in reports if one is not None]
            if len(known) < len(reports):
                return
            try:
                self._step(known)
            except Exception:
                self._problems.show("no drafts for this step", logging.ERROR, has_trace=True)

    def _step(self, reports: Sequence[Report]) -> None:
        ended = [name for one in reports for name in one.ended]
        with self._lock:
            for one in reports:
                one.wait()
                self._advance(one)
            for name in ended:
                request = self._requests.pop(name, None)
                if request is not None:
                    self._table.clear(request.row)
            names = [one for one in reports[-1].request_ids if one in self._requests]
            rows = [self._row(name) for name in names]
        drafts = self._client.step(rows, ended)
        with self._lock:
            self._answered = self._client.step_id
            for name, draft in zip(names, drafts, strict=True):
                self._note(self._requests[name], draft.token_ids)
            early, self._early = self._early, []
            for table in early:
                self._add(table)
            self._table.publish()

    def _advance(self, report: Report) -> None:
        """Append the tokens of a step."""
        for place, name in enumerate(report.request_ids):
            num_new, length = int(report.num_new[place]), int(report.lengths[place])
            request = self._requests.get(name)
            if name in report.whole:
                tokens = report.whole[name][:length]
                self._requests[name] = _Request(report.rows[place], tokens, num_new)
                self._table.clear(report.rows[place])
            elif request is not None and request.num_tokens + num_new == length:
                request.grow(report.new_tokens[place, :num_new])
                request.row = report.rows[place]
            elif num_new and request is not None:
                del self._requests[name]
                self.lost.add(name)

    def _row(self, name: str) -> Row:
        request = self._requests[name]
        left = self._max_model_len - request.num_tokens
        return Row(name, request.tokens, request.num_prompt_tokens, max_tokens_left=left)

    def _note(self, request: _Request, draft: list[int]) -> None:
        """Record the draft for a prefix. If it comes late, the rest of it may still be right."""
        request.base, request.draft = request.num_tokens, draft
        for place in range(1, len(draft)):
            self._table.add(request.row, request.base, draft[:place], draft[place:])

    def _take(self, table: OutcomeTable) -> None:
        """Receive outcomes, in the connection's thread."""
        with self._lock:
            if table.step_id == self._answered:
                self._add(table)
                self._table.publish()
            elif table.step_id > self._answered:
                self._early.append(table)

    def _add(self, table: OutcomeTable) -> None:
        if table.step_id != self._answered:
            return
        size = self._client.vocab_size
        for one in table.outcomes:
            request = self._requests.get(one.request_id)
            tokens = [one.token_id, *one.token_ids]
            if request is None or one.num_accepted > len(request.draft) or max(tokens) >= size:
                continue
            path = [*request.draft[: one.num_accepted], one.token_id]
            draft = one.token_ids[: self._table.max_path - 1]
            self._table.add(request.row, request.base, path, draft)
