"""Engines over random checkpoints, and what tests ask them."""

from __future__ import annotations

from pathlib import Path

from diffuspec.core.config import EngineConfig
from diffuspec.core.params import SamplingParams
from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config
from diffuspec.pairs.tiny import TARGET, tiny_config
from tests.support.checkpoints import byte_tokenizer

PROMPT = "The quick brown fox"
SHORT = SamplingParams(max_tokens=12, ignore_eos=True)
FOREVER = SamplingParams(max_tokens=400, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "hi"}]


def short_tiny_config(**overrides: object) -> EngineConfig:
    """Return the embedded pair's configuration, with a cache of 100 MB to clear, not of 400."""
    return tiny_config(target={"path": TARGET, "max_model_len": 512}, **overrides)


def make_engine(target: Path, drafter: Path | None = None, **sections: object) -> Engine:
    drafting = {} if drafter is None else {"drafter": {"path": drafter, "device": "cpu"}}
    settings = {"path": target, "device": "cpu", "max_sequences": 3}
    return Engine.from_config(parse_config({"target": settings, **drafting, **sections}))


def ids(text: str) -> list[int]:
    return byte_tokenizer().encode(text, add_special_tokens=False).ids
