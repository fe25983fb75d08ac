"""A drafter in this process instead of a server at an address. Needs the package `diffuspec`.

    LocalDrafts(tokenizer, {"preset": "smollm2"})
    LocalDrafts(tokenizer, {"drafter": {"path": DIR}, "search": {"ngram": FILE}, "tokenizer": DIR})

The keys are those of a draft server's file. A background thread drafts, also ahead while the engine
verifies, on the same processors as the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from diffuspec_client.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class InProcess:
    """Settings of a client whose drafter runs in its own process."""

    server: Mapping[str, Any]  # keys of a draft server's file
    deadline_seconds: float = 0.25  # longest time that a step waits for drafts
    tenant: str = ""

    def connect(
        self, hello: Any, vocabulary: Vocabulary, take: Callable[[Any], None]
    ) -> LocalConnection:
        """Load the drafter. Raises ImportError without diffuspec, and diffuspec's own errors."""
        try:
            from diffuspec.core.validation import validate
            from diffuspec.draft_server.config import DraftServerConfig
            from diffuspec.draft_server.service import load_service
            from diffuspec.pairs import fill_in_draft_server
        except ImportError as error:
            raise ImportError(
                "a drafter in this process needs the package diffuspec beside diffuspec-client: "
                f"{error}"
            ) from error
        config = validate(DraftServerConfig, fill_in_draft_server(self.server))
        service, drafter = load_service(config)
        # lets an error name the first token that differs
        hello.vocabulary.extend(vocabulary.tokens)
        return LocalConnection(service, drafter, hello, take)


class LocalConnection:
    """A draft service in a thread, with a single session."""

    def __init__(self, service: Any, drafter: Any, hello: Any, take: Callable[[Any], None]) -> None:
        """Wait until the session is open. Raises the service's error if it refuses the hello."""
        self.number = 0  # number of the present session; 0: none
        self.num_losses = 0  # a server in this process cannot be lost alone
        self._service = service
        self._drafter = drafter
        self._hello = hello
        self._take = take
        self._steps: asyncio.Queue[Any] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop
        self._is_open: Future[None] = Future()  # done once the service has accepted the hello
        self._thread = threading.Thread(target=self._run, name="diffuspec-drafts", daemon=True)
        self._thread.start()
        self._is_open.result()

    def send(self, step: Any) -> None:
        self._call(step)

    def wait(self, seconds: float) -> bool:
        """Return whether the session is open, without waiting."""
        return self.number > 0

    def close(self) -> None:
        self._call(None)
        self._thread.join()

    def _call(self, step: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._steps.put_nowait, step)

    # ---- the thread

    def _run(self) -> None:
        try:
            with contextlib.closing(self._drafter), asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                runner.run(self._serve())
        except Exception as error:
            if self._is_open.done():
                logger.exception("diffuspec: drafting has ended, decoding goes on without")
            else:
                self._is_open.set_exception(error)
        finally:
            self.number = 0
            self._take(None)

    async def _serve(self) -> None:
        async with self._service as service:
            number = 0
            while await self._session(service, number := number + 1):
                logger.info("diffuspec: a new session is opened")

    async def _session(self, service: Any, number: int) -> bool:
        """Answer steps until one is refused or there are no more; return whether to continue."""
        from diffuspec.core.errors import DiffuspecError
        from diffuspec.v1.draft_service_pb2 import ConnectResponse

        session, _ = service.open(self._hello)
        if self._hello.wants_outcomes:
            session.on_outcomes = lambda table: self._take(ConnectResponse(outcomes=table))
        self.number = number
        if not self._is_open.done():
            self._is_open.set_result(None)
        try:
            while (step := await self._steps.get()) is not None:
                self._take(ConnectResponse(drafts=await session.step(step)))
                session.draft_ahead()
        except DiffuspecError as error:
            logger.warning("diffuspec: no drafts in this step: %s", error)
            return True
        finally:
            self.number = 0
            service.close(session)
            self._take(None)
        return False
