"""Messages between the service and its trial helper: JSON after its length, on sockets.

The helper gets a `Setup` on its standard input, answers one byte, and then receives one socket for
each trial: a form on it, and its verdict back. The service treats all that it receives as text.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, TypeAlias

from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import StructuredOutput

LENGTH = struct.Struct("<I")
READY = b"!"

_MAX_REASON = 1000  # characters

# refused: this form never passes. late: not tried to the end; it may pass at another time.
Outcome: TypeAlias = Literal["passed", "refused", "late"]


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """The limits of one trial."""

    cpu_seconds: int = 1
    num_bytes: int = 128 * 2**20  # beyond the helper's own memory
    wall_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Setup:
    """The parts of the target that a helper needs, and the limits of its trials."""

    tokenizer: str  # content of a tokenizer.json
    info: TargetInfo
    limits: TrialLimits = TrialLimits()

    def to_bytes(self) -> bytes:
        return _framed(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        values = json.loads(data)
        info = values["info"] | {"eos_token_ids": tuple(values["info"]["eos_token_ids"])}
        return cls(values["tokenizer"], TargetInfo(**info), TrialLimits(**values["limits"]))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a trial; reason: the error's text, "" for a form that passed."""

    outcome: Outcome
    reason: str = ""

    def to_bytes(self) -> bytes:
        return _framed({"outcome": self.outcome, "reason": self.reason[:_MAX_REASON]})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(**json.loads(data))


def form_to_bytes(form: StructuredOutput) -> bytes:
    return _framed(asdict(form))


def form_from_bytes(data: bytes) -> StructuredOutput:
    values = json.loads(data)
    return StructuredOutput(**values | {"choice": tuple(values["choice"])})


def _framed(message: Mapping[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return LENGTH.pack(len(data)) + data
