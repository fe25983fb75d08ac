"""Keys of other servers' bodies: ignored if they affect no answer, otherwise refused."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from diffuspec.core.parameter import declared
from diffuspec.core.params import SamplingParams
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
# Keys that are not implemented and would affect answers, each with its neutral value; None, which
# is the same as not given, if there is none.
_NEUTRAL: dict[str, object] = {
    "add_generation_prompt": True,  # refused only in completions: a text has no chat template
    "audio": {},
    "best_of": 1,
    "chat_template": "",
    "chat_template_kwargs": {},  # refused only in completions
    "continue_final_message": False,  # refused only in completions
    "detokenize": True,
    "documents": [],
    "early_stopping": False,
    "echo": False,
    "function_call": "none",
    "functions": [],
    "include_reasoning": True,  # refused only in completions
    "length_penalty": 1,
    "mm_processor_kwargs": {},
    "modalities": ["text"],
    "parallel_tool_calls": True,  # refused only in completions: a text has no tools
    "priority": 0,
    "reasoning_effort": "none",
    "suffix": "",
    "thinking_token_budget": None,
    "tool_choice": "none",
    "tools": [],
    "use_beam_search": False,
    "verbosity": "medium",  # refused only in completions
    "web_search_options": None,
}
_REASONS = {
    "audio": "audio is not supported: only text is written",
    "best_of": "best_of must be n: no answers are computed but those that are returned",
    "detokenize": "detokenize must be true: return_token_ids adds token ids to the text",
    "function_call": "function_call is not supported: use tool_choice",
    "functions": "functions is not supported: use tools",
    "include_reasoning": "include_reasoning must be true: a completion has all in its text",
    "mm_processor_kwargs": "mm_processor_kwargs must be empty: only text is read",
    "modalities": "modalities must be ['text']: only text is written",
    "priority": "priority must be 0: there is no scheduling by priority",
    "thinking_token_budget": "thinking_token_budget must be left out: reasoning is not cut; "
    "reasoning_effort sets how much there is, max_tokens bounds it with the answer",
    "web_search_options": "web_search_options must be left out: this service searches nothing",
}
_MAX_SHOWN = 64  # characters of a key in messages
# Keys of a chat that other APIs lack, and that mean the same in them.
EXTENSIONS = frozenset(
    {one.name for one in declared(SamplingParams)}
    - {"logprobs", "max_tokens", "prompt_logprobs", "structured_output"}
    | {
        "chat_template_kwargs",
        "include_reasoning",
        "prediction",
        "priority",
        "request_id",
        "speculation",
        "thinking_token_budget",
        "truncate_prompt_tokens",
        "truncation_side",
    }
)


def check_extensions(extras: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the keys of another API's body, besides its declared ones, that chats share.

    Raises BadRequestError for an unknown key. known: the keys of the API itself.
    """
    check_rest(
        {name: value for name, value in extras.items() if name not in EXTENSIONS},
        1,
        {*known, *EXTENSIONS},
    )
    return {name: value for name, value in extras.items() if name in EXTENSIONS}


def check_rest(rest: Mapping[str, Any], num_choices: int, known: Collection[str]) -> None:
    """Check the keys of a body that nothing else has read. known: the keys it may have.

    Raises BadRequestError naming the refused key.
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
            reason = _REASONS.get(name, f"{name} is not supported: leave it out")
            raise BadRequestError(reason, name, "unsupported_parameter")
