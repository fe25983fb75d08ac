"""Matchers of structured output: the state of each answer in its grammar, and what may follow."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import StructuredOutput
from diffuspec.core.types import (
    NO_TOKENS,
    DraftRequest,
    DraftTree,
    TokenIds,
    VerifyRequest,
    num_shared_tokens,
)
from diffuspec.text.grammars import Grammars, describe_failure

# [..., num_bytes]; bit i % 8 of byte i // 8: token id i is allowed
TokenMasks: TypeAlias = NDArray[np.uint8]

_DRAFT_SECONDS = 0.01
_MAX_ANSWERS_PER_SEQUENCE = 2  # answers kept per concurrent request


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """The part of a draft tree that a grammar admits."""

    nodes: list[int]  # nodes of the tree, in order
    masks: TokenMasks  # [1 + len(nodes), num_bytes]: tokens that may follow the root and each node


class AnswerMatchers:
    """The matchers of running answers, by request id. A request belongs to one thread at a time.

    A cache: a matcher that is not in it is made again from the answer's tokens.
    """

    def __init__(self, grammars: Grammars, draft_seconds: float = _DRAFT_SECONDS) -> None:
        """draft_seconds: time for the masks of one answer's drafted tokens, in one step."""
        self._grammars = grammars
        self._draft_seconds = draft_seconds
        self._matchers: OrderedDict[tuple[str, StructuredOutput], AnswerMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._max_kept = _MAX_ANSWERS_PER_SEQUENCE * grammars.info.max_sequences

    def admit(self, request: VerifyRequest) -> Admitted:
        """Return the part of a request's draft tree that its grammar admits.

        Raises InvalidRequestError for a grammar that cannot be compiled or exceeds its limits.
        """
        form = request.sampling.structured_output
        assert form is not None, "only requests with a structured output have a grammar"
        answer = request.prefix[request.num_prompt_tokens :]
        matcher = self._find(request.request_id, form, answer)
        return matcher.admit(request.tree, self._draft_seconds)

    def must_compile(self, request: VerifyRequest) -> bool:
        """Return whether `admit` must first compile the request's format, which takes time."""
        form = request.sampling.structured_output
        assert form is not None, "only requests with a structured output have a grammar"
        return not (
            self._grammars.is_compiled(form) or (request.request_id, form) in self._matchers
        )

    def is_ready(self, requests: Sequence[DraftRequest]) -> bool:
        """Return whether `prepare` has nothing to do."""
        forms = (request.sampling.structured_output for request in requests)
        return all(form is None or self._grammars.is_compiled(form) for form in forms)

    def prepare(self, requests: Sequence[DraftRequest]) -> None:
        """Compile the requests' grammars, which takes time; errors are left to `guide`."""
        for request in requests:
            form = request.sampling.structured_output
            if form is not None:
                try:
                    self._grammars.compile(form)
                except InvalidRequestError:
                    continue

    def guide(self, request: DraftRequest) -> AnswerMatcher | None:
        """Return the matcher of a request's answer; None if it has no usable grammar."""
        form = request.sampling.structured_output
        if form is None:
            return None
        answer = request.prefix[request.num_prompt_tokens :]
        try:
            # Compiling a format again would delay the drafts of other requests.
            return self._find(request.request_id, form, answer, may_compile=False)
        except InvalidRequestError:
            return None

    def release(self, request_id: str) -> None:
        """Forget a request. Unknown ids are ignored."""
        with self._lock:
            for key in [key for key in self._matchers if key[0] == request_id]:
                del self._matchers[key]

    def _find(
        self, request_id: str, form: StructuredOutput, answer: TokenIds, may_compile: bool = True
    ) -> AnswerMatcher:
        key = request_id, form
        with self._lock:
            matcher = self._matchers.pop(key, None)
        if matcher is None:
            matcher = AnswerMatcher(self._grammars, form)
        matcher.begin(answer, may_compile)
        with self._lock:
            self._matchers[key] = matcher  # a failed one is dropped: the next call creates another
            if len(self._matchers) > self._max_kept:
                self._matchers.popitem(last=False)
        return matcher


class AnswerMatcher:
    """One answer's state in its grammar, and a path of drafted tokens after it."""

    def __init__(self, grammars: Grammars, form: StructuredOutput) -> None:
        """Compile the format. Raises InvalidRequestError if that is impossible."""
        self._grammars = grammars
        self._form = form
        self._matcher = grammars.compile(form)
        self._eos_token_ids = frozenset(grammars.info.eos_token_ids)
        self._answer = NO_TOKENS
        self._path: list[int] = []
        self._takes_drafts = True

    def begin(self, answer: TokenIds, may_compile: bool = True) -> None:
        """Go to the end of an answer. Raises InvalidRequestError if it violates the format.

        may_compile: compile the format again if its limits are used up.
        """
        if not self._extend(answer):
            self._restart(answer, may_compile)

    def admit(self, tree: DraftTree, max_seconds: float) -> Admitted:
        """Return the nodes that the grammar lets the answer reach; never EOS, which would end it.

        After max_seconds the remaining nodes are omitted, because other requests wait for this
        step. Raises InvalidRequestError if the answer cannot continue.
        """
        mask = self._mask()
        if mask is None:
            self._restart(self._answer)
            mask = self._mask()
        if mask is None:
            self._fail("the answer cannot go on")
        nodes: list[int] = []
        masks = [mask]
        if not self._takes_drafts:
            return Admitted(nodes, np.stack(masks))
        paths: dict[int, tuple[int, ...]] = {-1: ()}  # paths to admitted nodes
        deadline = time.monotonic() + max_seconds
        for node, (parent, token_id) in enumerate(zip(tree.parents, tree.token_ids, strict=True)):
            if time.monotonic() > deadline:
                break
            if parent not in paths or token_id in self._eos_token_ids:
                continue
            path = (*paths[parent], token_id)
            mask = self._mask() if self._go(path) else None
            if mask is not None:
                paths[node] = path
                nodes.append(node)
                masks.append(mask)
            elif self._matcher.is_error():
                # Each attempt takes long, so this answer continues without drafts.
                self._takes_drafts = False
                self._restart(self._answer)
                break
        return Admitted(nodes, np.stack(masks))

    def next_tokens(self, path: Sequence[int], candidates: Sequence[int]) -> list[int]:
        """Return the candidates that may follow a path; see `Guide`."""
        if not self._go(path):
            return []
        forced = self._matcher.compute_ff_tokens()[:1]
        if forced:
            return [token_id for token_id in forced if token_id not in self._eos_token_ids]
        may_follow = self._matcher.validate_tokens
        return [
            token_id
            for token_id in candidates
            if token_id not in self._eos_token_ids and may_follow([token_id])
        ]

    def _extend(self, answer: TokenIds) -> bool:
        """Move from the end of the present answer to another's; return whether it worked."""
        num_common = num_shared_tokens(self._answer, answer)
        rest = answer[num_common:].tolist()
        num_back = len(self._path) + len(self._answer) - num_common
        self._answer, self._path = answer.copy(), []
        if num_back and not self._matcher.rollback(num_back):
            return False
        return self._matcher.try_consume_tokens(rest) == len(rest)

    def _restart(self, answer: TokenIds, afresh: bool = True) -> None:
        """Go to the end of an answer in a new matcher; see `Grammars.compile`."""
        self._matcher = self._grammars.compile(self._form, afresh)
        self._answer, self._path = NO_TOKENS, []
        if not self._extend(answer):
            self._fail("the answer so far violates the form")

    def _go(self, path: Sequence[int]) -> bool:
        """Go to the end of a path after the answer; return whether the grammar admits it."""
        num_common = 0
        for mine, theirs in zip(self._path, path, strict=False):
            if mine != theirs:
                break
            num_common += 1
        num_back = len(self._path) - num_common
        if num_back and not self._matcher.rollback(num_back):
            return False
        rest = list(path[num_common:])
        num_taken = self._matcher.try_consume_tokens(rest)
        self._path = [*path[: num_common + num_taken]]
        return num_taken == len(rest)

    def _mask(self) -> TokenMasks | None:
        """Return the mask of the tokens that may follow; None if there are none."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return mask if mask.any() and not self._matcher.is_error() else None

    def _fail(self, problem: str) -> NoReturn:
        raise InvalidRequestError(
            f"structured_output cannot be used: {problem}: {describe_failure(self._matcher)}"
        )
