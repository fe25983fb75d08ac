"""Reading: how much of a request's prefix the target has in its cache, and what it reads next."""

from __future__ import annotations

from diffuspec.coordinator.prefix import Prefix
from diffuspec.coordinator.prompt_scoring import PromptScoring
from diffuspec.coordinator.state_feed import StateFeed
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import EMPTY_TREE, TokenLogprobs, Verdict, VerifyRequest

_FEW_TOKENS = 8  # the target reads them in the time of a decoding step


class Reading:
    """Lets the target read a long prefix in chunks, ahead of the step."""

    def __init__(
        self, request_id: str, prefix: Prefix, feed: StateFeed, scoring: PromptScoring | None
    ) -> None:
        """`scoring` is None where the prompt's tokens are not reported."""
        self.num_read = 0  # tokens of the prefix that are in the target's cache
        self._num_cached: int | None = None  # before this request's first verification
        self._request_id = request_id
        self._prefix = prefix
        self._feed = feed
        self._scoring = scoring

    @property
    def num_unread(self) -> int:
        """Tokens of the prefix that the target reads in the coming step; 1 while decoding."""
        return self._prefix.num_tokens - self.num_read

    @property
    def is_long(self) -> bool:
        """Whether the coming step reads a prompt: more than takes the time of decoding."""
        return self._prefix.num_tokens - self.num_read > _FEW_TOKENS

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Those of the prompt's tokens that were scored; empty if they are not reported."""
        return self._scoring.logprobs if self._scoring is not None else ()

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that other requests had left in the target's cache."""
        return min(self._num_cached or 0, self._prefix.num_prompt_tokens)

    def note_cached(self, verdict: Verdict) -> None:
        """Take note of what a request's first verdict says of the cache."""
        if self._num_cached is None:
            self._num_cached = verdict.num_cached_tokens

    def finish(self) -> None:
        """Note that a verdict is committed: all but the target's own last token is read."""
        self.num_read = self._prefix.num_tokens - 1

    def next_chunk(self, max_tokens: int, max_nodes: int = 1) -> VerifyRequest | None:
        """Return the next chunk of the prefix to prefill ahead of the step, if much is unread.

        A prompt that is scored is read in chunks of at most `max_nodes`, up to its end.
        """
        scoring = self._scoring if self._scoring and not self._scoring.is_finished else None
        num_wanted = self._prefix.num_tokens if scoring is None else scoring.num_scored
        if num_wanted - self.num_read <= max_tokens:
            return scoring.next_chunk(self._request_id, max_nodes) if scoring else None
        chunk = self._prefix.first(self.num_read + max_tokens)
        nothing, wanted = SamplingParams(), self._feed.wanted
        return VerifyRequest(self._request_id, chunk, len(chunk), EMPTY_TREE, nothing, wanted)

    def finish_chunk(self, chunk: VerifyRequest, verdict: Verdict) -> None:
        """Take note that a chunk is read. Raises VerifierError for a wrong verdict."""
        read = len(chunk.prefix) + chunk.tree.num_nodes
        self.num_read = min(read, self._prefix.num_tokens - 1)
        if chunk.is_of_prompt and self._scoring is not None:
            self._scoring.take(chunk, verdict)
