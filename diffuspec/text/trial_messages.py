"""What the service and its trial helper say to each other: JSON behind its length, on sockets.

The helper gets a `Setup` on its standard input, answers one byte, and then receives one socket for
each trial: a form on it, and its verdict back. Nothing that it says is more than text.
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
    """What one trial may cost."""

    cpu_seconds: int = 1
    num_bytes: int = 128 * 2**20  # beyond those of the helper
    wall_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What a helper needs to know about the target."""

    tokenizer: str  # a tokenizer.json
    info: TargetInfo
    limits: TrialLimits = TrialLimits()

    def to_bytes(self) -> bytes:
        return _framed(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        found = json.loads(data)
        info = found["info"] | {"eos_token_ids": tuple(found["info"]["eos_token_ids"])}
        return cls(found["tokenizer"], TargetInfo(**info), TrialLimits(**found["limits"]))


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
    found = json.loads(data)
    return StructuredOutput(**found | {"choice": tuple(found["choice"])})


def _framed(message: Mapping[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return LENGTH.pack(len(data)) + data
