"""The configuration of an engine that the options of a command ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from diffuspec.cli import options
from diffuspec.cli.drafter_section import NONE, choose_section, kind_of, with_block_size
from diffuspec.cli.parameters import NOTHING_GIVEN, Given
from diffuspec.cli.speculative_config import as_options
from diffuspec.core.config import EngineConfig, TargetConfig
from diffuspec.core.errors import ConfigError
from diffuspec.engine.preflight import check_exist
from diffuspec.pairs import DEFAULT_PAIR, Pair, find_pair, load_config, parse_config


def compose(
    given: options.EngineOptions,
    speculation: Given = NOTHING_GIVEN,
    max_sequences: int | None = 1,
    file: EngineConfig | None = None,
    keeps_drafters: bool = False,
) -> EngineConfig:
    """Compose the configuration from a file, or a target alone, or a pair; then options.

    max_sequences: without a file; None: the default. speculation: overrides --draft-length, and
    both override the section. file: the content of `given.config`, if it was read before.
    keeps_drafters: keep all drafters of the file if no option chooses one. Raises
    InvalidRequestError for a wrong parameter, ConfigError, also for options that have no effect on
    the drafter or without a drafter, and `check_exist`'s errors.
    """
    given = as_options(given)
    has_file = file is not None or given.config is not None
    speculation = {**options.policy(given.draft_length), **speculation}
    base = _base(given, file)
    data = base.model_dump()
    target = data["target"]
    asked = {
        "path": given.target,
        "dtype": given.dtype,
        "max_model_len": given.max_model_len,
        "max_sequences": None if has_file else max_sequences,
        "max_tree_nodes": max(target["max_tree_nodes"], speculation.get("max_nodes", 0)),
    }
    target |= {key: value for key, value in asked.items() if value is not None}
    others = {} if has_file or given.target else _pair(given.pair).other_drafters()
    chosen = _set_drafter(data, base, given, others, keeps_drafters)
    _set_ngram(data, given.ngram)
    if data["drafter"] is None and speculation and speculation.get("policy") != "off":
        raise ConfigError("the drafting options have no effect without a drafter (--drafter DIR)")
    data["speculation"] = asdict(replace(base.speculation, **speculation, drafter=chosen))
    config = parse_config(data)
    check_exist(config)
    return config


def _base(given: options.EngineOptions, file: EngineConfig | None) -> EngineConfig:
    """Return the configuration to which options are applied. Raises ConfigError."""
    for option, value in (("--config", file or given.config), ("--target", given.target)):
        if given.pair is not None and value is not None:
            raise ConfigError(f"--pair and {option} exclude each other")
    if file is not None:
        return file
    if given.config is not None:
        return load_config(given.config)
    if given.target is not None:
        return EngineConfig(target=TargetConfig(path=given.target))
    return _pair(given.pair).load_config()


def _set_drafter(
    data: dict[str, Any],
    base: EngineConfig,
    given: options.EngineOptions,
    others: Mapping[str, dict[str, object]],
    keeps_drafters: bool,
) -> str | None:
    """Set the section of the drafter. Return the drafter of requests that name none."""
    chosen = given.drafter_kind or base.speculation.drafter
    keeps_all = keeps_drafters and given.drafter_kind is None
    if given.drafter is not None or not keeps_all:
        data["drafter"] = choose_section(base, others, given.drafter, given.drafter_kind)
        chosen, data["drafters"] = None, {}
    data["drafter"] = with_block_size(data["drafter"], given.drafter_block_size)
    return chosen


def _set_ngram(data: dict[str, Any], ngram: str | None) -> None:
    """Set the n-gram model of the path search. Raises ConfigError if it would have no effect."""
    section = data["drafter"]
    if ngram not in (None, NONE) and section is None:
        raise ConfigError("--ngram has no effect without a drafter (--drafter DIR)")
    if ngram not in (None, NONE) and not kind_of(section).needs_path_scorer:
        raise ConfigError(f"--ngram has no effect on a drafter of the kind {section['kind']}")
    if ngram is not None:
        data["search"]["ngram"] = None if ngram == NONE else Path(ngram)


def _pair(name: str | None) -> Pair:
    return find_pair(name or DEFAULT_PAIR, "--pair")
