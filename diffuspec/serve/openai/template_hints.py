"""Hints of a chat to the model's template: how long to reason, and how long to answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diffuspec.serve.conventions import Conventions
from diffuspec.serve.openai.bodies import ChatBody
from diffuspec.serve.openai.errors import BadRequestError

_MOST = "xhigh"  # the highest effort that templates know


@dataclass(frozen=True, slots=True)
class Hints:
    """The variables of the chat template that a body sets, and its keys that set none."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    hides_reasoning: bool = False


def read_hints(body: ChatBody, conventions: Conventions) -> Hints:
    """Return the hints of a body. Raises BadRequestError if a strict service would ignore one."""
    variables: dict[str, Any] = {}
    ignored = []
    thinking = body.thinking
    for name, given, read in (
        ("thinking", None if thinking is None else thinking.type, _thinking),
        ("reasoning_effort", body.reasoning_effort, _effort),
        ("verbosity", body.verbosity, _verbosity),
    ):
        set_by_key = {} if given is None else read(given, conventions)
        if set_by_key is not None:
            variables |= set_by_key
        elif conventions.is_strict:
            raise BadRequestError(
                f"{name} is not supported by the chat template of this model, and a strict service "
                "ignores nothing",
                name,
                "unsupported_parameter",
            )
        else:
            ignored.append(name)
    is_hidden = thinking is not None and thinking.display == "omitted"
    return Hints(variables, tuple(ignored), is_hidden)


def _thinking(given: str, conventions: Conventions) -> dict[str, Any] | None:
    """Return the variables of `thinking`; None if the model cannot follow it."""
    if given == "adaptive":
        return {}
    is_wanted = given == "enabled"
    if "enable_thinking" in conventions.template:
        return {"enable_thinking": is_wanted}
    reasons = conventions.reasoning != "none" or conventions.has_channels
    return {} if is_wanted == reasons else None


def _effort(given: str, conventions: Conventions) -> dict[str, Any] | None:
    if "reasoning_effort" in conventions.template:
        return {"reasoning_effort": _MOST if given == "max" else given}
    if "enable_thinking" in conventions.template:
        return {"enable_thinking": given != "none"}
    return {} if given == "none" and conventions.reasoning == "none" else None


def _verbosity(given: str, conventions: Conventions) -> dict[str, Any] | None:
    if "verbosity" in conventions.template:
        return {"verbosity": given}
    return {} if given == "medium" else None
