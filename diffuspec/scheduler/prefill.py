"""Prefill: how much of a request's prefix the target has in its cache, and what it reads next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diffuspec.core.errors import VerifierError
from diffuspec.core.types import TokenLogprobs, Verdict, VerifyRequest
from diffuspec.text.prefix import Prefix
from diffuspec.text.prompt_scoring import PromptScoring

_FEW_TOKENS = 8  # no more rows than a short draft's: read beside decoding, without a prefill


class Prefill:
    """Has the target read a long prefix in several verifications, ahead of the step.

    Only the target knows how much of it is cached: it is given the whole prefix with a limit on
    what it reads at a time, and says how much it left.
    """

    def __init__(self, request_id: str, prefix: Prefix, scoring: PromptScoring | None) -> None:
        """`scoring` is None if no log-probabilities of the prompt are asked for."""
        self.num_read = 0  # tokens of the prefix that are in the target's cache
        self._num_cached: int | None = None  # before this request's first verification
        self._is_stuck = False  # the last verification left as much unread as the one before
        self._request_id = request_id
        self._prefix = prefix
        self._scoring = scoring

    @property
    def num_unread(self) -> int:
        """Tokens of the prefix that the target reads in the coming step; 1 while decoding."""
        return self._prefix.num_tokens - self.num_read

    @property
    def is_long(self) -> bool:
        """Whether the coming step reads more than it would in the time of a decoding step."""
        return self._prefix.num_tokens - self.num_read > _FEW_TOKENS

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of the prompt's tokens scored so far; empty if not asked for."""
        return self._scoring.logprobs if self._scoring is not None else ()

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that other requests had left in the target's cache."""
        return min(self._num_cached or 0, self._prefix.num_prompt_tokens)

    def finish(self) -> None:
        """Note that a verdict is committed: the target has read all tokens but its own last one."""
        self.num_read = self._prefix.num_tokens - 1

    def limit(self, most: int) -> int | None:
        """Return how many tokens a verification may read: `most`, or None for all of them.

        All if the last verification got no further, because the verifier lost its cache or gave the
        place to others: otherwise the reading might never end.
        """
        return None if self._is_stuck else most

    def next_scored(self, max_nodes: int, most: int) -> VerifyRequest | None:
        """Return the next part of a prompt that is scored, of at most `max_nodes` tokens."""
        if self._scoring is None or self._scoring.is_finished:
            return None
        return self._scoring.next_chunk(self._request_id, max_nodes, self.limit(most))

    def take(self, asked: VerifyRequest, verdict: Verdict) -> bool:
        """Note what the target has read; return whether the verdict is that of the coming step.

        False: it read a part of the prefix only. Raises VerifierError for a wrong verdict.
        """
        if self._num_cached is None:
            self._num_cached = verdict.num_cached_tokens
        if verdict.num_unread_tokens:
            num_read = len(asked.prefix) - verdict.num_unread_tokens
            if num_read < 1 or asked.max_read_tokens is None:
                raise VerifierError(
                    f"the verifier left {verdict.num_unread_tokens} tokens unread of "
                    f"{len(asked.prefix)}, with a limit of {asked.max_read_tokens}"
                )
            self._is_stuck = num_read <= self.num_read
            self.num_read = num_read
            return False
        self._is_stuck = False
        if asked.is_of_prompt and self._scoring is not None:
            read = len(asked.prefix) + asked.tree.num_nodes
            self.num_read = min(read, self._prefix.num_tokens - 1)
            self._scoring.take(asked, verdict)
            return False
        return True


def choose_prompts(
    sizes: Sequence[int],
    waited: Sequence[float],
    seconds: Callable[[float], float],
    price: float,
) -> list[int]:
    """Return the places of the prompts to read in the next verification, shorter ones first.

    Those that would delay the others' first tokens by more than they gain wait, but none for longer
    than it takes to read it. Given are their tokens, the seconds that each has waited, the seconds
    of a verification by the tokens in it, and the price of a second's delay of one first token.
    """
    due = {place for place, size in enumerate(sizes) if waited[place] > seconds(size) > 0}
    order = sorted(range(len(sizes)), key=lambda place: (place not in due, sizes[place]))
    number, read, rest = len(order), 0, sum(sizes)
    costs: list[float] = []
    for count, place in enumerate(order, start=1):
        read, rest = read + sizes[place], rest - sizes[place]
        first, then = seconds(read), seconds(rest) if rest else 0.0
        delay = count * first + (number - count) * (first + then)
        costs.append(first + then + price * delay)
    return order[: max(costs.index(min(costs)) + 1, len(due))]
