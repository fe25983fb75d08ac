"""Configuration: one small frozen model per role, composed, read from one YAML file.

Unknown keys are errors. Nothing here reads the environment or loads anything. The defaults of the
algorithm are the paper's constants (arXiv 2510.02358).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from diffuspec.core.errors import ConfigError
from diffuspec.core.params import MAX_DRAFT_TOKENS, MAX_TREE_NODES, SpeculationParams

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16", "float16"]


class Section(BaseModel):
    """Frozen; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TargetConfig(Section):
    """The verified model and its cache."""

    path: Path
    device: Device = "auto"
    dtype: DType = "auto"
    max_model_len: int | None = Field(None, ge=2)  # None: what the checkpoint was trained for
    max_sequences: int = Field(8, ge=1, le=1024)
    exact: bool = False  # run every step in one fixed shape, so that kernels never differ
    max_tree_nodes: int = Field(64, ge=1, le=MAX_TREE_NODES)  # sizes the exact shape


class DrafterConfig(Section):
    """The diffusion LM and how its logits become a lattice."""

    path: Path
    device: Device = "auto"
    dtype: DType = "auto"
    prefix_cache: bool = True  # exact for block-causal drafters, approximate for Dream
    refresh_every: int = Field(32, ge=1)  # committed tokens between refreshes of Dream's cache
    num_refinement_steps: int = Field(1, ge=1, le=64)  # S
    candidate_mass: float = Field(0.8, gt=0, le=1)  # tau of Eq. 7
    max_candidates: int = Field(15, ge=1, le=256)  # M_max of Eq. 7


class SearchConfig(Section):
    """The causal proxy and the beam over the lattice."""

    ngram: Path | None = None  # KenLM file over the target's token ids
    causal_lm: Path | None = None  # in its place, a model directory with the target's tokenizer
    beam_width: int = Field(3, ge=1, le=64)  # B

    @model_validator(mode="after")
    def _one_proxy(self) -> Self:
        if self.ngram is not None and self.causal_lm is not None:
            raise ValueError("ngram and causal_lm are both given; the search takes one proxy")
        return self


class DraftLengthConfig(Section):
    """ADL, Eqs. 9-11."""

    min_draft_tokens: int = Field(20, ge=1, le=MAX_DRAFT_TOKENS)  # k_min
    max_draft_tokens: int = Field(30, ge=1, le=MAX_DRAFT_TOKENS)  # k_max
    growth: int = Field(10, ge=0)  # delta
    smoothing: float = Field(0.5, gt=0, le=1)  # rho

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.min_draft_tokens, self.max_draft_tokens
        if low > high:
            raise ValueError(f"min_draft_tokens {low} is above max_draft_tokens {high}")
        return self


class CoordinatorConfig(Section):
    """Bounds of the loop."""

    max_waiting: int = Field(64, ge=0, le=100_000)
    prefill_chunk_tokens: int = Field(256, ge=1)  # prompt tokens of one request in one step
    max_draft_seconds: float = Field(60.0, gt=0)  # then decoding goes on without drafts
    max_verifier_outage_seconds: float = Field(300.0, ge=0)  # then the requests it holds up fail
    overlap: bool = False  # draft likely outcomes ahead: for roles on hardware of their own


class EngineConfig(Section):
    """Everything one process needs."""

    target: TargetConfig
    drafter: DrafterConfig | None = None
    search: SearchConfig = SearchConfig()
    draft_length: DraftLengthConfig = DraftLengthConfig()
    speculation: SpeculationParams = SpeculationParams()  # of requests that do not say
    coordinator: CoordinatorConfig = CoordinatorConfig()

    @model_validator(mode="after")
    def _fits_the_target(self) -> Self:
        nodes, limit = self.speculation.max_nodes, self.target.max_tree_nodes
        if nodes > limit:
            raise ValueError(
                f"speculation.max_nodes {nodes} is above target.max_tree_nodes {limit}"
            )
        return self


def load_config(path: Path) -> EngineConfig:
    """Read a YAML file. Raises ConfigError naming the key, the value and what would be right."""
    return parse_config(read_yaml(path))


def read_yaml(path: Path) -> dict[str, object]:
    """Read a YAML file that holds one mapping. Raises ConfigError."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read configuration {path}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"configuration {path} must be a mapping with named sections")
    return data


def parse_config(data: dict[str, object]) -> EngineConfig:
    """Validate plain data. Raises ConfigError."""
    try:
        return EngineConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error)) from error


def explain(error: ValidationError) -> str:
    """Say in one line which keys are wrong, what was found and what would be right."""
    lines = []
    for problem in error.errors(include_url=False):
        where = ".".join(str(part) for part in problem["loc"]) or "configuration"
        got = "" if problem["type"] == "missing" else f", got {problem['input']!r:.80}"
        lines.append(f"{where}: {problem['msg']}{got}")
    return "; ".join(lines)
