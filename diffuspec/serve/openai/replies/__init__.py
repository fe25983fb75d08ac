"""Outputs as the objects of OpenAI's API: whole answers, and chunks of a stream."""

from __future__ import annotations

from typing import TypeAlias

from diffuspec.serve.openai.answers import Exchange
from diffuspec.serve.openai.replies.chat import ChatReply
from diffuspec.serve.openai.replies.completion import CompletionReply
from diffuspec.serve.openai.replies.reply import Whole

__all__ = ["Reply", "Whole", "make_reply"]

Reply: TypeAlias = ChatReply | CompletionReply


def make_reply(exchange: Exchange) -> Reply:
    """Return the reply for the job's endpoint."""
    is_chat = exchange.job.endpoint == "/v1/chat/completions"
    return ChatReply(exchange) if is_chat else CompletionReply(exchange)
