"""Log-probabilities of a prompt's tokens: the target verifies them as drafts of its own prompt."""

from __future__ import annotations

from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.errors import VerifierError
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import TokenIds, TokenLogprobs, Verdict, VerifyRequest


class PromptScoring:
    """Reads one prompt in chains of at most as many tokens as a draft may have.

    Each chain is a part of the prompt (see `VerifyRequest`), so that the target keeps it whole and
    returns the log-probability of each of its tokens. The first token of a prompt has none.
    """

    def __init__(self, prompt: TokenIds, num_top: int) -> None:
        """num_top: likeliest tokens to report in the place of each token."""
        self._prompt = prompt
        self._sampling = SamplingParams(logprobs=num_top)
        self._found: list[TokenLogprobs] = []

    @property
    def num_scored(self) -> int:
        """Leading tokens of the prompt that need not be scored again; at least one."""
        return 1 + len(self._found)

    @property
    def is_finished(self) -> bool:
        return self.num_scored == len(self._prompt)

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """One for each token of the prompt after the first, as far as they are known."""
        return tuple(self._found)

    def next_chunk(
        self, request_id: str, max_nodes: int, max_read_tokens: int | None = None
    ) -> VerifyRequest:
        """Return the next chain, which is the same until its verdict is taken."""
        start, end = self.num_scored, min(self.num_scored + max_nodes, len(self._prompt))
        tree = chain(self._prompt[start:end].tolist())
        prefix = self._prompt[:start]
        return VerifyRequest(
            request_id, prefix, end, tree, self._sampling, max_read_tokens=max_read_tokens
        )

    def take(self, chunk: VerifyRequest, verdict: Verdict) -> None:
        """Keep what a verdict says of a chain. Raises VerifierError for one of another chain."""
        logprobs = verdict.logprobs or ()
        if verdict.token_ids[:-1] != chunk.tree.token_ids or len(logprobs) != len(
            verdict.token_ids
        ):
            raise VerifierError("the verifier returned no log-probabilities of the prompt")
        self._found += logprobs[:-1]
