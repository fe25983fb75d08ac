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
    MAX_DRAFT_TOKENS,
    MAX_DRAFTER_NAME_CHARACTERS,
    MAX_TREE_NODES,
    SpeculationParams,
)
from diffuspec.core.validation import FilePath, FromMapping, Section

_DRAFTER_NAME = re.compile(rf"[a-z0-9][a-z0-9_.-]{{0,{MAX_DRAFTER_NAME_CHARACTERS - 1}}}")


class TargetConfig(Section):
    """The model whose output is reproduced, and its cache."""

    path: FilePath = Field(
        description="Directory of a causal LM in the layout of transformers, or a GGUF file."
    )
    chat_template: FilePath | None = Field(
        None,
        description="File with a chat template in Jinja, instead of the checkpoint's own.",
    )
    device: Device = Field("auto", description=DEVICE_HELP)
    dtype: DType = Field("auto", description=DTYPE_HELP)
    max_model_len: int | None = Field(
        None,
        ge=2,
        description="Maximum number of tokens of prompt and answer together; null: what the "
        "checkpoint was trained for.",
    )
    max_sequences: int = Field(
        8,
        ge=1,
        le=1024,
        description="Maximum number of requests verified concurrently.",
    )
    cache_memory: float | None = Field(
        None,
        gt=0,
        description="Size of the KV cache on each device: above 1 in bytes; up to 1 the share of "
        "a GPU's memory, or of a machine's free memory, that weights and cache take together; "
        "null: room for `max_sequences` requests of 2,048 tokens, and for one of `max_model_len`.",
    )
    exact: bool | None = Field(
        None,
        description="Make every token depend, to the last bit, only on the tokens before it, so "
        "that no draft and no other request can change the result of a near-tie; null: "
        "on where it costs little, which is in 16 bits, and in float32 on a CPU with compiled "
        "kernels.",
    )
    quantize_activations: bool = Field(
        False,
        description="Round activations to 8 bits, in groups of 32, where they are multiplied with "
        "quantised weights on a CPU, as llama.cpp and OpenVINO do: up to three times as "
        "fast, but no longer the exact arithmetic of the format.",
    )
    max_tree_nodes: int = Field(
        64,
        ge=1,
        le=MAX_TREE_NODES,
        description="Maximum number of draft tokens verified in a step, per request.",
    )


class SearchConfig(Section):
    """The path search over a lattice, and the causal proxy that it uses."""

    ngram: FilePath | None = Field(
        None, description="KenLM file over the target's token ids: the causal proxy."
    )
    causal_lm: FilePath | None = Field(
        None,
        description="Instead of `ngram`, the directory of a small causal LM with the target's "
        "tokenizer.",
    )
    beam_width: int = Field(
        3, ge=1, le=64, description="Paths kept at each position, B of the paper."
    )
    cache_weight: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Maximum weight of n-grams counted in prompt and answer, relative to the "
        "n-gram model or causal LM; 0: they are not counted.",
    )
    retrieval: bool = Field(
        False,
        description="In trees of the shape best_first, add to the lattice's candidates what "
        "followed the same words earlier in prompt and answer.",
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
        20, ge=1, le=MAX_DRAFT_TOKENS, description="Minimum length of a draft in tokens, k_min."
    )
    max_draft_tokens: int = Field(
        30, ge=1, le=MAX_DRAFT_TOKENS, description="Maximum length of a draft in tokens, k_max."
    )
    growth: int = Field(
        10,
        ge=0,
        description="Tokens by which drafts grow after fully accepted drafts, delta of Eq. 11.",
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
        description="Maximum number of waiting requests; further requests are refused as overload.",
    )
    prefill_chunk_tokens: int = Field(
        256,
        ge=1,
        le=2**31 - 1,  # the largest number in a message
        description="Maximum number of prompt tokens of a request that are processed in a step.",
    )
    max_prefill_seconds: float = Field(
        0.25,
        gt=0,
        description="Approximate maximum time to process a chunk of a prompt, in seconds, "
        "but never less than a step takes: on a slow processor chunks are "
        "smaller, down to 64 tokens, so that a long prompt does not delay other "
        "requests.",
    )
    max_draft_seconds: float = Field(
        60.0, gt=0, description="Seconds to wait for a draft before decoding continues without it."
    )
    max_verifier_outage_seconds: float = Field(
        300.0,
        ge=0,
        description="Seconds without a verifier after which waiting requests fail.",
    )
    first_token_price: float = Field(
        1.0,
        ge=0,
        le=1000,
        description="Cost of one second of waiting for a first token, in seconds of all running "
        "requests: with 0, drafts are made whenever they pay, however long prompts "
        "wait.",
    )
    profile_seconds: float = Field(
        3.0,
        ge=0,
        le=60,
        description="Maximum time spent measuring costs when an engine starts, in seconds; "
        "0: costs are learnt during decoding.",
    )
    overlap: bool = Field(
        False,
        description="Draft for likely outcomes while the target verifies: for roles on separate "
        "hardware.",
    )


class EngineConfig(Section):
    """The models of one deployment and how they work together."""

    target: TargetConfig = Field(description="The model whose output is reproduced.")
    drafter: DrafterConfig | None = Field(
        None, description="The drafter, a section that depends on its `kind`; null: plain decoding."
    )
    drafters: dict[str, DrafterConfig] = Field(
        {},
        description="Additional drafters by name: a request chooses one with speculation.drafter. "
        "The name of the drafter in the section drafter is its kind.",
    )
    search: SearchConfig = Field(
        SearchConfig(), description="How the path through the drafter's lattice is chosen."
    )
    draft_length: DraftLengthConfig = Field(
        DraftLengthConfig(), description="Limits and constants of the adaptive draft length."
    )
    speculation: Annotated[SpeculationParams, FromMapping()] = Field(
        SpeculationParams(), description="How to draft for requests that do not specify it."
    )
    coordinator: CoordinatorConfig = Field(
        CoordinatorConfig(), description="Limits of the coordinator."
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

    @model_validator(mode="after")
    def _names_of_drafters(self) -> Self:
        if self.drafters and self.drafter is None:
            raise ValueError("drafters needs a section drafter, for requests that choose none")
        for name in self.drafters:
            if not _DRAFTER_NAME.fullmatch(name):
                raise ValueError(
                    "drafters: a name must be of at most 64 lower-case letters, digits, '_', '.' "
                    f"and '-', got {name!r:.80}"
                )
        if self.drafter is not None and self.drafter.kind in self.drafters:
            raise ValueError(f"drafters.{self.drafter.kind}: the section drafter has this name")
        chosen, names = self.speculation.drafter, ""
        if self.drafter is not None:
            names = ", ".join(self.named_drafters)
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
