"""POST /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Any

from diffuspec.serve.backend import ServedModel
from diffuspec.serve.messages.asking import read_chat
from diffuspec.serve.messages.bodies import CountBody
from diffuspec.serve.messages.objects import TokenCount
from diffuspec.serve.openai.tokenization import encode_whole
from diffuspec.serve.openai.validation import keys_of, validated

_OF_ANSWERS = ("max_tokens", "stop_sequences", "stream")


def count_tokens(body: object, tokenizer: Any, model: ServedModel) -> TokenCount:
    """Return the number of tokens of a body's prompt.

    Tokenising a long prompt takes time: call it in a thread. Raises InvalidRequestError.
    """
    given = {name: value for name, value in keys_of(body).items() if name not in _OF_ANSWERS}
    job = read_chat(validated(CountBody, given), {}, model)
    return {"input_tokens": len(encode_whole(job, tokenizer, model))}
