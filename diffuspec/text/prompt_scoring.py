"""Log-probabilities of a prompt's tokens: the target verifies them as drafts of its own prompt."""

from __future__ import annotations

from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.errors import VerifierError
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import TokenIds, TokenLogprobs, Verdict, VerifyRequest


class PromptScoring:
    """Reads one prompt in chains no longer than a draft may be.

    Each chain is a part of the prompt (see `VerifyRequest`), so the target accepts all of it and
    returns the log-probability of each of its tokens. The first token of a prompt has none.
    """

    def __init__(self, prompt: TokenIds, num_top: int, cache_salt: str | None = None) -> None:
        """num_top: number of likeliest tokens to report for each position."""
        self._prompt = prompt
        self._sampling = SamplingParams(logprobs=num_top, cache_salt=cache_salt)
        self._found: list[TokenLogprobs] = []

    @property
    def num_scored(self) -> int:
        """Number of leading prompt tokens already scored; the first one counts as scored."""
        return 1 + len(self._found)

    @property
    def is_finished(self) -> bool:
        return self.num_scored == len(self._prompt)

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of the prompt's tokens after the first, as far as they are scored."""
        return tuple(self._found)

    def next_chunk(
        self, request_id: str, max_nodes: int, max_read_tokens: int | None = None
    ) -> VerifyRequest:
        """Return the next chain: the same one until its verdict is taken."""
        start, end = self.num_scored, min(self.num_scored + max_nodes, len(self._prompt))
        tree = chain(self._prompt[start:end].tolist())
        prefix = self._prompt[:start]
        return VerifyRequest(
            request_id, prefix, end, tree, self._sampling, max_read_tokens=max_read_tokens
        )

    def take(self, chunk: VerifyRequest, verdict: Verdict) -> None:
        """Store a chain's log-probabilities. Raises VerifierError for another chain's verdict."""
        logprobs = verdict.logprobs or ()
        if verdict.token_ids[:-1] != chunk.tree.token_ids or len(logprobs) != len(
            verdict.token_ids
        ):
            raise VerifierError("the verifier returned no log-probabilities of the prompt")
        self._found += logprobs[:-1]
