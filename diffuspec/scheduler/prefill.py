"""Prefill: lets the target read a long prefix in several verifications, before the step."""

from __future__ import annotations

from diffuspec.core.errors import VerifierError
from diffuspec.core.pages import PAGE_SIZE
from diffuspec.core.types import TokenLogprobs, Verdict, VerifyRequest
from diffuspec.speculation.values import FEW_TOKENS
from diffuspec.text.prefix import Prefix
from diffuspec.text.prompt_scoring import PromptScoring


class Prefill:
    """The part of a request's prefix that the target has read.

    Only the target knows how much of it is cached: it gets the whole prefix, with a limit on the
    tokens to read at a time, and reports how many are left.
    """

    def __init__(
        self,
        request_id: str,
        prefix: Prefix,
        scoring: PromptScoring | None,
        *,
        is_salted: bool = False,
    ) -> None:
        """scoring: None if no log-probabilities of the prompt are requested.

        is_salted: the request shares cached prefixes only with those of the same salt.
        """
        self.num_read = 0  # tokens of the prefix in the target's cache
        self._num_lost = 0  # tokens that it has held before
        self._num_cached: int | None = None  # tokens that earlier requests left there
        self._is_stuck = False  # the last verification made no progress
        self._request_id = request_id
        self._prefix = prefix
        self._scoring = scoring
        self._block = PAGE_SIZE if is_salted else 1

    @property
    def num_unread(self) -> int:
        """Number of prefix tokens that the target reads in the next step; 1 while decoding."""
        return self._prefix.num_tokens - self.num_read

    @property
    def is_long(self) -> bool:
        """Whether the next step reads more than fits into the time of a decoding step."""
        return self.num_unread > FEW_TOKENS

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of the prompt tokens scored so far; empty if not requested."""
        return self._scoring.logprobs if self._scoring is not None else ()

    @property
    def num_cached_tokens(self) -> int:
        """Number of prompt tokens that other requests had left in the target's cache.

        With a salt it is rounded down to whole blocks.
        """
        num_cached = min(self._num_cached or 0, self._prefix.num_prompt_tokens)
        return num_cached // self._block * self._block

    def finish(self) -> None:
        """Record a committed verdict: the target has read all tokens but its own last one."""
        self.num_read = self._prefix.num_tokens - 1

    def lose(self) -> None:
        """Let the target look for the prefix in its cache once more: pages have been lost."""
        self.num_read, self._num_lost = 0, max(self.num_read, self._num_lost)

    def found(self, verdict: Verdict) -> int:
        """Return the number of lost tokens that a verification had to read again."""
        num_lost, self._num_lost = self._num_lost, 0
        return max(num_lost - verdict.num_cached_tokens, 0)

    def hold(self, asked: VerifyRequest, verdict: Verdict) -> None:
        """Record what is cached of a prefix whose verification is held."""
        num_read = len(asked.prefix) - verdict.num_unread_tokens
        self.num_read = min(max(num_read, 0), self._prefix.num_tokens - 1)

    def limit(self, most: int) -> int | None:
        """Return how many tokens a verification may read: `most`, or None for all.

        All if the last verification made no progress, because the verifier lost its cache or gave
        the slot to others: otherwise the prefill might never end.
        """
        return None if self._is_stuck else most

    def next_scored(self, max_nodes: int, most: int) -> VerifyRequest | None:
        """Return the next part of a scored prompt, of at most `max_nodes` tokens."""
        if self._scoring is None or self._scoring.is_finished:
            return None
        return self._scoring.next_chunk(self._request_id, max_nodes, self.limit(most))

    def take(self, asked: VerifyRequest, verdict: Verdict) -> bool:
        """Record what the target has read; return whether this is the verdict of the next step.

        False: it has only read a part of the prefix. Raises VerifierError for an invalid verdict.
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
