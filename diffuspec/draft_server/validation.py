"""Checks the messages of engines before any work. Raises InvalidRequestError or ConfigError."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from diffuspec.core.errors import ConfigError, InvalidRequestError, VocabularyError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import MAX_DRAFT_TOKENS
from diffuspec.v1.draft_service_pb2 import DraftForm, EngineStep, Hello, RequestRow

PROTOCOL_VERSION = 1
MAX_REQUESTS = 4096  # most requests of one engine
MAX_SILENT_STEPS = 4096
MAX_ID_LENGTH = 256
MAX_NAME_LENGTH = 64
MAX_DEADLINE_SECONDS = 60.0
_MAX_CONTEXT = 2**24  # tokens of one request
_MAX_VOCABULARY = 2**22  # token ids of one engine


def check_hello(hello: Hello, info: TargetInfo, digest: bytes, vocabulary: Sequence[bytes]) -> None:
    """Check an engine's hello. Raises VocabularyError if its vocabulary differs.

    digest, vocabulary: the server's, in the form of the protocol.
    """
    if hello.protocol_version != PROTOCOL_VERSION:
        raise ConfigError(
            f"protocol_version must be {PROTOCOL_VERSION}, got {hello.protocol_version}: use a "
            "client and a server of the same release"
        )
    for name in ("engine", "tenant"):
        if len(getattr(hello, name)) > MAX_NAME_LENGTH:
            raise InvalidRequestError(f"{name} must be of at most {MAX_NAME_LENGTH} characters")
    _require("max_requests", hello.max_requests, 1, MAX_REQUESTS)
    _require("max_draft_tokens", hello.max_draft_tokens, 1, MAX_DRAFT_TOKENS)
    _require("max_silent_steps", hello.max_silent_steps, 0, MAX_SILENT_STEPS)
    _require("max_model_len", hello.max_model_len, 2, _MAX_CONTEXT)
    _require("vocab_size", hello.vocab_size, 1, _MAX_VOCABULARY)
    _require("tokens of the vocabulary", len(hello.vocabulary), 0, hello.vocab_size)
    if hello.form not in DraftForm.values():
        known = ", ".join(f"{number} ({name})" for name, number in DraftForm.items())
        raise InvalidRequestError(f"form must be one of {known}, got {hello.form}")
    if hello.vocabulary:
        _compare(hello.vocabulary, vocabulary)
    if hello.vocabulary_digest and hello.vocabulary_digest != digest:
        raise VocabularyError(
            "the engine's tokenizer and the draft server's give different meanings to token ids: "
            "start the server with the tokenizer of the engine's model"
        )
    if hello.vocab_size < info.vocab_size:
        raise VocabularyError(
            f"vocab_size must be at least {info.vocab_size}, the drafts' vocabulary, got "
            f"{hello.vocab_size}"
        )


def _compare(theirs: Sequence[bytes], ours: Sequence[bytes]) -> None:
    pairs = itertools.zip_longest(theirs, ours, fillvalue=b"")
    for token_id, (one, other) in enumerate(pairs):
        if one != other:
            raise VocabularyError(
                f"token id {token_id} is {_shown(one)} in the engine and {_shown(other)} in the "
                "draft server: start the server with the tokenizer of the engine's model"
            )


def _shown(token: bytes) -> str:
    return repr(token.decode("utf-8", "backslashreplace"))[:80] if token else "nothing"


def check_step(step: EngineStep, hello: Hello, last_step_id: int) -> None:
    """Check a step: its order, its sizes and its times. Token ids are checked as they are read."""
    if step.step_id != last_step_id + 1:
        raise InvalidRequestError(f"step_id must be {last_step_id + 1}, got {step.step_id}")
    _require("rows of a step", len(step.rows), 0, hello.max_requests)
    _require("ended requests of a step", len(step.ended_request_ids), 0, 2 * MAX_REQUESTS)
    for name in ("deadline_seconds", "verify_seconds", "wait_seconds"):
        seconds = getattr(step, name)
        if not (math.isfinite(seconds) and seconds >= 0):
            raise InvalidRequestError(f"{name} must be 0 or more, got {seconds}")
    _require("deadline_seconds", step.deadline_seconds, 0, MAX_DEADLINE_SECONDS)
    _require("num_silent_steps", step.num_silent_steps, 0, hello.max_silent_steps)
    seen: set[str] = set()
    for row in step.rows:
        _check_row(row, hello)
        if row.request_id in seen:
            raise InvalidRequestError(f"request {row.request_id!r} is in two rows of a step")
        seen.add(row.request_id)


def _check_row(row: RequestRow, hello: Hello) -> None:
    _require("characters of a request_id", len(row.request_id), 1, MAX_ID_LENGTH)
    length = row.base_length + len(row.token_ids)
    _require("tokens of a request", length, 1, hello.max_model_len)
    _require("num_prompt_tokens", row.num_prompt_tokens, 0, length)


def highest_token_id(token_ids: Sequence[int], hello: Hello) -> int:
    """Return the highest of a row's token ids; 0 if there are none. Refuses unknown ones."""
    highest = max(token_ids, default=0)
    if highest >= hello.vocab_size:
        raise InvalidRequestError(f"token ids must be below {hello.vocab_size}, got {highest}")
    return highest


def _require(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidRequestError(f"{name} must be from {least} to {most}, got {value}")
