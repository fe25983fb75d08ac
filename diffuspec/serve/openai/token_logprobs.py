"""Log-probabilities of the tokens of chats, as OpenAI has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diffuspec.core.types import TokenLogprobs
from diffuspec.serve.openai.objects import ChosenTokenLogprob, TokenLogprob
from diffuspec.serve.openai.token_texts import TokenTexts


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can hold: -9999 in place of less, as OpenAI has it."""
    return max(logprob, -9999.0)


def chosen_logprobs(
    texts: TokenTexts,
    name: Callable[[int, str], str],
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs],
) -> list[ChosenTokenLogprob]:
    """Return each token with the likeliest in its place; `name` names one by its id and text."""

    def described(token_id: int, logprob: float) -> TokenLogprob:
        shown = name(token_id, texts.token(token_id))
        return {"token": shown, "logprob": finite(logprob), "bytes": list(texts.raw(token_id))}

    return [
        {
            **described(token_id, found.logprob),
            "top_logprobs": [described(*pair) for pair in found.top],
        }
        for token_id, found in zip(token_ids, logprobs, strict=True)
    ]
