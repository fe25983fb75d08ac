"""Families of diffusion LMs: the architecture of their weights, and how they are run.

A family is an entry of `FAMILIES`. Its weights have the architecture of a causal LM in
transformers, whose code runs them. Directories made by `diffuspec drafter train`, and others with
`diffusion_attention` in config.json, describe themselves how they are run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from diffuspec.core.drafter_config import MAX_BLOCK_SIZE
from diffuspec.core.errors import ModelLoadError
from diffuspec.core.pages import PAGE_SIZE
from diffuspec.text.directory import read_json
from diffuspec.text.mask_token import read_mask_token_id

DiffusionAttention = Literal["full", "block_causal", "block_aligned"]


@dataclass(frozen=True, slots=True)
class DiffusionSettings:
    """How a causal LM's weights are run as a diffusion LM.

    - full: every row sees all others.
    - block_causal: the rows of known text see the rows before them; a draft is one block, whose
      rows see the text and each other.
    - block_aligned: blocks of block_size rows begin at multiples of it, in known text and draft
      alike. A row sees all of its own block and all earlier blocks.
    """

    mask_token_id: int
    attention: DiffusionAttention
    # a row predicts the token after its own; otherwise its own token, as in LLaDA
    is_shifted: bool = True
    block_size: int = 1  # 1 unless block_aligned

    @property
    def continues_text(self) -> bool:
        """Whether rows without masks predict the next token, as in a causal LM."""
        return self.attention == "block_causal" and self.is_shifted

    @property
    def has_exact_prefix(self) -> bool:
        """Whether text and drafts do not change the states of the known text before them."""
        return self.attention != "full"

    @property
    def has_exact_pages(self) -> bool:
        """Whether no later token changes the states in a whole page of known text."""
        return self.has_exact_prefix and PAGE_SIZE % self.block_size == 0

    def num_settled(self, num_tokens: int) -> int:
        """Number of the num_tokens known tokens that are in whole blocks: their states can be kept.

        If prefixes are exact, no later token changes them.
        """
        return num_tokens // self.block_size * self.block_size


@dataclass(frozen=True, slots=True)
class DiffusionFamily:
    """Published diffusion LMs of one kind. See CONTRIBUTING.md for how to add one."""

    name: str
    base: str  # transformers' model_type of the causal LM with the same layers
    attention: DiffusionAttention
    is_shifted: bool
    # possible texts of the mask token, if the tokenizer names none
    mask_tokens: tuple[str, ...] = ()
    mask_token_id: int | None = None  # default if no file in a directory names it
    block_key: str | None = None  # key of the block size in config.json
    block_size: int | None = None  # default if neither config.json nor the configuration sets it
    # whether a configured block size turns full attention into block_aligned
    may_have_blocks: bool = False
    renames: tuple[tuple[str, str], ...] = ()  # patterns in weight names, and their replacements
    restriction: str | None = None  # restriction in the licence of its weights


_QWEN3_MASK = 151669  # <|MASK|>, the first id after those of Qwen3's tokenizer
_ENCODER = ((r"^encoder\.", "model."), (r"^diffusion_head\.", "lm_head."))

FAMILIES: Mapping[str, DiffusionFamily] = MappingProxyType(
    {  # keys: model_type, or the config.json key in _MARKS
        "Dream": DiffusionFamily("Dream", "qwen2", "full", True, ("<|mask|>",), 151666),
        "Fast_dLLM_Qwen": DiffusionFamily(
            "Fast-dLLM v2", "qwen2", "block_aligned", True, ("|<MASK>|",), 151665, "bd_size", 32
        ),
        "sdar": DiffusionFamily(
            "SDAR", "qwen3", "block_aligned", False, ("<|MASK|>",), _QWEN3_MASK, "block_size", 4
        ),
        "a2d-qwen3": DiffusionFamily(
            "Tiny-A2D", "qwen3", "full", False, ("<|MASK|>", "<|mask|>"), may_have_blocks=True
        ),
        "a2d-qwen2": DiffusionFamily(
            "Tiny-A2D", "qwen2", "full", False, ("<|MASK|>", "<|mask|>"), may_have_blocks=True
        ),
        "a2d-llama": DiffusionFamily(
            "Tiny-A2D", "llama", "full", False, ("<|MASK|>", "<|mask|>"), may_have_blocks=True
        ),
        "dlm_paradigm": DiffusionFamily(
            "Efficient-DLM",
            "qwen3",
            "block_aligned",
            False,
            mask_token_id=151662,
            block_key="block_size",
            block_size=32,
            renames=_ENCODER,
            restriction="CC-BY-NC 4.0, which does not allow commercial use",
        ),
    }
)

REFUSED: Mapping[str, str] = MappingProxyType(
    {  # the same keys; the values are reasons
        "sdar_moe": "SDAR's mixture of experts has layers of its own that are not supported; SDAR "
        "1.7B, 4B and 8B are",
        "wedlm": "WeDLM moves known tokens before its masks, which is not supported, and the id of "
        "its mask is not published",
        "text_mask_token_id": "SDLM has blocks of its own behind a causal prefix, and it is not "
        "published whether its rows predict their own tokens",
    }
)

# UNO is trained with SDAR's code, and its directories can have SDAR's model type.
_UNO = (
    "its weights are the autoregressive model of UNO, and the part that drafts is a LoRA adapter "
    "for rows of random tokens, which is not supported"
)

# Families that share another family's model_type: a config.json key that only they have.
_MARKS = {"qwen3": "dlm_paradigm", "qwen2": "text_mask_token_id"}


def _key_of(config: Mapping[str, Any]) -> str:
    mark = _MARKS.get(config["model_type"])
    has_mark = mark is not None and config.get(mark) is not None
    return mark if mark is not None and has_mark else str(config["model_type"])


def find_family(config: Mapping[str, Any]) -> DiffusionFamily | None:
    """Return the family of a config.json; None if the table has none."""
    return FAMILIES.get(_key_of(config))


def why_refused(path: Path, config: Mapping[str, Any]) -> str | None:
    """Return why a known diffusion LM with this config.json cannot draft."""
    has_adapter = (path / "adapter" / "adapter_config.json").is_file()
    if find_family(config) is not None and (has_adapter or config.get("noise") == "uniform"):
        return _UNO
    return REFUSED.get(_key_of(config))


def find_warnings(family: DiffusionFamily | None, settings: DiffusionSettings) -> Iterator[str]:
    """Yield warnings for users of a family's drafter, to show when it is loaded."""
    if family is None:
        return
    if family.restriction is not None:
        yield f"{family.name} is under {family.restriction}"
    if family.may_have_blocks and settings.attention == "full":
        yield (
            f"the files of {family.name} do not say whether it was trained with blocks; it drafts "
            "without, which is right for mdlm. For bd3lm give drafter.block_size "
            "(--drafter-block-size): 32 for the published one"
        )


def read_settings(
    path: Path, config: Mapping[str, Any], block_size: int | None = None
) -> DiffusionSettings:
    """Return how to run a directory with this config.json as a diffusion LM.

    block_size: the configured one, which takes precedence over the directory's. Raises
    ModelLoadError if it is not a diffusion LM, or a setting is missing or wrong.
    """
    if (reason := why_refused(path, config)) is not None:
        raise ModelLoadError(f"{path} cannot draft: {reason}")
    mask_token_id = _read_mask_token_id(path, config, find_family(config))
    family = find_family(config) or _own_family(path, config)
    attention = family.attention
    if family.may_have_blocks and block_size is not None:
        attention = "block_aligned"
    if attention == "block_aligned":
        size = _read_block_size(path, config, family, block_size)
        return DiffusionSettings(mask_token_id, attention, family.is_shifted, size)
    if block_size is not None:
        raise ModelLoadError(
            f"{path} has no blocks at multiples of a size: leave out drafter.block_size "
            f"{block_size}"
        )
    return DiffusionSettings(mask_token_id, attention, family.is_shifted)


def _own_family(path: Path, config: Mapping[str, Any]) -> DiffusionFamily:
    """Return the family described by our keys in a config.json. Raises ModelLoadError."""
    base, attention = str(config["model_type"]), _read_attention(path, config)
    is_shifted = config.get("diffusion_shift", True)
    if not isinstance(is_shifted, bool):
        raise ModelLoadError(f"{path}: diffusion_shift must be true or false, got {is_shifted!r}")
    return DiffusionFamily(base, base, attention, is_shifted, block_key="diffusion_block_size")


def _read_block_size(
    path: Path, config: Mapping[str, Any], family: DiffusionFamily, configured: int | None
) -> int:
    key = family.block_key
    size = configured
    if size is None and key is not None:
        size = config.get(key)
    if size is None:
        size = family.block_size
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MAX_BLOCK_SIZE:
        raise ModelLoadError(
            f"{path}: {key or 'block_size'} must be from 1 to {MAX_BLOCK_SIZE}, got {size!r}"
        )
    return size


def _read_attention(path: Path, config: Mapping[str, Any]) -> DiffusionAttention:
    attention = config.get("diffusion_attention")
    for known in get_args(DiffusionAttention):
        if attention == known:
            found: DiffusionAttention = known
            return found
    names = ", ".join(map(repr, get_args(DiffusionAttention)))
    raise ModelLoadError(
        f"{path}: diffusion_attention in config.json must be among {names}, got {attention!r}"
    )


def _read_mask_token_id(
    path: Path, config: Mapping[str, Any], family: DiffusionFamily | None
) -> int:
    """Return the first mask id in config.json, generation_config.json, tokenizer and the table."""
    name = "generation_config.json"
    generation = read_json(path, name) if (path / name).is_file() else {}
    for found in (config.get("mask_token_id"), generation.get("mask_token_id")):
        if found is not None:
            if not isinstance(found, int) or isinstance(found, bool):
                raise ModelLoadError(f"{path}: mask_token_id must be a token id, got {found!r}")
            return found
    own = read_mask_token_id(path, family.mask_tokens if family else ())
    if own is None and family is not None:
        own = family.mask_token_id
    if own is None:
        raise ModelLoadError(
            f"{path} is not a diffusion LM: a drafter must have a mask_token_id in config.json or "
            "generation_config.json, or a mask_token in its tokenizer"
        )
    return own
