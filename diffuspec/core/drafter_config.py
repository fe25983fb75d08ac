"""Configuration of the drafters: one section for each kind, distinguished by its key `kind`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from diffuspec.core.devices import DEVICE_HELP, DTYPE_HELP, Device, DType
from diffuspec.core.params import MAX_DRAFT_TOKENS
from diffuspec.core.validation import FilePath, Section

MAX_BLOCK_SIZE = 256  # tokens in a block of a diffusion LM
MIN_CONTEXT_TOKENS = 16  # prompt tokens that a drafter reads
REFRESH_TOKENS = 512  # at the end of an approximate prefix, computed again with drafts

_KIND = "Which drafter this section configures."
_CONTEXT_HELP = (
    "Maximum number of prompt tokens that the drafter reads: a quarter of them from the beginning, "
    "the others from the end. Drafts depend little on the middle of a long prompt, but reading it "
    "takes as long as many steps of the target. null: as its directory states "
    "(`draft_context_tokens` in config.json), otherwise the whole prompt."
)


class _LatticeSection(Section):
    """The size of the lattice, for drafters that make one."""

    candidate_mass: float = Field(
        0.8,
        gt=0,
        le=1,
        description="Total probability of the candidates of a position, tau of Eq. 7.",
    )
    max_candidates: int = Field(
        15,
        ge=1,
        le=256,
        description="Maximum number of candidates kept at a position, M_max of Eq. 7.",
    )


class DiffuSpecConfig(_LatticeSection):
    """A diffusion LM whose lattice is searched with a causal proxy (section search)."""

    kind: Literal["diffuspec"] = Field("diffuspec", description=_KIND)
    path: FilePath = Field(description="Directory of a diffusion LM with the target's tokenizer.")
    device: Device = Field("auto", description=DEVICE_HELP)
    dtype: DType = Field("auto", description=DTYPE_HELP)
    prefix_cache: bool = Field(
        True,
        description="Cache the states of the prefix between drafts: exact for drafters with "
        "block-wise attention to the text, approximate for Dream and others with full "
        "attention.",
    )
    refresh_every: int = Field(
        32,
        ge=1,
        description="Number of committed tokens after which rows of an approximate cached prefix, "
        "such as Dream's, are stale and computed again.",
    )
    refresh_tokens: int = Field(
        REFRESH_TOKENS,
        ge=1,
        description="Number of tokens at the end of a prefix whose stale rows a draft computes "
        "again. The rows before them stay, unless renew_when_idle is set.",
    )
    renew_when_idle: bool = Field(
        False,
        description="Compute stale rows before the last refresh_tokens again while the drafter has "
        "nothing else to do: for a drafter with full attention on a device of its own.",
    )
    context_tokens: int | None = Field(None, ge=MIN_CONTEXT_TOKENS, description=_CONTEXT_HELP)
    num_refinement_steps: int = Field(
        1,
        ge=1,
        le=64,
        description="Denoising steps of a draft, S of the paper. Each fixes the most confident "
        "tokens, block after block where the drafter was trained in aligned blocks.",
    )
    block_size: int | None = Field(
        None,
        ge=1,
        le=MAX_BLOCK_SIZE,
        description="Length of the blocks that the drafter was trained with, if its directory does "
        "not state it, or states it wrongly, as with SDAR and Tiny-A2D bd3lm.",
    )


class PromptLookupConfig(Section):
    """Prompt lookup (PLD): what followed the last tokens earlier in prompt and answer. No model."""

    kind: Literal["pld"] = Field("pld", description=_KIND)
    max_ngram_tokens: int = Field(
        3,
        ge=1,
        le=16,
        description="Maximum number of tokens at the end of the prefix to look up; fewer are tried "
        "if they are not found.",
    )
    num_draft_tokens: int = Field(
        10, ge=1, le=MAX_DRAFT_TOKENS, description="Maximum number of tokens to draft in a step."
    )


class _TextsSection(Section):
    """Texts in which drafters look for matches."""

    texts: FilePath | None = Field(
        None,
        description="Earlier answers or other texts to draft from as well: a text file, or a "
        ".jsonl file with token_ids, text or messages on each line.",
    )
    max_text_tokens: int = Field(
        200_000,
        ge=1,
        le=10_000_000,
        description="Maximum number of tokens to read from the texts; each takes about 0.5 KB of "
        "memory.",
    )


class SuffixAutomatonConfig(_TextsSection):
    """SAM decoding (SAMD): what followed the longest match in the text, or in others. No model."""

    kind: Literal["samd"] = Field("samd", description=_KIND)
    num_draft_tokens: int = Field(
        40, ge=1, le=MAX_DRAFT_TOKENS, description="Maximum number of tokens to draft in a step."
    )
    draft_tokens_per_match: float = Field(
        4.0,
        ge=0,
        le=MAX_DRAFT_TOKENS,
        description="Number of tokens to draft for each matched token.",
    )


class SamdRecyclingConfig(_TextsSection):
    """SAM decoding after a long match, and Token Recycling elsewhere. No model."""

    kind: Literal["samd_recycling"] = Field("samd_recycling", description=_KIND)
    min_match_tokens: int = Field(
        5,
        ge=1,
        le=64,
        description="Number of tokens that must match before a continuation is drafted.",
    )
    num_draft_tokens: int = Field(
        40, ge=1, le=MAX_DRAFT_TOKENS, description="Number of tokens to draft after a match."
    )


class TokenRecyclingConfig(Section):
    """Token Recycling: drafts the target's likeliest tokens after each token again. No model."""

    kind: Literal["token_recycling"] = Field("token_recycling", description=_KIND)


class AutoregressiveConfig(Section):
    """SPS: a smaller causal LM with the target's vocabulary, one forward per drafted token."""

    kind: Literal["sps"] = Field("sps", description=_KIND)
    path: FilePath = Field(
        description="Directory of a causal LM (or a GGUF file), or of a block-causal diffusion LM, "
        "with the target's tokenizer."
    )
    device: Device = Field("auto", description=DEVICE_HELP)
    dtype: DType = Field("auto", description=DTYPE_HELP)
    num_draft_tokens: int = Field(
        20, ge=1, le=MAX_DRAFT_TOKENS, description="Maximum number of tokens to draft in a step."
    )
    context_tokens: int | None = Field(None, ge=MIN_CONTEXT_TOKENS, description=_CONTEXT_HELP)
    min_confidence: float = Field(
        0.4,
        ge=0,
        le=1,
        description="A draft ends after the first token with a lower probability than this; 0: "
        "never.",
    )


class LookaheadConfig(Section):
    """Lookahead decoding: n-grams that the target finds by Jacobi iteration beside the answer."""

    kind: Literal["lookahead"] = Field("lookahead", description=_KIND)
    num_columns: int = Field(
        7, ge=1, le=32, description="Number of positions after the last token that are guessed, W."
    )
    ngram_tokens: int = Field(5, ge=3, le=16, description="Length of an n-gram, N.")
    num_guesses: int = Field(
        7,
        ge=1,
        le=64,
        description="Maximum number of n-grams kept per token, and verified at a time, G.",
    )


_HEAD_PATH = "Directory of the heads' checkpoint: config.json and weights trained for the target."


class MedusaConfig(Section):
    """Medusa: heads on the target's last hidden state, one for each of the next tokens."""

    kind: Literal["medusa"] = Field("medusa", description=_KIND)
    path: FilePath = Field(description=_HEAD_PATH)


class HydraConfig(Section):
    """Hydra: Medusa's heads, each of which sees the tokens drafted before its own."""

    kind: Literal["hydra"] = Field("hydra", description=_KIND)
    path: FilePath = Field(description=_HEAD_PATH)


class EagleConfig(Section):
    """EAGLE: one layer that extrapolates the target's hidden states, and a static draft tree."""

    kind: Literal["eagle"] = Field("eagle", description=_KIND)
    path: FilePath = Field(description=_HEAD_PATH)


class Eagle2Config(Section):
    """EAGLE-2: the head of EAGLE, and a draft tree that depends on its confidence."""

    kind: Literal["eagle2"] = Field("eagle2", description=_KIND)
    path: FilePath = Field(description=_HEAD_PATH)


class Eagle3Config(Section):
    """EAGLE-3: one layer on the target's hidden states in three places, and EAGLE-2's tree."""

    kind: Literal["eagle3"] = Field("eagle3", description=_KIND)
    path: FilePath = Field(description=_HEAD_PATH)


class DFlashConfig(_LatticeSection):
    """DFlash: a block-diffusion model that reads the target's hidden states, and a path search."""

    kind: Literal["dflash"] = Field("dflash", description=_KIND)
    path: FilePath = Field(description=_HEAD_PATH)


class DFlashRemoteConfig(_LatticeSection):
    """DFlash in its own process, to which the target's hidden states are sent."""

    kind: Literal["dflash_remote"] = Field("dflash_remote", description=_KIND)
    path: FilePath = Field(description=_HEAD_PATH)
    device: Device = Field("auto", description=DEVICE_HELP)
    dtype: DType = Field("auto", description=DTYPE_HELP)


DrafterConfig: TypeAlias = Annotated[
    DiffuSpecConfig
    | AutoregressiveConfig
    | PromptLookupConfig
    | SuffixAutomatonConfig
    | SamdRecyclingConfig
    | TokenRecyclingConfig
    | LookaheadConfig
    | MedusaConfig
    | HydraConfig
    | EagleConfig
    | Eagle2Config
    | Eagle3Config
    | DFlashConfig
    | DFlashRemoteConfig,
    Field(discriminator="kind"),
]
