"""The client: sends the tokens of an engine's requests, and receives and checks drafts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffuspec_client.connection import Connection
from diffuspec_client.draft_service_pb2 import (
    DRAFT_FORM_CHAIN,
    DRAFT_FORM_TREE,
    DRAFT_SOURCE_UNKNOWN_BASE,
    DraftSource,
    EngineStep,
    Hello,
    OutcomeTable,
    RequestRow,
    RowDraft,
    StepDrafts,
)
from diffuspec_client.in_process import InProcess, LocalConnection
from diffuspec_client.losses import Losses
from diffuspec_client.patience import Patience
from diffuspec_client.problems import Problems
from diffuspec_client.settings import Settings
from diffuspec_client.silence import MAX_SILENT_STEPS, Silence
from diffuspec_client.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

PROTOCOL_VERSION = 1
MAX_MODEL_LEN = 2**24  # the protocol's limit; a server has its own
CONNECT_SECONDS = 2.0  # time that a starting engine waits for the server
_GRACE_SECONDS = 0.005  # time for an answer to arrive after its deadline


@dataclass(frozen=True)
class Row:
    """One request in a step."""

    request_id: str
    token_ids: NDArray[np.int32]  # prompt and answer so far
    num_prompt_tokens: int
    max_tokens_left: int = 0  # 0: not known
    max_draft_tokens: int = 0  # 0: as many as the engine takes at all
    priority: int = 0


@dataclass(frozen=True)
class Draft:
    """A draft: a chain, or a tree if it has parents. An empty draft has no tokens."""

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)  # natural-log probabilities
    # The origin of the draft, or why there is none: a DraftSource in lower case, "silent" if the
    # server announced that there would be none, "paused" if it has not answered lately, "barred" if
    # servers were lost repeatedly while they drafted for the request.
    source: str = ""


class DraftClient:
    """One engine's connection to a draft server. After construction its methods never raise.

    Only one thread may call `step`. A background thread connects and reconnects.
    """

    def __init__(
        self,
        settings: Settings | InProcess,
        *,
        vocabulary: Vocabulary,
        max_model_len: int,
        max_requests: int,
        max_draft_tokens: int,
        is_tree: bool = False,
        engine: str = "",
        on_outcomes: Callable[[OutcomeTable], None] | None = None,
    ) -> None:
        """on_outcomes: called in another thread with drafts that the server sends unprompted.

        Raises OSError and ValueError for invalid settings, and diffuspec's errors if a drafter in
        this process cannot be loaded.
        """
        self._vocabulary = vocabulary
        self._max_draft_tokens = max_draft_tokens
        self._is_tree = is_tree
        self._deadline = settings.deadline_seconds
        self._held: dict[str, int] = {}  # number of tokens that the server holds, by request
        self._ended: list[str] = []  # ended requests not yet reported
        self._connection_number = 0  # number of the connection that _held describes
        self._step_id = 0
        self._answer: StepDrafts | None = None
        self._arrival = threading.Condition()
        self._returned_at = 0.0  # time at which the last reported step ended; 0: none yet
        self._wait_seconds = 0.0  # time that the last reported step took
        self._silence = Silence()
        self._patience = Patience()
        self._losses = Losses()
        self._problems = Problems(logger)
        self._on_outcomes = on_outcomes
        hello = Hello(
            protocol_version=PROTOCOL_VERSION,
            engine=engine[:64],
            tenant=settings.tenant,
            vocab_size=vocabulary.size,
            vocabulary_digest=vocabulary.digest(),
            max_model_len=max_model_len,
            max_requests=max_requests,
            max_draft_tokens=max_draft_tokens,
            form=DRAFT_FORM_TREE if is_tree else DRAFT_FORM_CHAIN,
            wants_outcomes=on_outcomes is not None,
            max_silent_steps=0 if on_outcomes is not None else MAX_SILENT_STEPS,
        )
        self._connection: Connection | LocalConnection
        if isinstance(settings, InProcess):
            self._connection = settings.connect(hello, vocabulary, self._take)
        else:
            self._connection = Connection(settings, hello, vocabulary, self._take)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._connection.number > 0

    @property
    def vocab_size(self) -> int:
        """Number of token ids that the engine knows; all ids are below it."""
        return self._vocabulary.size

    @property
    def step_id(self) -> int:
        """Id of the latest reported step, as used in tables of outcomes."""
        return self._step_id

    def wait_until_connected(self, seconds: float) -> bool:
        """Wait for the server; return whether it is connected."""
        return self._connection.wait(seconds)

    def close(self) -> None:
        """Close the connection. Later steps have no drafts."""
        self._connection.close()

    # ---- a step

    def step(self, rows: Sequence[Row], ended: Sequence[str] = ()) -> list[Draft]:
        """Return a draft for each row, in order; an empty one where none arrives in time.

        ended: requests that have finished.
        """
        try:
            return self._step(rows, ended)
        except Exception:
            message = "drafting failed in the client; the engine goes on without drafts"
            self._problems.show(message, has_trace=True)
            return [Draft() for _ in rows]

    def _step(self, rows: Sequence[Row], ended: Sequence[str]) -> list[Draft]:
        number = self._connection.number
        if number != self._connection_number:  # a new connection holds no tokens yet
            self._connection_number, self._silence = number, Silence()
            self._patience = Patience()
            self._losses.count(self._connection.num_losses)
            self._held, self._ended, self._step_id, self._returned_at = {}, [], 0, 0.0
        self._ended += [one for one in ended if self._held.pop(one, None) is not None]
        self._losses.end(ended)
        allowed = [row for row in rows if not self._losses.bars(row.request_id)]
        if len(allowed) == len(rows):
            return self._ask(rows, number)
        drafts = iter(self._ask(allowed, number))
        barred = Draft(source="barred")
        return [barred if self._losses.bars(row.request_id) else next(drafts) for row in rows]

    def _ask(self, rows: Sequence[Row], number: int) -> list[Draft]:
        """Ask for drafts, unless there would be none."""
        if self._silence.covers([row.request_id for row in rows]):
            return [Draft(source="silent") for _ in rows]
        started = time.monotonic()
        if not self._patience.allows(started):
            self._returned_at = 0.0  # the time of an unreported step is not measured
            return [Draft(source="paused") for _ in rows]
        try:
            return self._report(rows, number, started)
        finally:
            self._returned_at = time.monotonic()
            self._wait_seconds = self._returned_at - started

    def _report(self, rows: Sequence[Row], number: int, started: float) -> list[Draft]:
        """Send a step to the server, and return its drafts."""
        num_silent, self._silence = self._silence.num_steps, Silence()
        if not number or not rows:
            return [Draft() for _ in rows]
        self._step_id += 1
        step = EngineStep(
            step_id=self._step_id,
            rows=[self._row(row) for row in rows],
            ended_request_ids=self._ended,
            deadline_seconds=self._deadline,
            verify_seconds=started - self._returned_at if self._returned_at else 0.0,
            wait_seconds=self._wait_seconds,
            num_silent_steps=num_silent,
        )
        self._ended = []
        self._losses.report([row.request_id for row in rows])
        self._connection.send(step)
        answer = self._wait(started + self._deadline + _GRACE_SECONDS, number)
        now = time.monotonic()
        if answer is not None:
            self._patience.on_answer()
        elif self._connection.number == number:
            self._problems.show("the draft server does not answer in time; it is asked less often")
            self._patience.on_silence(now - started, now)
        if answer is None or len(answer.rows) != len(rows):
            return [Draft() for _ in rows]
        drafts = [self._checked(one, row) for one, row in zip(answer.rows, rows, strict=True)]
        if not any([draft.token_ids for draft in drafts]):
            self._silence = Silence(answer.num_silent_steps, [row.request_id for row in rows])
        return drafts

    def _row(self, row: Row) -> RequestRow:
        """Return the part of a request that the server lacks, and count it as held."""
        base, length = self._held.get(row.request_id, 0), len(row.token_ids)
        base = base if base <= length else 0
        self._held[row.request_id] = length
        return RequestRow(
            request_id=row.request_id,
            base_length=base,
            token_ids=row.token_ids[base:].tolist(),
            num_prompt_tokens=0 if base else row.num_prompt_tokens,
            max_tokens_left=max(row.max_tokens_left, 0),
            max_draft_tokens=row.max_draft_tokens,
            priority=row.priority,
        )

    def _wait(self, until: float, number: int) -> StepDrafts | None:
        with self._arrival:
            while self._answer is None or self._answer.step_id != self._step_id:
                left = until - time.monotonic()
                if left <= 0 or self._connection.number != number:
                    return None
                self._arrival.wait(left)
            answer, self._answer = self._answer, None
            return answer

    def _take(self, message: Any) -> None:
        """Handle a message; None: the connection has ended. Runs in another thread."""
        kind = None if message is None else message.WhichOneof("message")
        if kind == "outcomes" and self._on_outcomes is not None:
            self._on_outcomes(message.outcomes)
            return
        with self._arrival:
            if kind == "drafts":
                self._answer = message.drafts
            self._arrival.notify_all()

    # ---- checks

    def _checked(self, found: RowDraft, row: Row) -> Draft:
        """Return a draft that the engine can take, whatever the server sent."""
        source = _SOURCES.get(found.source, "")
        if found.source == DRAFT_SOURCE_UNKNOWN_BASE:
            self._held.pop(row.request_id, None)
        token_ids, parents = [*found.token_ids], [*found.parents]
        confidences = [*found.confidences]
        limit = row.max_draft_tokens or self._max_draft_tokens
        wrong = self._wrong(token_ids, parents, len(confidences), limit)
        if wrong:
            self._problems.show(f"a draft is left out: {wrong}")
            return Draft(source="wrong")
        return Draft(token_ids, parents, confidences, source)

    def _wrong(
        self, token_ids: list[int], parents: list[int], num_confidences: int, limit: int
    ) -> str:
        size, size_of_vocabulary = len(token_ids), self._vocabulary.size
        if size > limit:
            return f"it has {size} tokens, the engine takes {limit}"
        if num_confidences != size or len(parents) != (size if self._is_tree else 0):
            return f"{size} tokens came with {num_confidences} confidences, {len(parents)} parents"
        if max(token_ids, default=0) >= size_of_vocabulary:
            return f"token id {max(token_ids)} is not below {size_of_vocabulary}"
        if any(not -1 <= parent < node for node, parent in enumerate(parents)):
            return "a token stands before its parent"
        return ""


_SOURCES = {
    number: name.removeprefix("DRAFT_SOURCE_").lower() for name, number in DraftSource.items()
}
