"""Outputs as the objects of OpenAI's API: whole answers, and chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diffuspec.serve.openai.jobs import Generation, Job
from diffuspec.serve.openai.replies.chat import ChatReply
from diffuspec.serve.openai.replies.completion import CompletionReply
from diffuspec.serve.openai.replies.reply import Reply

__all__ = ["Reply", "make_reply"]


def make_reply(
    job: Job,
    generations: Sequence[Generation],
    tokenizer: Any,
    *,
    id: str,
    model: str,
    created: int,
) -> Reply:
    """Return the reply of the job's endpoint."""
    is_chat = job.endpoint == "/v1/chat/completions"
    kind, prefix = (ChatReply, "chatcmpl") if is_chat else (CompletionReply, "cmpl")
    return kind(job, generations, tokenizer, id=f"{prefix}-{id}", model=model, created=created)
