"""Options that several commands share, and the configuration that they make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffuspec.core.config import EngineConfig, TargetConfig, load_config, parse_config
from diffuspec.core.errors import ConfigError
from diffuspec.core.params import TreeShape
from diffuspec.pairs.tiny import TARGET, tiny_config

if TYPE_CHECKING:
    from diffuspec.engine import Engine
    from diffuspec.telemetry.trace import Tracer

_MODELS, _OUTPUT = "Models", "Output"
_SAMPLING, _DRAFTING = "Sampling", "Drafting (changes the speed, never the answer)"
_NONE = "none"  # spelled out to switch a part off


def _option(panel: str, text: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel)


def model(text: str, metavar: str) -> Any:
    """Return an option of the panel about models."""
    return _option(_MODELS, text, metavar=metavar)


_TARGET = (
    "The model whose output is reproduced: any causal LM of transformers."
    " Default: the embedded one, which answers only questions like those of `diffuspec demo`."
)
_DRAFTER = (
    "The diffusion LM that drafts; none: plain decoding."
    " Default: the embedded one, none with --target."
)
_NGRAM = "KenLM model over token ids, as `diffuspec ngram build` makes; none: draft without one."
_CONFIG = "Configuration of an engine; the options given here override it."
_THREADS = "CPU threads. Default: torch's choice, 1 for the embedded pair."

Target = Annotated[Path | None, model(_TARGET, "DIR")]
Drafter = Annotated[str | None, model(_DRAFTER, "DIR|none")]
Ngram = Annotated[str | None, model(_NGRAM, "FILE|none")]
Config = Annotated[Path | None, model(_CONFIG, "FILE.yaml")]
Threads = Annotated[
    int | None, typer.Option(min=1, help=_THREADS, metavar="N", rich_help_panel=_MODELS)
]

MaxTokens = Annotated[int, _option(_SAMPLING, "Longest answer.")]
Temperature = Annotated[float, _option(_SAMPLING, "0 is greedy.")]
TopP = Annotated[float, _option(_SAMPLING, "Keep the likeliest tokens of this mass.")]
TopK = Annotated[int, _option(_SAMPLING, "Keep so many of the likeliest tokens; 0: all.")]
Seed = Annotated[
    int | None, _option(_SAMPLING, "The same seed gives the same answer. Default: a fresh one.")
]
RepetitionPenalty = Annotated[float, _option(_SAMPLING, "Of tokens in prompt and answer.")]
PresencePenalty = Annotated[float, _option(_SAMPLING, "Of tokens in the answer.")]
FrequencyPenalty = Annotated[float, _option(_SAMPLING, "Of tokens in the answer, each time.")]
Stop = Annotated[
    list[str] | None, _option(_SAMPLING, "End before this text; repeatable.", metavar="TEXT")
]
StopTokenId = Annotated[
    list[int] | None, _option(_SAMPLING, "End after this token; repeatable.", metavar="ID")
]
IgnoreEos = Annotated[bool, _option(_SAMPLING, "Go on to --max-tokens.", "--ignore-eos")]
Logprobs = Annotated[
    int | None, _option(_SAMPLING, "With --json: log-probabilities, and of N others.", metavar="N")
]

DraftLength = Annotated[
    str | None,
    _option(
        _DRAFTING,
        "cost_aware (the default), paper, fixed, off, or a number: so many tokens in every draft.",
        metavar="POLICY|N",
    ),
]
Tree = Annotated[TreeShape | None, _option(_DRAFTING, "The shape of drafts. Default: best_first.")]
MaxNodes = Annotated[
    int | None, _option(_DRAFTING, "Most tokens in a draft. Default: 32.", metavar="N")
]
DrafterWeight = Annotated[
    str | None,
    _option(
        _DRAFTING, "Drafter (1) against n-gram model (0). Default: 0.5.", metavar="0..1|adaptive"
    ),
]

Json = Annotated[
    bool, _option(_OUTPUT, "Print one JSON object with tokens, text and statistics.", "--json")
]
Quiet = Annotated[bool, _option(_OUTPUT, "Print no statistics on stderr.", "--quiet")]
_TRACE = "Write a timeline of all roles for ui.perfetto.dev. Slows steps a little."
Trace = Annotated[Path | None, _option(_OUTPUT, _TRACE, metavar="FILE.json")]


def open_engine(
    config: EngineConfig, num_threads: int | None, tracer: Tracer | None = None
) -> Engine:
    """Load the models of a configuration. The caller closes the engine.

    num_threads None: torch's choice, but 1 for the embedded pair, which is too small for more.
    """
    from diffuspec.engine import Engine

    if num_threads is None and config.target.path == TARGET:
        num_threads = 1
    if num_threads is not None:
        import torch

        torch.set_num_threads(num_threads)
    return Engine.from_config(config, tracer)


def engine_config(
    config: Path | None = None,
    target: Path | None = None,
    drafter: str | None = None,
    ngram: str | None = None,
    speculation: Mapping[str, Any] | None = None,
) -> EngineConfig:
    """Compose the configuration: a file, or a target alone, or the embedded pair; then options.

    speculation overrides fields of its section. Raises ConfigError, also for options that have no
    effect without a drafter.
    """
    data = _base(config, target).model_dump()
    if target is not None:
        data["target"]["path"] = target
    if drafter == _NONE:
        data["drafter"] = None
    elif drafter is not None:
        data["drafter"] = {**(data["drafter"] or {}), "path": Path(drafter)}
    if data["drafter"] is None:
        _check_plain(ngram, speculation or {})
    if ngram is not None:
        data["search"]["ngram"] = None if ngram == _NONE else Path(ngram)
    data["speculation"].update(speculation or {})
    if config is None:
        data["target"]["max_sequences"] = 1  # one prompt is answered
    if (max_nodes := (speculation or {}).get("max_nodes")) is not None:
        data["target"]["max_tree_nodes"] = max(data["target"]["max_tree_nodes"], max_nodes)
    return parse_config(data)


def _check_plain(ngram: str | None, speculation: Mapping[str, Any]) -> None:
    """Raise ConfigError for options about drafts, given that there is no drafter."""
    if ngram not in (None, _NONE):
        raise ConfigError("--ngram has no effect without a drafter (--drafter DIR)")
    if speculation and speculation.get("policy") != "off":
        raise ConfigError("the drafting options have no effect without a drafter (--drafter DIR)")


def _base(config: Path | None, target: Path | None) -> EngineConfig:
    if config is not None:
        return load_config(config)
    if target is not None:
        return EngineConfig(target=TargetConfig(path=target))
    return tiny_config()


def drafting(
    draft_length: str | None, tree: str | None, max_nodes: int | None, drafter_weight: str | None
) -> dict[str, Any]:
    """Return the fields of the speculation section that the options set. Raises ConfigError."""
    fields: dict[str, Any] = {}
    if draft_length is not None:
        fields.update(_policy(draft_length))
    if tree is not None:
        fields["tree_shape"] = tree
    if max_nodes is not None:
        fields["max_nodes"] = max_nodes
    if drafter_weight is not None:
        fields["drafter_weight"] = _weight(drafter_weight)
    return fields


def _policy(value: str) -> dict[str, Any]:
    if value in ("paper", "cost_aware", "fixed", "off"):
        return {"policy": value}
    try:
        return {"policy": "fixed", "num_draft_tokens": int(value)}
    except ValueError:
        raise ConfigError(
            f"--draft-length must be paper, cost_aware, fixed, off or a number, got {value!r}"
        ) from None


def _weight(value: str) -> float | str:
    if value == "adaptive":
        return value
    try:
        weight = float(value)
    except ValueError:
        weight = -1
    if not 0 <= weight <= 1:
        raise ConfigError(f"--drafter-weight must be from 0 to 1, or adaptive, got {value!r}")
    return weight
