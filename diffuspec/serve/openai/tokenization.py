"""Bodies and responses of /tokenize and /detokenize, in vLLM's format.

Tokenising long prompts takes time, so call these functions in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from diffuspec.core.types import TokenIds
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.openai.errors import BadRequestError
from diffuspec.serve.openai.jobs import Job, encode_one
from diffuspec.serve.openai.objects import DetokenizedText, TokenizedPrompt, TokenizerInfo
from diffuspec.serve.openai.parsing import parse
from diffuspec.text.chat_template import template_text

_MOST_COUNTED = 1 << 17  # tokens of a prompt; a longer one may be refused uncounted
_DETOKENIZE_KEYS = ("model", "tokens")

TOKENIZE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "The body of a chat or of a completion with one prompt. What does not concern "
    "the prompt is checked and has no effect.",
    "properties": {
        "messages": {"type": "array", "items": {"type": "object"}},
        "prompt": {"type": "string"},
        "return_token_strs": {"type": "boolean", "default": False},
    },
}
DETOKENIZE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "model": {"type": "string"},
        "tokens": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["tokens"],
}


def tokenize(body: object, tokenizer: Any, model: ServedModel) -> TokenizedPrompt:
    """Return the token ids of the prompt of a body for either endpoint of OpenAI's API.

    They may be more than the context holds. Raises InvalidRequestError.
    """
    given = dict(body) if isinstance(body, Mapping) else body
    returns_texts = given.pop("return_token_strs", None) if isinstance(given, dict) else None
    if not isinstance(returns_texts, bool | None):
        raise BadRequestError("return_token_strs must be true or false", "return_token_strs")
    is_chat = isinstance(given, dict) and "messages" in given
    job = parse("/v1/chat/completions" if is_chat else "/v1/completions", given, model)
    if len(job.prompts) != 1:
        raise BadRequestError("prompt must be one text, or token ids", "prompt")
    token_ids = encode_whole(job, tokenizer, model).tolist()
    return {
        "count": len(token_ids),
        "max_model_len": model.max_model_len,
        "tokens": token_ids,
        "token_strs": tokenizer.convert_ids_to_tokens(token_ids) if returns_texts else None,
    }


def tokenizer_info(tokenizer: Any) -> TokenizerInfo:
    """Return the tokenizer's class, chat template and special tokens, without names of files."""
    special = tokenizer.special_tokens_map.items()
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    info: dict[str, Any] = {
        "tokenizer_class": type(tokenizer).__name__,
        "chat_template": template_text(tokenizer),
        "model_max_length": tokenizer.model_max_length,
        **{name: str(token) for name, token in special if name in TokenizerInfo.__annotations__},
        "added_tokens_decoder": {
            str(token_id): {"content": token.content, "special": token.special}
            for token_id, token in sorted(added.items())
        },
    }
    return cast(TokenizerInfo, info)


def encode_whole(job: Job, tokenizer: Any, model: ServedModel) -> TokenIds:
    """Tokenise the only prompt of a job, even if it is longer than the context.

    Raises InvalidRequestError.
    """
    counted = replace(model, max_model_len=max(model.max_model_len, _MOST_COUNTED))
    return encode_one(job.prompts[0], job, tokenizer, counted)


def detokenize(body: object, tokenizer: Any, model: ServedModel) -> DetokenizedText:
    """Return the text of token ids, including special tokens. Raises InvalidRequestError."""
    if not isinstance(body, Mapping):
        raise BadRequestError("the body must be a JSON object")
    for name in body:
        if name not in _DETOKENIZE_KEYS:
            shown = str(name)[:64]
            raise BadRequestError(f"unknown parameter {shown!r}", shown, "unknown_parameter")
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or not all(type(one) is int for one in tokens):
        raise BadRequestError("tokens must be a list of token ids", "tokens")
    if not all(0 <= one < model.vocab_size for one in tokens):
        raise BadRequestError(f"tokens must be from 0 to {model.vocab_size - 1}", "tokens")
    return {"prompt": tokenizer.decode(tokens, clean_up_tokenization_spaces=False)}
