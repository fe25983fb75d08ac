"""What a request may ask for, and how every value of it is checked.

Numbers of numpy are taken too, and come back as Python's: they go on into JSON and onto the wire.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Literal, NoReturn, TypeAlias, get_args

from diffuspec.core.errors import InvalidRequestError

TreeShape: TypeAlias = Literal["path", "beams", "best_first"]
DraftLengthPolicy: TypeAlias = Literal["paper", "cost_aware", "fixed", "off"]

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_LOGPROBS = 20
MAX_DRAFT_TOKENS = 128
MAX_TREE_NODES = 256
MAX_OUTCOMES = 16
_NUM_SEED_BITS = 53  # every reader of JSON keeps such numbers whole

Check: TypeAlias = Callable[[str, object], object]  # name and value: the value, made plain


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's distribution is shaped and when a request ends.

    temperature 0 is greedy. With a seed the output is a function of the prompt and these
    parameters alone; where none is given, each request gets a fresh one (with_seed). top_k 0 and
    top_p 1 switch those filters off. Repetition penalty counts prompt and output (divides positive
    logits, multiplies negative ones); presence and frequency penalties count output only and are
    subtracted from the logits. stop and stop_token_ids may be given as lists, stop also as one
    string. Raises InvalidRequestError.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # top alternatives reported per token; 0 = the chosen one alone

    def __post_init__(self) -> None:
        for name, check in _SAMPLING_TYPES.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        require(0 <= self.temperature <= 10, "temperature", self.temperature, "from 0 to 10")
        require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or more")
        if self.seed is not None:
            require(-(2**63) <= self.seed < 2**63, "seed", self.seed, "a 64-bit integer")
        penalty = self.repetition_penalty
        require(0 < penalty <= 10, "repetition_penalty", penalty, "above 0 and at most 10")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            require(-10 <= value <= 10, name, value, "from -10 to 10")
        require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")
        few("stop", self.stop, MAX_STOP_STRINGS, "strings")
        for text in self.stop:
            fits = 0 < len(text) <= MAX_STOP_STRING_CHARACTERS
            limit = f"strings of 1 to {MAX_STOP_STRING_CHARACTERS} characters"
            require(fits, "stop", f"a string of {len(text)} characters", limit)
        few("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS, "ids")
        if self.logprobs is not None:
            in_range = 0 <= self.logprobs <= MAX_LOGPROBS
            require(in_range, "logprobs", self.logprobs, f"from 0 to {MAX_LOGPROBS}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def lacks_seed(self) -> bool:
        """Whether tokens are to be drawn and nothing says with which seed."""
        return self.seed is None and not self.is_greedy

    def with_seed(self) -> SamplingParams:
        """Return these with a fresh seed if they lack one: done once, where prompts come in."""
        return replace(self, seed=secrets.randbits(_NUM_SEED_BITS)) if self.lacks_seed else self

    @property
    def has_penalties(self) -> bool:
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Per-request control of drafting. None of it changes the output, only its speed.

    Raises InvalidRequestError.
    """

    policy: DraftLengthPolicy = "cost_aware"
    num_draft_tokens: int = 20  # for the fixed policy
    tree_shape: TreeShape = "best_first"
    max_nodes: int = 32
    drafter_weight: float | Literal["adaptive"] = 0.5  # lambda of Eq. 8
    num_outcomes: int | Literal["auto"] = "auto"  # drafted ahead at most; auto: by cost; 0: none

    def __post_init__(self) -> None:
        one_of("policy", self.policy, get_args(DraftLengthPolicy))
        one_of("tree_shape", self.tree_shape, get_args(TreeShape))
        k = integer("num_draft_tokens", self.num_draft_tokens)
        require(1 <= k <= MAX_DRAFT_TOKENS, "num_draft_tokens", k, f"from 1 to {MAX_DRAFT_TOKENS}")
        nodes = integer("max_nodes", self.max_nodes)
        require(1 <= nodes <= MAX_TREE_NODES, "max_nodes", nodes, f"from 1 to {MAX_TREE_NODES}")
        if self.drafter_weight != "adaptive":
            weight = number("drafter_weight", self.drafter_weight, "a number, or 'adaptive'")
            require(0 <= weight <= 1, "drafter_weight", weight, "from 0 to 1, or 'adaptive'")
        if self.num_outcomes != "auto":
            count = integer("num_outcomes", self.num_outcomes, "an integer, or 'auto'")
            limit = f"from 0 to {MAX_OUTCOMES}, or 'auto'"
            require(0 <= count <= MAX_OUTCOMES, "num_outcomes", count, limit)


def require(condition: bool, name: str, value: object, expected: str) -> None:
    """Raise unless a condition on a value holds."""
    if not condition:
        raise InvalidRequestError(f"{name} must be {expected}, got {value}")


def few(name: str, values: tuple[object, ...], limit: int, kind: str) -> None:
    require(len(values) <= limit, name, f"{len(values)} {kind}", f"{limit} at most")


def integer(name: str, value: object, expected: str = "an integer") -> int:
    """Return a whole number; neither 1.0 nor True is one."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        _refuse(name, value, expected)
    return int(value)


def optional_integer(name: str, value: object) -> int | None:
    return None if value is None else integer(name, value)


def number(name: str, value: object, expected: str = "a number") -> float:
    """Return a number as it is, or as a float."""
    if not isinstance(value, Real) or isinstance(value, bool):
        _refuse(name, value, expected)
    return value if isinstance(value, int) else float(value)


def boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        _refuse(name, value, "True or False")
    return value


def strings(name: str, value: object) -> tuple[str, ...]:
    """Return several strings; one alone is one of them, not its letters."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        _refuse(name, value, "a string or several")
    return tuple(value)


def integers(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        _refuse(name, value, "a list of integers")
    return tuple([integer(name, one) for one in value])


def one_of(name: str, value: object, names: tuple[str, ...]) -> None:
    """Raise unless a value is one of these names."""
    if value not in names:
        _refuse(name, value, f"one of {', '.join(names)}")


def _refuse(name: str, value: object, expected: str) -> NoReturn:
    raise InvalidRequestError(f"{name} must be {expected}, got {value!r:.80}")


_SAMPLING_TYPES: dict[str, Check] = {
    **dict.fromkeys(("temperature", "top_p"), number),
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), number),
    **dict.fromkeys(("top_k", "max_tokens"), integer),
    **dict.fromkeys(("seed", "logprobs"), optional_integer),
    "stop": strings,
    "stop_token_ids": integers,
    "ignore_eos": boolean,
}
