"""Options shared by several commands, and the configuration that they make."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from diffuspec.cli.drafter_section import NONE, choose_section, kind_of, with_block_size
from diffuspec.cli.parameters import NOTHING_GIVEN, Given, takes_fields, takes_parameters
from diffuspec.core.config import EngineConfig, TargetConfig
from diffuspec.core.devices import DType
from diffuspec.core.drafter_config import MAX_BLOCK_SIZE
from diffuspec.core.errors import ConfigError
from diffuspec.core.params import (
    AUTO_DRAFTER,
    DraftLengthPolicy,
    SamplingParams,
    SpeculationParams,
    StructuredOutput,
)
from diffuspec.drafters import KINDS
from diffuspec.pairs import DEFAULT_PAIR, PAIRS, Pair, find_pair, load_config, parse_config
from diffuspec.telemetry import logs
from diffuspec.text.directory import check_given

if TYPE_CHECKING:
    from diffuspec.engine import Engine
    from diffuspec.engine_base import EngineBase
    from diffuspec.telemetry.trace import Tracer

_MODELS, _OUTPUT = "Models", "Output"
_DRAFTING = "Drafting (changes the speed, never the answer)"
MAX_THREADS = 256  # OpenMP crashes at a few thousand


def _option(panel: str, text: str, *names: str, metavar: str | None = None, **limits: Any) -> Any:
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel, **limits)


def model(text: str, metavar: str, **limits: Any) -> Any:
    """Return an option in the help panel about models."""
    return _option(_MODELS, text, metavar=metavar, **limits)


_PAIR = (
    "Models by name: tiny is the embedded pair, smollm2 a real chat model (make smollm2)."
    f" Default: {DEFAULT_PAIR}."
)
_TARGET = (
    "The model whose output is reproduced: any causal LM of transformers, or a GGUF file."
    " Default: the pair's; the embedded one answers only questions like those of `diffuspec demo`."
)
_DRAFTER = (
    "The diffusion LM that drafts, or the directory of another kind of drafter; none: plain"
    " decoding. Default: the pair's, none with --target."
)
_DRAFTER_KIND = (
    "What drafts: diffuspec is a diffusion LM, sps a smaller causal LM; pld and samd repeat what"
    " followed the last tokens earlier in the text; token_recycling keeps what the target found"
    " likely, lookahead n-grams that it finds beside the answer; medusa, hydra, eagle, eagle2"
    " and dflash read the target's hidden states. Or the NAME of one in the section drafters, or"
    " auto: the fastest of all in the configuration. Default: diffuspec."
)
_BLOCK_SIZE = (
    "Tokens of the blocks that a diffusion LM was trained with, where its directory does not say,"
    " as that of Tiny-A2D bd3lm, or wrongly."
)
_NGRAM = "KenLM model over token ids, as `diffuspec ngram build` makes; none: draft without one."
_CONFIG = "Configuration of an engine; the options given here override it."
_THREADS = "CPU threads. Default: torch's choice, 1 for the embedded pair."
_DATA_PARALLEL_SIZE = (
    "Processes with an engine each, to spread requests over; --threads is per process."
    " Default: 1, in this process."
)
_DTYPE = "Type of the target's weights. Default: auto, bfloat16 on a GPU and float32 on CPUs."

PairName = Annotated[str | None, model(_PAIR, "|".join(PAIRS))]
Dtype = Annotated[str | None, model(_DTYPE, "|".join(get_args(DType)))]
Target = Annotated[Path | None, model(_TARGET, "DIR|FILE.gguf")]
Drafter = Annotated[str | None, model(_DRAFTER, "DIR|none")]
DrafterKind = Annotated[str | None, model(_DRAFTER_KIND, f"{'|'.join(KINDS)}|NAME")]
DrafterBlockSize = Annotated[int | None, model(_BLOCK_SIZE, "N", min=1, max=MAX_BLOCK_SIZE)]
Ngram = Annotated[str | None, model(_NGRAM, "FILE|none")]
Config = Annotated[Path | None, model(_CONFIG, "FILE.yaml")]
Questions = Annotated[
    Path | None,
    typer.Option(
        help="Questions in Spec-Bench's format. Default: the questions of the pair.",
        metavar="FILE.jsonl",
    ),
]
Limit = Annotated[
    int | None, typer.Option(help="Questions per family. Default: all.", metavar="N", min=1)
]
Rounds = Annotated[
    int,
    typer.Option(
        help="Questions per concurrent request in each measurement under load: long "
        "measurements vary less.",
        metavar="N",
        min=1,
    ),
]
Threads = Annotated[int | None, model(_THREADS, "N", min=1, max=MAX_THREADS)]
DataParallelSize = Annotated[int | None, model(_DATA_PARALLEL_SIZE, "N", min=1, max=64)]

DraftLength = Annotated[
    str | None,
    _option(
        _DRAFTING,
        "How the draft length is chosen: cost_aware (by expected tokens per second), "
        "paper (by the paper's controller), fixed, off, or a number of tokens. Default: "
        "cost_aware.",
        metavar="POLICY|N",
    ),
]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options for models and draft lengths. None: not given."""

    pair: PairName = None
    target: Target = None
    drafter: Drafter = None
    drafter_kind: DrafterKind = None
    drafter_block_size: DrafterBlockSize = None
    ngram: Ngram = None
    config: Config = None
    dtype: Dtype = None
    threads: Threads = None
    draft_length: DraftLength = None


NO_OPTIONS = EngineOptions()

takes_engine = takes_fields("given", EngineOptions)
takes_sampling = takes_parameters("sampling", SamplingParams, "Sampling")
takes_form = takes_parameters("form", StructuredOutput, "Form of the answer")
takes_speculation = takes_parameters("speculation", SpeculationParams, _DRAFTING)

Json = Annotated[
    bool, _option(_OUTPUT, "Print one JSON object with tokens, text and statistics.", "--json")
]
Quiet = Annotated[bool, _option(_OUTPUT, "Print no statistics on stderr.", "--quiet")]
LogFormat = Annotated[
    logs.LogFormat | None,
    typer.Option(
        metavar="|".join(get_args(logs.LogFormat)),
        help=f"Form of log lines. Default: {logs.FORMAT_VARIABLE}, or text.",
        rich_help_panel=_OUTPUT,
    ),
]
_TRACE = "Write a timeline of all roles for ui.perfetto.dev. Slows steps a little."
Trace = Annotated[Path | None, _option(_OUTPUT, _TRACE, metavar="FILE.json")]


def open_engine(
    config: EngineConfig, num_threads: int | None, tracer: Tracer | None = None
) -> Engine:
    """Load the models of a configuration into one engine, which the caller closes.

    num_threads is by default torch's, but 1 for the embedded pair, which is too small for more.
    """
    from diffuspec.engine import Engine

    num_threads = num_threads or _threads_of_pair(config)
    if num_threads is not None:
        import torch

        torch.set_num_threads(num_threads)
    return Engine.from_config(config, tracer)


def open_engines(config: EngineConfig, num_threads: int | None) -> EngineBase:
    """Load the models of a configuration in its number of processes; see `open_engine`.

    num_threads: threads of each process; None: one for each processor of its share.
    """
    from diffuspec.data_parallel.engine import DataParallelEngine

    if config.data_parallel_size == 1:
        return open_engine(config, num_threads)
    return DataParallelEngine.from_config(config, num_threads or _threads_of_pair(config))


def _threads_of_pair(config: EngineConfig) -> int | None:
    """Return the best number of threads for a pair, if the target is that of one."""
    pairs = (pair for pair in PAIRS.values() if pair.target == config.target.path)
    return next((pair.num_threads for pair in pairs), None)


def engine_config(
    given: EngineOptions,
    speculation: Given = NOTHING_GIVEN,
    max_sequences: int | None = 1,
    file: EngineConfig | None = None,
    keeps_drafters: bool = False,
) -> EngineConfig:
    """Compose the configuration from a file, or a target alone, or a pair; then options.

    max_sequences: without a file; None: the default. speculation: overrides --draft-length, and
    both override the section. file: the content of `given.config`, if it was read before.
    keeps_drafters: keep all drafters of the file if no option chooses one; they are always kept for
    the drafter "auto". Raises InvalidRequestError for a wrong parameter, and ConfigError, also for
    options that have no effect on the drafter or without a drafter.
    """
    speculation = {**policy(given.draft_length), **speculation}
    base, ngram = _base(given, file), given.ngram
    has_file = file is not None or given.config is not None
    data = base.model_dump()
    if given.target is not None:
        data["target"]["path"] = given.target
    if given.dtype is not None:
        data["target"]["dtype"] = given.dtype
    chosen = given.drafter_kind or base.speculation.drafter
    is_one = not keeps_drafters or given.drafter_kind is not None
    if given.drafter is None and (chosen == AUTO_DRAFTER or not is_one):
        section = data["drafter"]
    else:
        others = {} if has_file or given.target else _pair(given.pair).other_drafters()
        section = choose_section(base, others, given.drafter, given.drafter_kind)
        chosen, data["drafters"] = None, {}
    data["drafter"] = section = with_block_size(section, given.drafter_block_size)
    if section is None:
        _check_plain(ngram, speculation)
    elif ngram not in (None, NONE) and not kind_of(section).needs_path_scorer:
        raise ConfigError(f"--ngram has no effect on a drafter of the kind {section['kind']}")
    if ngram is not None:
        data["search"]["ngram"] = None if ngram == NONE else Path(ngram)
    data["speculation"] = asdict(replace(base.speculation, **speculation, drafter=chosen))
    if not has_file and max_sequences is not None:
        data["target"]["max_sequences"] = max_sequences
    if "max_nodes" in speculation:
        least = speculation["max_nodes"]
        data["target"]["max_tree_nodes"] = max(data["target"]["max_tree_nodes"], least)
    config = parse_config(data)
    _check_exist(given)
    return config


def _check_exist(given: EngineOptions) -> None:
    """Check that the given files exist. Raises ModelLoadError and ConfigError."""
    drafter, ngram = (
        None if path in (None, NONE) else Path(path) for path in (given.drafter, given.ngram)
    )
    check_given(models=[given.target, drafter], ngram=ngram)


def _check_plain(ngram: str | None, speculation: Given) -> None:
    """Raise ConfigError if options about drafts are given without a drafter."""
    if ngram not in (None, NONE):
        raise ConfigError("--ngram has no effect without a drafter (--drafter DIR)")
    if speculation and speculation.get("policy") != "off":
        raise ConfigError("the drafting options have no effect without a drafter (--drafter DIR)")


def _base(given: EngineOptions, file: EngineConfig | None) -> EngineConfig:
    """Return the configuration to which options are applied. Raises ConfigError."""
    has_file = file is not None or given.config is not None
    if given.pair is not None and (has_file or given.target is not None):
        other = "--config" if has_file else "--target"
        raise ConfigError(f"--pair and {other} exclude each other")
    if file is not None:
        return file
    if given.config is not None:
        return load_config(given.config)
    if given.target is not None:
        return EngineConfig(target=TargetConfig(path=given.target))
    return _pair(given.pair).load_config()


def _pair(name: str | None) -> Pair:
    return find_pair(name or DEFAULT_PAIR, "--pair")


def policy(draft_length: str | None) -> Given:
    """Return the parameters that --draft-length sets. Raises ConfigError."""
    if draft_length is None:
        return {}
    if draft_length in get_args(DraftLengthPolicy):
        return {"policy": draft_length}
    try:
        return {"policy": "fixed", "num_draft_tokens": int(draft_length)}
    except ValueError:
        policies = ", ".join(get_args(DraftLengthPolicy))
        raise ConfigError(
            f"--draft-length must be {policies} or a number, got {draft_length!r}"
        ) from None
