"""AnswerMasks: the tokens that structured output admits, computed in separate threads.

A verification waits for masks only briefly. A request whose masks take longer is held: it is
verified later, and the rest of its batch now.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import StructuredOutput
from diffuspec.core.types import VerifyRequest
from diffuspec.text.answer_matchers import Admitted, AnswerMatchers

_WAIT_SECONDS = 0.01  # how long a slow mask may delay a step of other requests
_ALONE_SECONDS = 0.05  # how long a step waits for masks while all its requests are held
_MAX_SLOW = 64  # number of slow formats remembered
_ANSWER_SECONDS = 60.0  # computing time for all masks of one answer


class AnswerMasks:
    """Determines the parts of draft trees that their answers' grammars admit.

    Formats that have to be compiled, and those whose masks were slow recently, have a thread each,
    so that they do not delay others.
    """

    def __init__(
        self,
        matchers: AnswerMatchers,
        is_inline: bool = False,
        wait_seconds: float = _WAIT_SECONDS,
        alone_seconds: float = _ALONE_SECONDS,
        answer_seconds: float = _ANSWER_SECONDS,
    ) -> None:
        """is_inline: masks that were fast recently are computed by the caller of `admit`.

        answer_seconds: computing time for the masks of one answer, after which it is refused.
        """
        self._matchers = matchers
        self._is_inline = is_inline
        self._wait_seconds = wait_seconds
        self._alone_seconds = alone_seconds
        self._answer_seconds = answer_seconds
        self._jobs: dict[str, _Job] = {}  # the latest job of each request
        self._listeners: dict[Callable[[], object], None] = {}  # called when a job has ended
        self._slow: OrderedDict[StructuredOutput, None] = OrderedDict()
        self._fast_thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._slow_thread = ThreadPoolExecutor(1, thread_name_prefix="slow masks")
        self._new_thread = ThreadPoolExecutor(1, thread_name_prefix="new masks")

    async def admit(self, requests: Sequence[VerifyRequest]) -> list[Admitted | None]:
        """Return the part of each request's draft tree that its format admits.

        None for a request without a format, or whose masks are not ready: call again later. Raises
        InvalidRequestError for an unusable format, or an answer that cannot continue.
        """
        if not any(request.sampling.structured_output for request in requests):
            return [None] * len(requests)
        changed = asyncio.Event()
        listener = partial(asyncio.get_running_loop().call_soon_threadsafe, changed.set)
        self._listeners[listener] = None
        try:
            jobs = [self._job_of(request) for request in requests]
            new = [job for job, is_new in jobs if job is not None and is_new]
            await _wait(lambda: all(job.is_done for job in new), changed, self._wait_seconds)
            known = [job for job, _ in jobs]
            await _wait(
                lambda: any(job is None or job.is_done for job in known),
                changed,
                self._alone_seconds,
            )
        finally:
            del self._listeners[listener]
        return [
            None if job is None else job.result_for(request)
            for job, request in zip(known, requests, strict=True)
        ]

    def release(self, request_id: str) -> None:
        """Forget a request. Unknown ids are ignored."""
        self._jobs.pop(request_id, None)
        self._matchers.release(request_id)

    @property
    def num_requests(self) -> int:
        """Number of requests that are not released."""
        return len(self._jobs)

    def close(self) -> None:
        """Wait for the masks that are being computed, then stop the threads."""
        for thread in (self._fast_thread, self._slow_thread, self._new_thread):
            thread.shutdown(cancel_futures=True)

    def _job_of(self, request: VerifyRequest) -> tuple[_Job | None, bool]:
        """Return a request's job, None without a format, and whether the job is new."""
        form = request.sampling.structured_output
        if form is None:
            return None, False
        job = self._jobs.get(request.request_id)
        if job is not None and (not job.is_done or job.is_of(request)):
            return job, False
        budget = job.budget if job is not None else _Budget(self._answer_seconds)
        self._jobs[request.request_id] = job = _Job(request, budget)
        thread = self._thread_for(request, form)
        if self._is_inline and thread is self._fast_thread:
            self._run(job, form)
        else:
            thread.submit(self._run, job, form)
        return job, True

    def _thread_for(self, request: VerifyRequest, form: StructuredOutput) -> ThreadPoolExecutor:
        if form in self._slow:
            return self._slow_thread
        return self._new_thread if self._matchers.must_compile(request) else self._fast_thread

    def _run(self, job: _Job, form: StructuredOutput) -> None:
        started = time.monotonic()
        try:
            job.result = self._compute(job)
        except Exception as error:  # raised to the caller of `admit`
            job.result = error
        # a panic of llguidance, which would otherwise be lost in this thread
        except BaseException as error:
            job.result = RuntimeError(repr(error))
        name = job.request.request_id
        if self._jobs.get(name) is not job:  # it was released meanwhile
            self._matchers.release(name)
        if time.monotonic() - started > self._wait_seconds:
            self._slow[form] = None
            if len(self._slow) > _MAX_SLOW:
                self._slow.popitem(last=False)
        else:
            self._slow.pop(form, None)
        for listener in list(self._listeners):
            with contextlib.suppress(RuntimeError):  # its loop is closed
                listener()

    def _compute(self, job: _Job) -> Admitted:
        """Compute masks, charged to their answer. Raises the errors of `admit`."""
        with job.budget.charged():
            return self._matchers.admit(job.request)


class _Budget:
    """Computing time for the masks of one answer.

    Jobs hold it, one after another: nothing of an answer remains after its last job.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent_seconds = 0.0

    @contextlib.contextmanager
    def charged(self) -> Iterator[None]:
        """Charge this thread's computing time. Raises InvalidRequestError once it is used up."""
        if self._spent_seconds > self._seconds:
            raise InvalidRequestError(
                "structured_output cannot be used: it is too complex for so long an answer: "
                f"the masks of one may take {self._seconds:g} s of computing"
            )
        began = time.thread_time()
        yield
        self._spent_seconds += time.thread_time() - began


class _Job:
    """The draft tree of one request, and the part that its format admits, or an error."""

    def __init__(self, request: VerifyRequest, budget: _Budget) -> None:
        self.request = request
        self.budget = budget
        self.result: Admitted | Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.result is not None

    def is_of(self, request: VerifyRequest) -> bool:
        """Return whether this is the job of a request with this prefix, tree and format."""
        mine = self.request
        return (
            mine.tree == request.tree
            and mine.sampling.structured_output == request.sampling.structured_output
            and mine.num_prompt_tokens == request.num_prompt_tokens
            and np.array_equal(mine.prefix, request.prefix)
        )

    def result_for(self, request: VerifyRequest) -> Admitted | None:
        """Return the result, None if there is none yet; raise the error."""
        if not self.is_done or not self.is_of(request):
            return None
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


async def _wait(is_over: Callable[[], bool], changed: asyncio.Event, seconds: float) -> None:
    """Wait until `is_over()`, which is called after each change, or until the seconds are over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not is_over():
                changed.clear()
                await changed.wait()
