"""Configuration of a draft server: its drafter, the tokenizer, and its limits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from diffuspec.core.config import SearchConfig
from diffuspec.core.drafter_config import DrafterConfig
from diffuspec.core.params import MAX_DRAFT_TOKENS
from diffuspec.core.validation import FilePath, Section


class DraftServerConfig(Section):
    """One process with one drafter, for external engines."""

    drafter: DrafterConfig = Field(
        description="The drafter, of a kind that drafts from tokens alone: diffuspec, sps, pld or "
        "samd."
    )
    tokenizer: FilePath = Field(
        description="Directory with the tokenizer of the engines' model: the model's own "
        "directory, or one with its tokenizer.json and its "
        "generation_config.json or config.json."
    )
    search: SearchConfig = Field(
        SearchConfig(), description="How the path through the drafter's lattice is chosen."
    )
    drafter_weight: Annotated[float, Field(ge=0, le=1)] | Literal["adaptive"] = Field(
        0.5,
        description="Weight of the drafter (1) against the causal proxy (0) in the path search, "
        "lambda of Eq. 8; adaptive favours whichever was right recently.",
    )
    max_model_len: int = Field(
        4096,
        ge=2,
        description="Maximum number of tokens of a request; longer requests continue without "
        "drafts. Determines the size of the drafter's cache.",
    )
    max_requests: int = Field(
        32,
        ge=1,
        le=1024,
        description="Maximum number of requests, of all engines together, that the drafter "
        "holds at a time; with more, prompts are processed again. Determines the "
        "size of the drafter's cache.",
    )
    num_draft_tokens: int | None = Field(
        None,
        ge=1,
        le=MAX_DRAFT_TOKENS,
        description="Fixed length of every draft, made while its engine waits, only for "
        "measurements and tests; null: the length that pays, which may be 0.",
    )
    max_engines: int = Field(16, ge=1, le=256, description="Maximum number of connected engines.")
    max_held_tokens: int = Field(
        2**22,
        ge=4096,
        description="Maximum number of tokens held for the requests of all engines together; each "
        "request counts as 1,024 tokens more. Beyond it, those engines that hold the most go on "
        "without drafts for some of their requests.",
    )
    max_draft_seconds: float = Field(
        10.0, gt=0, description="Seconds after which a call of the drafter fails."
    )
    profile_seconds: float = Field(
        2.0,
        ge=0,
        le=60,
        description="Maximum time spent measuring the drafter when the server starts, in seconds; "
        "0: costs are learnt during drafting.",
    )
    tenants: dict[str, float] = Field(
        {},
        description="Relative shares of the drafter's time when there is not enough for all, "
        "by the tenant that an engine names. Tenants that are not listed have a "
        "share of 1.",
    )

    @field_validator("drafter", mode="before")
    @classmethod
    def _diffuspec_unless_named(cls, given: object) -> object:
        return {"kind": "diffuspec", **given} if isinstance(given, dict) else given

    @field_validator("tenants")
    @classmethod
    def _positive(cls, shares: dict[str, float]) -> dict[str, float]:
        for name, share in shares.items():
            if not share > 0:
                raise ValueError(f"the share of {name!r:.80} must be above 0, got {share}")
        return shares
