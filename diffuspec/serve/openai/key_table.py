"""The keys of bodies that this service knows and does not obey, in all APIs.

OpenAI's and Anthropic's, and those of vLLM, SGLang, llama.cpp, TGI and Ollama. A key is ignored if
it cannot change an answer, or refused with the reason, so that none silently does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Ignored: they concern accounts, caches, statistics or another service's machines.
LABELS = frozenset(
    {
        "access_programs",
        "background_options",
        "billing_policy",
        "cache_prompt",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "guided_decoding_backend",
        "image",
        "inference_geo",
        "keep_alive",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "speed",
        "store",
        "timings_per_token",
        "user",
        "user_profile_id",
        "workspace_id",
    }
)
# Ignored, and named in the answer's header: their clients go on without their effect.
UNUSED = frozenset(
    {
        "client_metadata",
        "compaction",
        "context_management",
        "data_parallel_rank",
        "moderation",
        "personality",
        "return_progress",
        "stream_reasoning",
    }
)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a key is refused, and the neutral value, with which it is ignored instead."""

    reason: str
    neutral: object = None  # None is the same as no key: every value is refused


def _unsupported(**neutral: object) -> dict[str, Refused]:
    """Return refusals of keys with their neutral values; this service has no word for them."""
    return {
        name: Refused(f"{name} is not supported: leave it out", value)
        for name, value in neutral.items()
    }


_GRAMMAR = 'structured_outputs: {"grammar": ...}'
_NO_TOOLS = "this service runs no tools of its own"
_SAMPLERS = (
    "the samplers are temperature, top_p, top_k, min_p, and repetition, presence and frequency "
    "penalties"
)

# Keys of other servers, with our words for them in chats; our other APIs may have other words.
OTHER_WORDS: Mapping[str, str] = {
    "adapter_id": "model, which has one model without adapters",
    "ebnf": _GRAMMAR,
    "extra_key": "cache_salt",
    "format": "response_format",
    "grammar": _GRAMMAR,
    "input_ids": "prompt, which takes token ids",
    "inputs": "prompt or messages",
    "instructions": "a message of the role system",
    "json_schema": "response_format",
    "lora_path": "model, which has one model without adapters",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_tokens_to_sample": "max_tokens",
    "n_predict": "max_tokens",
    "n_probs": "logprobs and top_logprobs",
    "num_predict": "max_tokens",
    "options": "the keys themselves, beside messages",
    "parameters": "the keys themselves, beside messages",
    "prompt_token_ids": "prompt, which takes token ids",
    "regex": 'structured_outputs: {"regex": ...}',
    "repeat_penalty": "repetition_penalty",
    "rid": "request_id",
    "sampling_params": "the keys themselves, beside messages",
    "stop_regex": "stop, which takes texts",
    "stop_sequences": "stop",
    "structural_tag": "tools with strict: true",
    "system": "a message of the role system",
    "think": "reasoning_effort, or chat_template_kwargs",
    "top_n_tokens": "top_logprobs",
    "truncate": "truncate_prompt_tokens",
}
REFUSED: Mapping[str, Refused] = {
    **_unsupported(
        add_generation_prompt=True,  # completions only: a text has no chat template
        bootstrap_host=None,
        bootstrap_port=None,
        bootstrap_room=None,
        chat_template="",
        chat_template_kwargs={},  # completions only
        continue_final_message=False,  # completions only
        custom_logit_processor=None,
        custom_params={},
        decoder_input_details=False,
        details=False,
        documents=[],
        early_stopping=False,
        echo=False,
        grammar_lazy=False,
        grammar_triggers=[],
        guided_whitespace_pattern=None,
        guideline=None,
        id_slot=-1,
        image_data=[],
        input_embeds=None,
        kv_transfer_params={},
        length_penalty=1,
        logits_processors=[],
        lora=[],
        media_io_kwargs={},
        n_indent=0,
        n_keep=0,
        no_stop_trim=False,
        parallel_tool_calls=True,  # completions only: a text has no tools
        parse_tool_calls=True,
        post_sampling_probs=False,
        prompt_embeds=None,
        raw=False,
        reasoning_effort="none",  # completions only
        reasoning_format="auto",
        repetition_detection=None,
        response_fields=[],
        return_hidden_states=False,
        return_routed_experts=False,
        session_params={},
        suffix="",
        t_max_predict_ms=0,
        template="",
        thinking_forced_open=False,
        tool_choice="none",  # completions only
        tool_prompt=None,
        tools=[],  # completions only
        use_beam_search=False,
        verbosity="medium",  # completions only
        vllm_xargs={},
        watermark=False,
    ),
    **{
        name: Refused(f"{name} is not supported: {_SAMPLERS}", neutral)
        for name, neutral in {
            "dry_multiplier": 0,
            "dynatemp_range": 0,
            "eta_cutoff": 0,
            "epsilon_cutoff": 0,
            "min_keep": 0,
            "mirostat": 0,
            "no_repeat_ngram_size": 0,
            "penalty_alpha": 0,
            "samplers": None,
            "smoothing_factor": 0,
            "tfs_z": 1,
            "top_a": 0,
            "top_n_sigma": -1,
            "typical_p": 1,
            "xtc_probability": 0,
        }.items()
    },
    "audio": Refused("audio is not supported: only text is written", {}),
    "background": Refused("background must be false: this service stores no answers", False),
    "best_of": Refused("best_of must be n: no answers are computed but those that are returned", 1),
    "container": Refused(f"container must be left out: {_NO_TOOLS}"),
    "conversation": Refused(
        "conversation must be left out: this service stores no answers, so send the whole "
        "conversation"
    ),
    "detokenize": Refused(
        "detokenize must be true: return_token_ids adds token ids to the text", True
    ),
    "do_sample": Refused("do_sample must be true: temperature: 0 is greedy decoding", True),
    "function_call": Refused("function_call is not supported: use tool_choice", "none"),
    "functions": Refused("functions is not supported: use tools", []),
    "include_reasoning": Refused(
        "include_reasoning must be true: a completion has all in its text", True
    ),
    "mcp_servers": Refused(f"mcp_servers must be left out or empty: {_NO_TOOLS}", []),
    "mm_processor_kwargs": Refused("mm_processor_kwargs must be empty: only text is read", {}),
    "modalities": Refused("modalities must be ['text']: only text is written", ["text"]),
    "priority": Refused("priority must be 0: there is no scheduling by priority", 0),
    "return_full_text": Refused("return_full_text must be false: use echo", False),
    "return_logprob": Refused("return_logprob must be false: use logprobs", False),
    "return_tokens": Refused("return_tokens must be false: use return_token_ids", False),
    "separate_reasoning": Refused(
        "separate_reasoning must be true: include_reasoning: false leaves reasoning out", True
    ),
    "thinking": Refused("thinking must be left out: a text has no chat template"),
    "thinking_token_budget": Refused(
        "thinking_token_budget must be left out: reasoning is not cut; reasoning_effort sets how "
        "much there is, max_tokens bounds it with the answer"
    ),
    "web_search_options": Refused(
        "web_search_options must be left out: this service searches nothing"
    ),
}
