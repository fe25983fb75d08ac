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
        description="What drafts: diffuspec, sps, pld or samd, which draft from tokens alone."
    )
    tokenizer: FilePath = Field(
        description="Directory with the tokenizer of the engines' model: its own, or one with its "
        "tokenizer.json, and generation_config.json or config.json."
    )
    search: SearchConfig = Field(
        SearchConfig(), description="How a path through the drafter's lattice is found."
    )
    drafter_weight: Annotated[float, Field(ge=0, le=1)] | Literal["adaptive"] = Field(
        0.5,
        description="Weight of the drafter (1) against the causal proxy (0) in the path search, "
        "lambda of Eq. 8; adaptive follows the side that was right lately.",
    )
    max_model_len: int = Field(
        4096,
        ge=2,
        description="Most tokens of a request that is drafted for; longer ones go on without "
        "drafts. Sizes the drafter's cache.",
    )
    max_requests: int = Field(
        32,
        ge=1,
        le=1024,
        description="Requests that the drafter holds at the same time, of all engines together; "
        "with more, prompts are read again. Sizes the drafter's cache.",
    )
    num_draft_tokens: int | None = Field(
        None,
        ge=1,
        le=MAX_DRAFT_TOKENS,
        description="Length of every draft, made while its engine waits, for measurements and "
        "tests alone; null: by what pays, which may be none.",
    )
    max_engines: int = Field(
        16, ge=1, le=256, description="Engines that may be connected at the same time."
    )
    max_draft_seconds: float = Field(
        10.0, gt=0, description="Seconds after which a call of the drafter has failed."
    )
    profile_seconds: float = Field(
        2.0,
        ge=0,
        le=60,
        description="Most seconds of calls that measure the drafter when the server starts; 0: "
        "costs are learnt while it drafts.",
    )
    tenants: dict[str, float] = Field(
        {},
        description="Shares of the drafter's time, by the tenant that an engine names; where there "
        "is not enough for all. Those not named have a share of 1.",
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
