"""Configuration of an engine: one small frozen section per role, composed, read from one YAML file.

Nothing here reads the environment or loads anything. The defaults of the algorithm are the paper's
constants (arXiv 2510.02358).
"""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from diffuspec.core.devices import DEVICE_HELP, DTYPE_HELP, Device, DType
from diffuspec.core.drafter_config import DrafterConfig
from diffuspec.core.params import (
    AUTO_DRAFTER,
    MAX_DRAFT_TOKENS,
    MAX_DRAFTER_NAME_CHARACTERS,
    MAX_TREE_NODES,
    SpeculationParams,
)
from diffuspec.core.validation import FilePath, FromMapping, Section

_DRAFTER_NAME = re.compile(rf"[a-z0-9][a-z0-9_.-]{{0,{MAX_DRAFTER_NAME_CHARACTERS - 1}}}")


class TargetConfig(Section):
    """The model whose output is reproduced, and its cache."""

    path: FilePath = Field(description="Directory of a causal LM in transformers' layout.")
    device: Device = Field("auto", description=DEVICE_HELP)
    dtype: DType = Field("auto", description=DTYPE_HELP)
    max_model_len: int | None = Field(
        None,
        ge=2,
        description="Most tokens of prompt and answer together; null: what the checkpoint was "
        "trained for.",
    )
    max_sequences: int = Field(
        8, ge=1, le=1024, description="Requests verified at the same time; sizes the KV cache."
    )
    prefix_slots: int = Field(
        0,
        ge=0,
        le=4096,
        description="Further slots of the KV cache, in which prefixes of this many requests more "
        "are kept after their end, for conversations that go on.",
    )
    exact: bool | None = Field(
        None,
        description="Compute every token from the tokens before it alone, to the last bit, so that "
        "no draft and no other request can turn a near-tie; null: where that costs little, in 16 "
        "bits, and in float32 on x86-64 processors with AVX2, or AVX-512 and VNNI.",
    )
    quantize_activations: bool = Field(
        False,
        description="Round activations to 8 bits, 32 at a time, where they are multiplied with "
        "quantised weights on a CPU, as llama.cpp and OpenVINO do: up to three times as fast, and "
        "no longer the format's own arithmetic to the last bit.",
    )
    max_tree_nodes: int = Field(
        64,
        ge=1,
        le=MAX_TREE_NODES,
        description="Most drafted tokens verified in one step of one request.",
    )


class SearchConfig(Section):
    """The path search over a lattice, and the causal proxy that it uses."""

    ngram: FilePath | None = Field(
        None, description="KenLM file over the target's token ids, the causal proxy."
    )
    causal_lm: FilePath | None = Field(
        None,
        description="In its place, the directory of a small causal LM with the target's tokenizer.",
    )
    beam_width: int = Field(
        3, ge=1, le=64, description="Paths kept at each position, B of the paper."
    )
    cache_weight: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Most weight of the n-grams of prompt and answer beside the n-gram model's or "
        "causal LM's; 0: they are not counted.",
    )
    retrieval: bool = Field(
        False,
        description="Put what followed the same words before, in prompt and answer, beside the "
        "lattice's candidates, in trees of the shape best_first.",
    )

    @model_validator(mode="after")
    def _one_proxy(self) -> Self:
        if self.ngram is not None and self.causal_lm is not None:
            raise ValueError("ngram and causal_lm are both given; the search takes one proxy")
        if self.cache_weight and self.ngram is None and self.causal_lm is None:
            raise ValueError("cache_weight needs ngram or causal_lm to be mixed with")
        return self


class DraftLengthConfig(Section):
    """Adaptive draft length (ADL, Eqs. 9-11): the policy `paper`, and the limit of `cost_aware`."""

    min_draft_tokens: int = Field(
        20, ge=1, le=MAX_DRAFT_TOKENS, description="Shortest draft in tokens, k_min."
    )
    max_draft_tokens: int = Field(
        30, ge=1, le=MAX_DRAFT_TOKENS, description="Longest draft in tokens, k_max."
    )
    growth: int = Field(
        10, ge=0, description="Tokens added after drafts that were accepted whole, delta of Eq. 11."
    )
    smoothing: float = Field(
        0.5, gt=0, le=1, description="Weight of the last step in the averages, rho of Eqs. 9-10."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.min_draft_tokens, self.max_draft_tokens
        if low > high:
            raise ValueError(f"min_draft_tokens {low} is above max_draft_tokens {high}")
        return self


class CoordinatorConfig(Section):
    """Limits of the loop."""

    max_waiting: int = Field(
        64,
        ge=0,
        le=100_000,
        description="Requests that may wait for a place; one more is refused as overload.",
    )
    prefill_chunk_tokens: int = Field(
        256,
        ge=1,
        le=2**31 - 1,  # the largest number in a message
        description="Most prompt tokens of one request that one step reads.",
    )
    max_prefill_seconds: float = Field(
        0.25,
        gt=0,
        description="Seconds that reading a part of a prompt takes at most, about, and at least as "
        "many as a step: on a slow processor parts are smaller, down to 64 tokens, so that a long "
        "prompt does not hold up other requests.",
    )
    max_draft_seconds: float = Field(
        60.0, gt=0, description="Seconds to wait for a draft before decoding goes on without it."
    )
    max_verifier_outage_seconds: float = Field(
        300.0,
        ge=0,
        description="Seconds without a verifier after which the requests that wait for it fail.",
    )
    first_token_price: float = Field(
        1.0,
        ge=0,
        le=1000,
        description="Price of a second for which a first token is awaited, in seconds of all "
        "running requests: with 0, drafts are made whenever they pay, however long prompts wait.",
    )
    profile_seconds: float = Field(
        1.0,
        ge=0,
        le=60,
        description="Most seconds of calls that measure costs when an engine starts; 0: costs are "
        "learnt while it decodes.",
    )
    overlap: bool = Field(
        False,
        description="Draft for likely outcomes while the target verifies: for roles on hardware "
        "of their own.",
    )


class EngineConfig(Section):
    """The models of one deployment and how they work together."""

    target: TargetConfig = Field(description="The model whose output is reproduced.")
    drafter: DrafterConfig | None = Field(
        None, description="What drafts, a section of the kind it names; null: plain decoding."
    )
    drafters: dict[str, DrafterConfig] = Field(
        {},
        description="More drafters by name, beside that of the section drafter: requests choose by "
        "`drafter`, of speculation. The name of the section drafter is its kind.",
    )
    search: SearchConfig = Field(
        SearchConfig(), description="How a path through the drafter's lattice is found."
    )
    draft_length: DraftLengthConfig = Field(
        DraftLengthConfig(), description="Bounds and constants of the adaptive draft length."
    )
    speculation: Annotated[SpeculationParams, FromMapping()] = Field(
        SpeculationParams(), description="How requests are drafted that do not say."
    )
    coordinator: CoordinatorConfig = Field(
        CoordinatorConfig(), description="Bounds of the coordinator."
    )
    data_parallel_size: int = Field(
        1,
        ge=1,
        le=64,
        description="Engines, each with models of its own in a process of its own, among which "
        "`diffuspec serve` spreads requests; 1: one engine in the process that serves.",
    )

    @field_validator("drafter", mode="before")
    @classmethod
    def _diffuspec_unless_named(cls, given: object) -> object:
        return {"kind": "diffuspec", **given} if isinstance(given, dict) else given

    @field_validator("drafters", mode="before")
    @classmethod
    def _all_diffuspec_unless_named(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        return {name: cls._diffuspec_unless_named(one) for name, one in given.items()}

    @field_validator("speculation", mode="before")
    @classmethod
    def _off_unquoted(cls, given: object) -> object:
        if isinstance(given, dict) and given.get("policy") is False:  # what YAML 1.1 makes of off
            return {**given, "policy": "off"}
        return given

    @model_validator(mode="after")
    def _names_of_drafters(self) -> Self:
        if self.drafters and self.drafter is None:
            raise ValueError("drafters needs a section drafter, for requests that choose none")
        for name in self.drafters:
            if name == AUTO_DRAFTER:
                raise ValueError(f"drafters: the name {name} is reserved for choosing among them")
            if not _DRAFTER_NAME.fullmatch(name):
                raise ValueError(
                    "drafters: a name must be of at most 64 lower-case letters, digits, '_', '.' "
                    f"and '-', got {name!r:.80}"
                )
        if self.drafter is not None and self.drafter.kind in self.drafters:
            raise ValueError(f"drafters.{self.drafter.kind}: the section drafter has this name")
        chosen, names = self.speculation.drafter, ""
        if self.drafter is not None:
            names = ", ".join([*self.named_drafters, AUTO_DRAFTER])
        if chosen is not None and chosen not in names.split(", "):
            names = names or "none"
            raise ValueError(f"speculation.drafter must be one of {names}, got {chosen!r}")
        return self

    @property
    def named_drafters(self) -> dict[str, DrafterConfig]:
        """The drafters by the names that requests use, that of the section `drafter` first."""
        return {} if self.drafter is None else {self.drafter.kind: self.drafter, **self.drafters}

    def section_of(self, name: str) -> str:
        """Return the key of a drafter's section."""
        return f"drafters.{name}" if name in self.drafters else "drafter"

    @model_validator(mode="after")
    def _fits_the_target(self) -> Self:
        nodes, limit = self.speculation.max_nodes, self.target.max_tree_nodes
        if nodes > limit:
            raise ValueError(
                f"speculation.max_nodes {nodes} is above target.max_tree_nodes {limit}"
            )
        return self
