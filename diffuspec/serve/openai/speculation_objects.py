"""The objects that tell clients how an answer was drafted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict  # pydantic rejects typing's before Python 3.12

from diffuspec.core.types import PreDraftResult


class SpeculationUsage(TypedDict):
    """How the answers were drafted."""

    steps: int
    acceptance_length: Annotated[float, Field(description="Mean number of tokens per step.")]
    drafts: int
    draft_tokens: int
    accepted_tokens: Annotated[int, Field(description="Number of accepted draft tokens.")]
    acceptance_by_position: Annotated[
        list[float], Field(description="Fraction of drafts accepted at each position.")
    ]
    pre_draft_hit_rate: Annotated[
        float | None, Field(description="null: pre-drafting was not tried.")
    ]
    fallback_steps: Annotated[
        int, Field(description="Number of steps that went without a draft that was due.")
    ]
    estimated_speedup: Annotated[
        float | None, Field(description="Speed-up over plain decoding; null: only one step.")
    ]


class StepToken(TypedDict):
    id: int
    text: str


class StepTree(TypedDict):
    """The verified draft tree; the parent -1 is the last token before the step."""

    token_ids: Sequence[int]
    texts: list[str]
    parents: Sequence[int]
    probabilities: list[float]
    accepted: Annotated[
        Sequence[int], Field(description="Indices of the accepted nodes in the tree.")
    ]


class StepSeconds(TypedDict):
    draft: float
    search: float
    verify: float
    transport: float
    step: float


class StepReport(TypedDict):
    """The draft and cost of a step, with speculation.report_drafts."""

    tokens: list[StepToken]
    num_accepted_tokens: int
    num_draft_tokens: int
    tree: Annotated[StepTree | None, Field(description="null: the step had no draft.")]
    seconds: StepSeconds
    pre_draft: PreDraftResult | None
    fallback: Annotated[str | None, Field(description="Why a draft that was due is missing.")]
