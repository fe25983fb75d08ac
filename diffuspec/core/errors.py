"""Every error diffuspec raises on purpose.

DiffuspecError
├── ConfigError                  a configuration value, or an unknown key
├── InvalidRequestError          a prompt or a parameter of one request
│   └── ContextLengthError       prompt and max_tokens exceed the target's context
├── ModelLoadError               a model directory that cannot be used
│   ├── VocabularyError          drafter, target and proxy do not share token ids
│   └── OutOfMemoryError         weights and cache do not fit the device
├── NgramError                   an n-gram file that cannot be used
├── MissingDependencyError       an optional package is not installed
├── OverloadedError              the queue is full; try again later
│   ├── TrialTimeoutError        a new form was not tried in time; try again later
│   └── ShuttingDownError        no new requests are taken; try again elsewhere, or later
├── RequestCancelledError        the request was cancelled by its owner
├── FatalRequestError            workers were lost three times at it; do not retry it
└── WorkerError                  a role failed while working
    ├── StalePrefixError         the worker lacks the prefix that a call extends; send it whole
    ├── DrafterError             drafting failed; decoding continues without drafts
    │   └── DrafterLostError     the drafter was lost while it worked on the call
    └── VerifierError            verification failed; the request cannot continue
        └── VerifierUnavailableError  the verifier cannot be reached now; try again
            ├── VerifierLostError     the verifier was lost while it worked on the call
            └── BrokenEngineError     decoding broke off three times within a minute

Messages name the offending value and say what is valid.
"""

from __future__ import annotations


class DiffuspecError(Exception):
    """Base of every error raised on purpose.

    A message may quote a client's text: lone surrogates in it are escaped, so that it can be sent.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message.encode("utf-8", "backslashreplace").decode())


class ConfigError(DiffuspecError):
    """A configuration value is wrong, or a key is unknown."""


class InvalidRequestError(DiffuspecError):
    """A request asks for something impossible; raised before any work is done."""


class ContextLengthError(InvalidRequestError):
    """Prompt and max_tokens together exceed the target's context."""


class ModelLoadError(DiffuspecError):
    """A model directory cannot be loaded."""


class VocabularyError(ModelLoadError):
    """Drafter, target, tokenizer or proxy do not share token ids."""


class OutOfMemoryError(ModelLoadError):
    """Weights and cache do not fit the device; raised before weights are read."""


class NgramError(DiffuspecError):
    """An n-gram file cannot be read, or was not made over these token ids."""


class MissingDependencyError(DiffuspecError):
    """An optional package is needed for this and is not installed."""


class OverloadedError(DiffuspecError):
    """Too many requests are waiting; the same request may succeed later."""


class TrialTimeoutError(OverloadedError):
    """The machine was too busy to try a new form of answers; the same request may succeed later."""


class ShuttingDownError(OverloadedError):
    """Shutting down, so no new requests are accepted; the same request may succeed elsewhere."""


class RequestCancelledError(DiffuspecError):
    """The request was cancelled before it finished."""


class FatalRequestError(DiffuspecError):
    """Workers were lost three times while they worked on the request; do not retry it."""


class WorkerError(DiffuspecError):
    """A role failed while working."""


class StalePrefixError(WorkerError):
    """The worker lacks the prefix that the call extends; send all of it."""


class DrafterError(WorkerError):
    """The drafter failed; decoding continues without drafts."""


class DrafterLostError(DrafterError):
    """The drafter's process was lost while it worked on the call."""


class VerifierError(WorkerError):
    """The verifier failed; the request cannot continue."""


class VerifierUnavailableError(VerifierError):
    """The verifier cannot be reached now; the same call may succeed later."""


class VerifierLostError(VerifierUnavailableError):
    """The verifier was lost, or late, while it worked on the call."""


class BrokenEngineError(VerifierUnavailableError):
    """Decoding broke off three times within a minute, which closed the engine; try another one."""
