"""Options shared by several commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from diffuspec.cli.parameters import Given, takes_fields, takes_parameters
from diffuspec.core.compiler import without_compiler
from diffuspec.core.config import EngineConfig
from diffuspec.core.devices import DType
from diffuspec.core.drafter_config import MAX_BLOCK_SIZE
from diffuspec.core.errors import ConfigError
from diffuspec.core.memory import loading_to_stay
from diffuspec.core.params import (
    DraftLengthPolicy,
    SamplingParams,
    SpeculationParams,
    StructuredOutput,
)
from diffuspec.pairs import DEFAULT_PAIR, PAIRS
from diffuspec.telemetry import logs

if TYPE_CHECKING:
    from diffuspec.engine.engine import Engine
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
    "tiny, which answers only questions like those of `diffuspec demo`, or smollm2 (make smollm2)."
    f" Default: {DEFAULT_PAIR}."
)
_TARGET = "The model whose output is reproduced, of transformers or GGUF. Default: the pair's."
_DRAFTER = (
    "The directory of the drafter; none: plain decoding. Default: the pair's, none with --target."
)
_DRAFTER_KIND = (
    "A diffusion LM (diffuspec), a causal LM (sps), no model (pld, samd, samd_recycling,"
    " token_recycling, lookahead) or heads of the target (medusa, hydra, eagle, eagle2, eagle3,"
    " dflash). Or a NAME of --config; auto: the fastest. Default: diffuspec."
)
_MAX_MODEL_LEN = (
    "Maximum number of tokens of prompt and answer together. Default: what the target was trained"
    " for."
)
_SPECULATIVE_CONFIG = (
    "vLLM's option, with its keys method, model and num_speculative_tokens; see --drafter-kind,"
    " --drafter and --draft-length."
)
_BLOCK_SIZE = (
    "Tokens of the blocks that a diffusion LM was trained with, where its directory does not say,"
    " as that of Tiny-A2D bd3lm, or wrongly."
)
_NGRAM = "KenLM model over token ids, as `diffuspec ngram build` makes; none: draft without one."
_CONFIG = "Configuration of an engine; the options given here override it."
_THREADS = "CPU threads. Default: torch's choice, 1 for the embedded pair."
_DTYPE = "Type of the target's weights. Default: auto, bfloat16 on a GPU and float32 on CPUs."

PairName = Annotated[str | None, model(_PAIR, "NAME")]
Dtype = Annotated[str | None, model(_DTYPE, "|".join(get_args(DType)))]
Target = Annotated[Path | None, model(_TARGET, "DIR|FILE")]
Drafter = Annotated[str | None, model(_DRAFTER, "DIR|none")]
DrafterKind = Annotated[str | None, model(_DRAFTER_KIND, "KIND")]
DrafterBlockSize = Annotated[int | None, model(_BLOCK_SIZE, "N", min=1, max=MAX_BLOCK_SIZE)]
Ngram = Annotated[str | None, model(_NGRAM, "FILE|none")]
Config = Annotated[Path | None, model(_CONFIG, "FILE.yaml")]
MaxModelLen = Annotated[int | None, model(_MAX_MODEL_LEN, "N", min=2)]
SpeculativeConfig = Annotated[str | None, _option(_DRAFTING, _SPECULATIVE_CONFIG, metavar="JSON")]
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
MaxTokens = Annotated[
    int, typer.Option(help="Maximum length of an answer, in tokens.", metavar="N", min=1)
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
    max_model_len: MaxModelLen = None
    threads: Threads = None
    draft_length: DraftLength = None
    speculative_config: SpeculativeConfig = None


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


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import torch and transformers, and load models, in a process that is for nothing else."""
    with loading_to_stay(), without_compiler():
        yield


def open_engine(
    config: EngineConfig, num_threads: int | None, tracer: Tracer | None = None
) -> Engine:
    """Load the models of a configuration into one engine, which the caller closes.

    num_threads is by default torch's, but 1 for the embedded pair, which is too small for more.
    """
    logs.stages.info("importing torch and transformers")
    with loading():
        from diffuspec.engine.engine import Engine

        use_threads(num_threads or _threads_of_pair(config))
        return Engine.from_config(config, tracer)


def use_threads(num_threads: int | None) -> None:
    """Compute with this number of CPU threads; None: torch's choice."""
    if num_threads is not None:
        import torch

        torch.set_num_threads(num_threads)


def _threads_of_pair(config: EngineConfig) -> int | None:
    """Return the best number of threads for a pair, if the target is that of one."""
    pairs = (pair for pair in PAIRS.values() if pair.target == config.target.path)
    return next((pair.num_threads for pair in pairs), None)


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
