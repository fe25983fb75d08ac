"""Outputs as the objects of OpenAI's API: whole answers, and chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from diffuspec.serve.openai.jobs import Generation, Job
from diffuspec.serve.openai.replies.chat import ChatReply
from diffuspec.serve.openai.replies.completion import CompletionReply
from diffuspec.serve.openai.replies.reply import Whole

__all__ = ["Reply", "Whole", "make_reply"]

Reply: TypeAlias = ChatReply | CompletionReply


def make_reply(
    job: Job, generations: Sequence[Generation], tokenizer: Any, *, id: str, **head: Any
) -> Reply:
    """Return the reply of the job's endpoint. `id` is the request's, without its prefix."""
    if job.endpoint == "/v1/chat/completions":
        return ChatReply(job, generations, tokenizer, id=f"chatcmpl-{id}", **head)
    return CompletionReply(job, generations, tokenizer, id=f"cmpl-{id}", **head)
