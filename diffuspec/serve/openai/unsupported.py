"""Keys of other servers' bodies: those that change no answer, and those that would."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from diffuspec.serve.openai.errors import BadRequestError

IGNORED = frozenset(
    (
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "guided_decoding_backend",
    )
)
# What is not implemented and changes answers, with the value at which it does not.
_NEUTRAL: dict[str, object] = {
    "add_generation_prompt": True,  # of a text, which has no template
    "audio": {},
    "best_of": 1,
    "chat_template": "",
    "chat_template_kwargs": {},  # of a text
    "continue_final_message": False,  # of a text
    "documents": [],
    "early_stopping": False,
    "echo": False,
    "function_call": "none",
    "functions": [],
    "length_penalty": 1,
    "modalities": ["text"],
    "parallel_tool_calls": True,  # of a text, which has no tools
    "priority": 0,
    "reasoning_effort": "none",
    "suffix": "",
    "tool_choice": "none",
    "tools": [],
    "use_beam_search": False,
    "verbosity": "medium",
    "web_search_options": {},
}
_REASONS = {
    "priority": "priority must be 0: there is no scheduling by priority",
}
_MAX_SHOWN = 64  # characters of a key


def check_rest(rest: Mapping[str, Any], num_choices: int, known: Collection[str]) -> None:
    """Check the keys of a body that nothing else has taken; `known` are those that it may have.

    Raises BadRequestError naming one.
    """
    for name, value in rest.items():
        if name in IGNORED or (name == "best_of" and value == num_choices):
            continue
        if name not in _NEUTRAL:
            shown = name[:_MAX_SHOWN]
            alike = difflib.get_close_matches(shown, sorted(known), n=1, cutoff=0.8)
            meant = f"; did you mean {alike[0]!r}?" if alike else ""
            raise BadRequestError(f"unknown parameter {shown!r}{meant}", shown, "unknown_parameter")
        if value != _NEUTRAL[name]:
            reason = _REASONS.get(name, f"{name} is not supported")
            raise BadRequestError(reason, name, "unsupported_parameter")
