"""A cache language model: the causal proxy, mixed with the n-grams of this request's own text.

A corpus's n-gram model does not know the names and phrases of one conversation; the n-grams of
prompt and answer do (Kuhn and De Mori, A Cache-Based Natural Language Model for Speech Recognition,
IEEE PAMI 1990). After a context that occurred n times before, they get the weight w * n / (n +
1/2), and the proxy gets the rest: all of it after a new context.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from diffuspec.algorithm.per_request import PerRequest
from diffuspec.core.interfaces import CausalProxy, ProxyState
from diffuspec.core.types import NO_TOKENS, DraftRequest, TokenIds, num_shared_tokens

_CONTEXT_SIZES = (2, 1)  # numbers of tokens; the shorter context is used if the longer one is new
_DOUBT = 0.5  # the 1/2 in the weight above

_Counts = dict[tuple[int, ...], dict[int, int]]


class CacheModel:
    """Creates each request's proxy from a shared one."""

    def __init__(self, proxy: CausalProxy, weight: float, max_requests: int) -> None:
        """`weight`: the largest weight of the text's n-grams, w."""
        self._proxy = proxy
        self._weight = weight
        self._texts = PerRequest(TextCounts, max_requests)

    def proxy_for(self, request: DraftRequest) -> CausalProxy:
        """Return the proxy of a request's prefix; valid until the next call for the request."""
        text = self._texts.of(request.request_id)
        text.follow(request.prefix)
        return _CacheProxy(self._proxy, text, self._weight)


class TextCounts:
    """How often each token followed each context in one text."""

    def __init__(self) -> None:
        self._text = NO_TOKENS
        self._after: _Counts = {}

    def follow(self, text: TokenIds) -> None:
        """Update the counts to those of another text."""
        num_shared = num_shared_tokens(self._text, text)
        self._count(self._text, num_shared, -1)
        self._count(text, num_shared, 1)
        self._text = text

    def after(self, context: tuple[int, ...]) -> dict[int, int]:
        """Return the tokens that followed a context's longest known suffix, with their counts."""
        for size in _CONTEXT_SIZES:
            if size <= len(context) and (found := self._after.get(context[-size:])):
                return found
        return {}

    def _count(self, text: TokenIds, start: int, sign: int) -> None:
        """Add (sign 1) or subtract (sign -1) the n-grams that end at `start` or later."""
        first = max(start - _CONTEXT_SIZES[0], 0)
        token_ids = text[first:].tolist()
        for place in range(start - first, len(token_ids)):
            for size in _CONTEXT_SIZES:
                if size <= place:
                    counts = self._after.setdefault(tuple(token_ids[place - size : place]), {})
                    token_id = token_ids[place]
                    counts[token_id] = counts.get(token_id, 0) + sign
                    if not counts[token_id]:
                        del counts[token_id]


class _CacheProxy:
    """The `CausalProxy` of one prefix. A state holds the proxy's own state and the last tokens."""

    def __init__(self, proxy: CausalProxy, text: TextCounts, weight: float) -> None:
        self._proxy = proxy
        self._text = text
        self._weight = weight

    @property
    def max_context_tokens(self) -> int:
        return max(self._proxy.max_context_tokens, _CONTEXT_SIZES[0])

    def begin(self, context: Sequence[int], salt: str | None = None) -> ProxyState:
        return self._proxy.begin(context, salt), tuple(context[-_CONTEXT_SIZES[0] :])

    def expand(
        self, states: Sequence[ProxyState], candidates: Sequence[int]
    ) -> tuple[list[list[float]], list[list[ProxyState]]]:
        """Score every candidate after every state; see `CausalProxy.expand`."""
        logprobs, afters = self._proxy.expand([state for state, _ in states], candidates)
        scored, joined = [], list[list[ProxyState]]()
        for (_, context), row, after in zip(states, logprobs, afters, strict=True):
            scored.append(self._mix(context, candidates, row))
            ends = [(*context, token_id)[-_CONTEXT_SIZES[0] :] for token_id in candidates]
            joined.append(list(zip(after, ends, strict=True)))
        return scored, joined

    def _mix(
        self, context: tuple[int, ...], candidates: Sequence[int], logprobs: list[float]
    ) -> list[float]:
        counts = self._text.after(context)
        if not counts:
            return logprobs
        total = sum(counts.values())
        weight = self._weight * total / (total + _DOUBT)
        rest, share = 1 - weight, weight / total
        mixed = [
            rest * math.exp(logprob) + share * counts.get(token_id, 0)
            for token_id, logprob in zip(candidates, logprobs, strict=True)
        ]
        return [math.log(probability) if probability else -math.inf for probability in mixed]
