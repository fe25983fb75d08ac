"""Growing answers, and the usage block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from diffuspec.core.types import FinishReason, RequestOutput, StepStats, TokenLogprobs
from diffuspec.serve.openai.jobs import Generation, Job
from diffuspec.serve.openai.objects import Usage
from diffuspec.serve.openai.speculation_objects import SpeculationUsage


@dataclass(frozen=True, slots=True)
class Exchange:
    """A tokenised request, with everything that its reply needs."""

    job: Job
    generations: Sequence[Generation]
    tokenizer: Any
    request_id: str
    model: str
    created: int  # seconds since 1970


@dataclass(slots=True)
class Answer:
    """The outputs of one generation so far, joined."""

    generation: Generation
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # one for each prompt token after the first
    steps: list[StepStats] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    seed: int | None = None
    num_reasoning_tokens: int = 0

    def add(self, output: RequestOutput) -> None:
        self.text += output.text
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or ()
        self.prompt_logprobs += output.prompt_logprobs
        self.steps.append(output.step)
        self.finish_reason = output.finish_reason
        self.stop_reason = output.stop_reason
        self.seed = output.seed


def usage(answers: Sequence[Answer], num_choices: int, *, has_prediction: bool = False) -> Usage:
    """Return OpenAI's usage block. A prompt counts once for all its choices, by the first one.

    Drafts of a request with a prediction count as predicted. `speculation` is our extension: steps,
    acceptance, hits of pre-drafts.
    """
    prompts = answers[::num_choices]
    num_prompt_tokens = sum(len(answer.generation.prompt_token_ids) for answer in prompts)
    num_cached_tokens = sum(answer.steps[0].num_cached_tokens for answer in prompts if answer.steps)
    num_tokens = sum(len(answer.token_ids) for answer in answers)
    steps = [step for answer in answers for step in answer.steps]
    predicted = [step for step in steps if has_prediction]
    accepted = sum(step.num_accepted_tokens for step in predicted)
    drafted = sum(step.num_tree_nodes for step in predicted)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt_tokens + num_tokens,
        "prompt_tokens_details": {"cached_tokens": num_cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
            "reasoning_tokens": sum(answer.num_reasoning_tokens for answer in answers),
            "audio_tokens": 0,
        },
        "speculation": _speculation(answers),
    }


def _speculation(answers: Sequence[Answer]) -> SpeculationUsage:
    steps = [step for answer in answers for step in answer.steps]
    num_tokens = sum(len(answer.token_ids) for answer in answers)
    drafts = [step for step in steps if step.num_tree_nodes]
    deepest = max((step.num_accepted_tokens for step in drafts), default=0)
    reached = [
        sum(step.num_accepted_tokens > position for step in drafts) for position in range(deepest)
    ]
    hits = sum(step.pre_draft == "hit" for step in steps)
    tried = hits + sum(step.pre_draft == "miss" for step in steps)
    return {
        "steps": len(steps),
        "acceptance_length": round(num_tokens / len(steps), 3) if steps else 0.0,
        "drafts": len(drafts),
        "draft_tokens": sum(step.num_tree_nodes for step in drafts),
        "accepted_tokens": sum(step.num_accepted_tokens for step in drafts),
        "acceptance_by_position": [round(count / len(drafts), 3) for count in reached],
        "pre_draft_hit_rate": round(hits / tried, 3) if tried else None,
        "fallback_steps": sum(step.fallback is not None for step in steps),
        "estimated_speedup": _speedup(answers),
    }


def _speedup(answers: Sequence[Answer]) -> float | None:
    """Return the speed-up over plain decoding; None before a second step.

    This is an estimate: plain decoding is assumed to take as long for a token as these steps took
    without waiting for drafts. First steps are excluded, since they read the prompt.
    """
    steps = [step for answer in answers for step in answer.steps[1:]]
    seconds = sum(step.step_seconds for step in steps)
    if not seconds:
        return None
    plain_seconds = (seconds - sum(map(_seconds_for_drafts, steps))) / len(steps)
    num_tokens = sum(step.num_committed_tokens for step in steps)
    return round(num_tokens * plain_seconds / seconds, 3)


def _seconds_for_drafts(step: StepStats) -> float:
    """Return the part of a step in which the target waited for its draft."""
    drafting = step.draft_seconds + step.search_seconds
    return min(step.verify_idle_seconds, drafting + step.transport_seconds) if drafting else 0.0
