"""GrammarQueue: tries and compiles new formats of structured output before their requests start."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tokenizers import Tokenizer

from diffuspec.core.errors import InvalidRequestError, ShuttingDownError, TrialTimeoutError
from diffuspec.core.params import StructuredOutput
from diffuspec.core.places import Places
from diffuspec.text.grammars import Grammars
from diffuspec.text.trial_messages import Setup, TrialLimits, Verdict
from diffuspec.text.trial_process import COMMAND, TrialProcess

_MAX_AT_ONCE = 3
_MAX_EACH = 2  # places for one client; one is left for another client
_MAX_VERDICTS = 4096
_DIGEST_BYTES = 16
_LIMITS = TrialLimits()


class GrammarQueue:
    """Tries a few new formats at a time, in a helper process and by turns among clients.

    A format that passes is compiled here; any other is refused, now and later, whatever it did to
    the helper. A format that is known costs neither.
    """

    def __init__(
        self,
        grammars: Grammars,
        read_tokenizer: Callable[[], Tokenizer],
        max_waiting: int,
        limits: TrialLimits = _LIMITS,
        command: Sequence[str] = COMMAND,
    ) -> None:
        """read_tokenizer: called in a thread whenever a helper is started; of the same target.

        max_waiting: formats that wait to be tried, see `Places`.
        """
        self._grammars = grammars
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._places = Places(_MAX_AT_ONCE, max_waiting, "grammars wait to be tried", _MAX_EACH)
        self._trials: set[asyncio.Future[Verdict]] = set()
        self._thread = ThreadPoolExecutor(_MAX_AT_ONCE, thread_name_prefix="grammars")
        self.trials = TrialProcess(
            lambda: Setup(read_tokenizer().to_str(), grammars.info, limits), command
        )

    async def compile(self, form: StructuredOutput, client: str = "") -> None:
        """Try a format, unless it is known, and compile it.

        Raises InvalidRequestError for an unusable format, TrialTimeoutError and OverloadedError for
        one that may be usable later.
        """
        if self._grammars.is_compiled(form):
            return
        name = _digest(form)
        _check(self._verdicts.get(name))
        await self._places.take(client)
        try:
            if self._grammars.is_compiled(form):
                return
            verdict = self._verdicts.get(name) or await self._try(form)
            self._remember(name, verdict)
            _check(verdict)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self._grammars.compile, form)
        finally:
            self._places.free(client)

    def prepare(self) -> None:
        """Read the tokenizer, which takes seconds if it is large, and start the helper."""
        self.trials.start()
        self._grammars.prepare()

    def refuse(self) -> None:
        """End all waiting and all trials with ShuttingDownError."""
        self._places.refuse_waiting()
        for trial in self._trials:
            trial.cancel()

    def close(self) -> None:
        """End trials and helper, without waiting for a format that is being compiled."""
        self.trials.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _try(self, form: StructuredOutput) -> Verdict:
        trial = asyncio.ensure_future(self.trials.try_form(form))
        self._trials.add(trial)
        try:
            return await trial
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the client has left
                raise
            raise ShuttingDownError("the service is shutting down") from None
        finally:
            self._trials.discard(trial)

    def _remember(self, name: bytes, verdict: Verdict) -> None:
        if verdict.outcome == "late":
            return
        self._verdicts[name] = verdict
        self._verdicts.move_to_end(name)
        if len(self._verdicts) > _MAX_VERDICTS:
            self._verdicts.popitem(last=False)


def _digest(form: StructuredOutput) -> bytes:
    text = repr(form).encode("utf-8", "backslashreplace")
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()


def _check(verdict: Verdict | None) -> None:
    """Raise the error of a verdict, if it is one."""
    if verdict is None or verdict.outcome == "passed":
        return
    if verdict.outcome == "late":
        raise TrialTimeoutError(f"structured_output could not be tried: {verdict.reason}")
    raise InvalidRequestError(verdict.reason)
