"""Forms of answers that come after reasoning, which has no form."""

from __future__ import annotations

from typing import Literal, TypeAlias

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import StructuredOutput
from diffuspec.serve.conventions import Conventions
from diffuspec.serve.openai.call_grammars import Calls, answered
from diffuspec.serve.openai.errors import BadRequestError
from diffuspec.serve.openai.reading.thinking import CLOSE, OPEN
from diffuspec.text.lark import rules_of

Thinking: TypeAlias = Literal["inside", "open", "over"]
"""Whether a prompt ends in reasoning, leaves it open whether there is any, or has ended it."""


def thinking_after(text: str) -> Thinking:
    """Return how the end of a prompt leaves reasoning."""
    end = text.rstrip()
    if end.endswith(OPEN):
        return "inside"
    return "over" if end.endswith(CLOSE) else "open"


def thinking_within(message: str) -> Thinking:
    """Return how a message that the answer goes on with leaves reasoning."""
    if message.rfind(OPEN) > message.rfind(CLOSE):
        return "inside"
    return "over" if message.strip() else "open"


def after_reasoning(
    form: StructuredOutput, conventions: Conventions, thinking: Thinking
) -> StructuredOutput:
    """Return the form of reasoning and the answer together. Raises InvalidRequestError."""
    if conventions.has_channels:
        calls = Calls((), False, True, conventions.special_ids, conventions.template)
        return _as_form(answered(rules_of(form, "answer"), calls))
    if conventions.reasoning == "none" or thinking == "over":
        return form
    calls = Calls((), False, True, conventions.special_ids, conventions.template)
    opened, close = calls.mark(OPEN), calls.mark(CLOSE)
    if CLOSE in conventions.special_ids:  # never a part of a text
        thought = f"thought: THOUGHT {close} SPACE\nTHOUGHT: /(.|\\n)*/"
    else:
        thought = f"thought: begun_thought SPACE\nbegun_thought[lazy]: /(.|\\n)*/ {close}"
    if thinking == "inside":
        start = "start: thought answer"
    elif conventions.reasoning == "deepseek_r1":  # DeepSeek R1 may leave out the opening mark
        start = f"start: {opened}? thought answer"
    else:
        start = f"start: ({opened} thought)? answer"
    space = "SPACE: /[ \\n]{0,4}/"
    return _as_form(f"{start}\n{thought}\n{space}\n{rules_of(form, 'answer')}")


def _as_form(grammar: str) -> StructuredOutput:
    try:
        return StructuredOutput(grammar=grammar)
    except InvalidRequestError as error:
        reason = str(error).partition(", got ")[0]
        raise BadRequestError(f"the form of the answer is too long: its {reason}") from None
