"""The service: one drafter, and the sessions of the engines for which it drafts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from diffuspec.core.errors import ConfigError, OverloadedError
from diffuspec.core.interfaces import Drafter, TargetInfo
from diffuspec.core.memory import release_freed
from diffuspec.core.version import own_version
from diffuspec.draft_server.config import DraftServerConfig
from diffuspec.draft_server.dispatcher import Dispatcher
from diffuspec.draft_server.held_tokens import HeldTokens
from diffuspec.draft_server.metrics import DraftMetrics, SessionStats
from diffuspec.draft_server.planner import Planner
from diffuspec.draft_server.session import Session
from diffuspec.draft_server.tenants import Tenants
from diffuspec.draft_server.validation import PROTOCOL_VERSION, check_hello
from diffuspec.drafters import KINDS, LocalDrafter, Target, kind_of, load_drafter
from diffuspec.text.endings import read_eos_token_ids
from diffuspec.text.tokenizer import load_tokenizer, vocabulary_bytes, vocabulary_digest
from diffuspec.v1.draft_service_pb2 import Hello, Welcome

if TYPE_CHECKING:
    from diffuspec.telemetry.draft_spans import DraftSpans

logger = logging.getLogger(__name__)

_LEAST_SILENT_SECONDS = 1.0  # before that an engine keeps its place, for it may be starting
_MANY_TOKENS = 2**17  # freed memory is returned to the system after an engine with more


class DraftService:
    """Opens sessions for engines. Drafts while its context is open."""

    def __init__(
        self, config: DraftServerConfig, drafter: Drafter, info: TargetInfo, tokenizer: Any
    ) -> None:
        self.config = config
        self.info = info
        self.metrics = DraftMetrics()
        self.spans: DraftSpans | None = None  # None: spans are not exported
        self.dispatcher = Dispatcher(drafter, info, config.max_draft_seconds, self.metrics)
        self._tenants = Tenants(config.tenants)
        self._tokens = vocabulary_bytes(tokenizer, info.vocab_size)
        self._digest = bytes.fromhex(vocabulary_digest(tokenizer, info.vocab_size))
        self._numbers = itertools.count(1)
        self._held_tokens = HeldTokens(config.max_held_tokens)
        self.sessions: list[Session] = []
        self.metrics.engines.read = lambda: len(self.sessions)
        self._drafting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self.config.profile_seconds:
            await self.dispatcher.profile(self.config.profile_seconds)
        self._drafting = asyncio.create_task(self.dispatcher.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._drafting is not None:
            self._drafting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._drafting

    @property
    def num_held_tokens(self) -> int:
        """Tokens held for all engines, with those that each request counts as more."""
        return self._held_tokens.number

    def is_healthy(self) -> bool:
        """Return whether it can draft: the drafter has not just failed."""
        is_running = self._drafting is not None and not self._drafting.done()
        return is_running and self.dispatcher.is_available

    def open(self, hello: Hello) -> tuple[Session, Welcome]:
        """Open a session for an engine, given its hello.

        Raises VocabularyError, InvalidRequestError, and OverloadedError if too many are open.
        """
        check_hello(hello, self.info, self._digest, self._tokens)
        if len(self.sessions) >= self.config.max_engines:
            self._take_a_place()
        name, kind = f"engine-{next(self._numbers)}", self.config.drafter.kind
        tenant = self._tenants.find(hello.tenant)
        length = self.config.num_draft_tokens
        planner = Planner(kind, lambda: self.dispatcher.costs, length)
        spans = None
        if self.spans is not None:
            spans = self.spans.engine(name, hello.engine, hello.tenant)
        stats = SessionStats(self.metrics, spans)
        weight = self.config.drafter_weight
        session = Session(
            name,
            hello,
            planner,
            self.info,
            self.dispatcher,
            tenant,
            stats,
            weight,
            self._held_tokens,
        )
        self.sessions.append(session)
        self.dispatcher.pre_draft_sources.append(session.pre_drafts)
        logger.info("%s is connected: %r", name, hello.engine)
        return session, self._welcome(hello)

    def _welcome(self, hello: Hello) -> Welcome:
        return Welcome(
            protocol_version=PROTOCOL_VERSION,
            server=own_version(),
            drafter=self.config.drafter.kind,
            max_requests=hello.max_requests,
            max_model_len=min(self.info.max_model_len, hello.max_model_len),
            max_draft_tokens=hello.max_draft_tokens,
        )

    def _take_a_place(self) -> None:
        """Close the session that has been silent for the longest time, and has no requests.

        Raises OverloadedError if all engines have requests or have just connected.
        """
        now = time.monotonic()
        silent = [(session.silent_seconds(now) or 0.0, session) for session in self.sessions]
        seconds, session = max(silent, key=lambda pair: pair[0])
        if seconds < _LEAST_SILENT_SECONDS:
            limit = self.config.max_engines
            raise OverloadedError(f"{limit} engines are connected, which is the limit")
        logger.info("%s is silent and has no requests: another engine gets its place", session.name)
        session.lost_place.set()
        self.close(session)

    def close(self, session: Session) -> None:
        """Remove a session whose engine has gone. One that is closed already stays closed."""
        if session not in self.sessions:
            return
        session.close()
        self.sessions.remove(session)
        if session.requests.most_held > _MANY_TOKENS:
            release_freed()
        self.dispatcher.pre_draft_sources.remove(session.pre_drafts)
        logger.info("%s is gone: %s; %s", session.name, session.stats, session.planner)


def check_kind(config: DraftServerConfig) -> None:
    """Raise ConfigError for a drafter that needs more than tokens."""
    kind = config.drafter.kind
    if not kind_of(config.drafter).needs_tokens_alone:
        able = ", ".join(name for name, kind in KINDS.items() if kind.needs_tokens_alone)
        raise ConfigError(
            f"drafter.kind must draft from tokens alone, as {able} do; {kind} reads "
            "what the target computes, which engines do not send"
        )


def load_target(config: DraftServerConfig) -> tuple[Target, Any]:
    """Return the known facts about the engines' model, and its tokenizer. Raises ModelLoadError."""
    path: Path = config.tokenizer
    tokenizer = load_tokenizer(path)
    num_ids = int(max(tokenizer.get_vocab().values())) + 1
    info = TargetInfo(
        vocab_size=num_ids,
        max_model_len=config.max_model_len,
        max_sequences=config.max_requests,
        eos_token_ids=read_eos_token_ids(path, tokenizer),
    )
    return Target(info, vocabulary_digest(tokenizer, num_ids), path), tokenizer


def load_service(config: DraftServerConfig) -> tuple[DraftService, LocalDrafter]:
    """Load the drafter and its path search. Raises ConfigError, ModelLoadError, NgramError."""
    check_kind(config)
    target, tokenizer = load_target(config)
    drafter = load_drafter(config.drafter, config.search, target)
    return DraftService(config, drafter, target.info, tokenizer), drafter
