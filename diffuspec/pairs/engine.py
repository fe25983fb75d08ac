"""`diffuspec.Engine`: an engine as a program opens it, from the names of models."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Never, TypeAlias

from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.params import SamplingParams
from diffuspec.core.vllm_words import ALIASES, HINTS
from diffuspec.drafters import KINDS
from diffuspec.engine import engine
from diffuspec.pairs import DEFAULT_PAIR, find_pair, parse_config
from diffuspec.telemetry.trace import Tracer

_NONE = "none"  # plain decoding

Drafter: TypeAlias = str | Path | Mapping[str, object]


class Engine(engine.Engine):
    """Answer prompts with a target's own tokens, several times faster, by drafts.

        from diffuspec import Engine, SamplingParams

        with Engine(pair="tiny") as engine:
            print(engine.chat([{"role": "user", "content": "What is the capital of France?"}]).text)
            for answer in engine.generate(["Once upon a time"], SamplingParams(max_tokens=64)):
                print(answer.text)

    `Engine(target="models/Qwen3-8B", drafter="pld")` opens models of your own, and
    `Engine.from_config(load_config(Path("engine.yaml")))` a configuration. Close an engine by
    `with`, `async with` or `close`.
    """

    def __init__(
        self,
        target: str | Path | None = None,
        drafter: Drafter | None = None,
        *,
        pair: str | None = None,
        ngram: str | Path | None = None,
        dtype: str = "auto",
        device: str = "auto",
        max_model_len: int | None = None,
        max_sequences: int = 8,
        tracer: Tracer | None = None,
        **wrong: Never,
    ) -> None:
        """Load a target (a directory, or a GGUF file) and a drafter, or a pair by its name.

        drafter: a directory of a diffusion LM; a kind of drafter such as "pld"; a section of a
        configuration, {"kind": "medusa", "path": DIR}; or "none". By default the pair's, and none
        with a target. Raises ConfigError, ModelLoadError, NgramError.
        """
        if wrong:
            raise ConfigError(_explain(next(iter(wrong))))
        limits = {"max_model_len": max_model_len, "max_sequences": max_sequences}
        config = _compose(pair, target, drafter, ngram)
        config["target"] |= {"dtype": dtype, "device": device, **limits}
        checked = parse_config(config)
        parts = engine.load_parts(checked)
        super().__init__(checked, *parts, tracer=tracer)


def _compose(
    pair: str | None, target: object, drafter: object, ngram: str | Path | None
) -> dict[str, Any]:
    """Return the sections of a configuration. Raises ConfigError."""
    if isinstance(target, EngineConfig):
        raise ConfigError("a configuration is opened by Engine.from_config(config)")
    for name, value, kinds in (
        ("target", target, (str, Path)),
        ("drafter", drafter, (str, Path, Mapping)),
    ):
        if value is not None and not isinstance(value, kinds):
            raise ConfigError(f"{name} must be the path of a model, got {type(value).__name__}")
    if pair is not None and target is not None:
        raise ConfigError("pair and target exclude each other: a pair has a target")
    named = None if target is not None else find_pair(pair or DEFAULT_PAIR, "pair")
    if named is None:
        config: dict[str, Any] = {"target": {"path": target}, "search": {}}
    else:
        config = named.load_config().model_dump()
    if drafter is not None:
        config["drafters"] = {}
        config["drafter"] = _section(drafter, {} if named is None else named.other_drafters())
    if ngram is not None:
        config["search"]["ngram"] = ngram
    return config


def _section(drafter: object, of_pair: Mapping[str, dict[str, object]]) -> object:
    """Return the section of a drafter that is named, or whose directory is. Raises ConfigError."""
    if drafter == _NONE:
        return None
    if not isinstance(drafter, str) or drafter not in KINDS:
        return drafter if isinstance(drafter, Mapping) else {"path": drafter}
    if drafter in of_pair:
        return of_pair[drafter]
    path = KINDS[drafter].config.model_fields.get("path")
    if path is not None and path.is_required():
        raise ConfigError(
            f"the drafter {drafter} needs its model: drafter={{'kind': '{drafter}', 'path': DIR}}"
        )
    return {"kind": drafter}


def _explain(name: str) -> str:
    """Return what to write instead of an argument that `Engine` does not have."""
    if name in [field.name for field in fields(SamplingParams)]:
        return (
            f"Engine has no argument {name}: give it with the prompts, "
            f"engine.generate(prompts, SamplingParams({name}=...))"
        )
    names = [*inspect.signature(Engine).parameters][:-1]
    option = f"--{name.replace('_', '-')}"
    meant = ALIASES.get(option, "").removeprefix("--").replace("-", "_")
    if meant not in names:
        meant = next(iter(difflib.get_close_matches(name, names, 1)), "")
    hint = HINTS.get(option) or (
        f"did you mean {meant}?" if meant else f"it has {', '.join(names)}"
    )
    return f"Engine has no argument {name}: {hint}"
