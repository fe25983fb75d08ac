"""Keys of other servers' bodies: ignored if they change no answer, refused if they would."""

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
# Keys that are not implemented and would change answers, each with the value that changes nothing.
_NEUTRAL: dict[str, object] = {
    "add_generation_prompt": True,  # in completions: a text has no chat template
    "audio": {},
    "best_of": 1,
    "chat_template": "",
    "chat_template_kwargs": {},  # in completions
    "continue_final_message": False,  # in completions
    "documents": [],
    "early_stopping": False,
    "echo": False,
    "function_call": "none",
    "functions": [],
    "length_penalty": 1,
    "modalities": ["text"],
    "parallel_tool_calls": True,  # in completions: a text has no tools
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
    """Check the keys of a body that nothing else has read; `known` are the keys it may have.

    Raises BadRequestError naming a key that is refused.
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
