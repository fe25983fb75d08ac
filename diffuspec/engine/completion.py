"""Completion: a finished answer, as `Engine.generate` and `Engine.complete` return it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from diffuspec.core.types import FinishReason, RequestOutput, StepStats, TokenLogprobs
from diffuspec.telemetry.request_stats import RequestStats, summarize


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer.

    The text excludes EOS, and the stop string unless `include_stop_str_in_output` is set.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] | None
    num_prompt_tokens: int
    steps: tuple[StepStats, ...]
    seed: int | None = None  # seed of the sampling noise; it reproduces the answer
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # one for each prompt token after the first
    stop_reason: str | int | None = None  # the stop string or stop token id that ended it

    @classmethod
    def of(cls, outputs: Sequence[RequestOutput], num_prompt_tokens: int) -> Self:
        """Join all outputs of a request that has finished."""
        last = outputs[-1]
        assert last.finish_reason is not None
        logprobs = None
        if last.logprobs is not None:
            logprobs = tuple(one for output in outputs for one in output.logprobs or ())
        return cls(
            token_ids=tuple(i for output in outputs for i in output.token_ids),
            text="".join(output.text for output in outputs),
            finish_reason=last.finish_reason,
            logprobs=logprobs,
            num_prompt_tokens=num_prompt_tokens,
            steps=tuple(output.step for output in outputs),
            seed=last.seed,
            prompt_logprobs=outputs[0].prompt_logprobs,
            stop_reason=last.stop_reason,
        )

    @property
    def stats(self) -> RequestStats:
        return summarize(self.steps, self.num_prompt_tokens)
