"""The options of a benchmark, and the systems and configuration that they select."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diffuspec.bench.systems.naming import (
    ALL_SYSTEMS,
    BASELINE,
    DEFAULT_SYSTEM,
    DRAFTER_SYSTEMS,
    TRANSFORMERS_SYSTEMS,
    VARIANTS,
    WHOLE_DRAFT_NODES,
    find_drafter,
    speculation_for,
)
from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.params import SpeculationParams
from diffuspec.drafters import kind_of
from diffuspec.pairs import DEFAULT_PAIR, Pair, find_pair, parse_config
from diffuspec.text.directory import check_given

CONCURRENCIES = (1, 2, 4, 8, 16, 32)  # concurrent requests in the study of load
ROUNDS = 6  # questions for each client in one turn; in the beginning few are in flight
SPEC_BENCH = "spec-bench"
SUITES = (SPEC_BENCH,)
_TABLE_ORDER = ("sps", "lookahead", "pld", "token_recycling", "samd", "diffuspec", *VARIANTS)
_STUDIES = ("ablations", "pre_drafts", "load", "costs", "sizes")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of `diffuspec bench`. Construction raises ConfigError and ModelLoadError."""

    target: Path | None = None  # None: the pair's target
    drafter: Path | None = None  # drafter of `target`; None: plain decoding
    ngram: Path | None = None
    dtype: str | None = None  # type of the target's weights; None: as configured
    questions: Path | None = None  # None: the pair's own
    limit: int | None = None  # questions per family; None: all
    max_tokens: int = 256
    repeats: int = 1
    threads: int | None = None  # None: the best number for the pair
    out: Path = Path("runs/bench")
    ablations: bool = False
    pre_drafts: bool = False
    load: bool = False
    costs: bool = False
    sizes: Path | None = None  # config.json of a target: no weights are read
    drafter_sizes: Path | None = None  # the same of its drafter
    profile: bool = False  # print kernels by time
    rounds: int = ROUNDS  # rounds of the study of load
    trace: Path | None = None  # a file for Perfetto; the pre-draft study traces its last system
    systems: tuple[str, ...] = ()  # empty: all; plain decoding is always included
    pair: str | None = None  # None: the embedded pair
    suite: str | None = None  # one of SUITES: the systems of the paper's table
    # verify the whole draft of a system, not only the part that pays off
    whole_drafts: bool = False
    resume: bool = False  # continue with the answers already in `out`

    def __post_init__(self) -> None:
        for name in ("limit", "max_tokens", "repeats", "rounds", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be 1 or more, got {value}")
        if self.suite is not None and self.suite not in SUITES:
            raise ConfigError(f"--suite must be {' or '.join(SUITES)}, got {self.suite!r}")
        if self.pair is not None and self.target is not None:
            raise ConfigError("--pair and --target exclude each other")
        if self.drafter is not None and self.target is None:
            raise ConfigError("--drafter needs --target: a pair has its own drafter")
        self.chosen_pair  # noqa: B018  # its name is checked
        for name in set(self.systems) - set(TRANSFORMERS_SYSTEMS):
            speculation_for(name, SpeculationParams())
        if self.questions is not None and not self.questions.exists():
            raise ConfigError(f"cannot read questions from {self.questions}: no such file")
        self._check_study()
        self._check_sizes()
        if not self.has_drafter:
            self._check_plain()
        check_given(models=[self.target, self.drafter], ngram=self.ngram)

    @property
    def has_drafter(self) -> bool:
        return self.target is None or self.drafter is not None

    @property
    def chosen_pair(self) -> Pair:
        """The pair that provides the questions and, unless a target is given, the models."""
        return find_pair(self.pair or DEFAULT_PAIR, "--pair")

    @property
    def default_threads(self) -> int | None:
        return self.chosen_pair.num_threads if self.target is None else None

    @property
    def studies(self) -> list[str]:
        """The study options that are set. A study runs instead of the comparison."""
        return [f"--{name.replace('_', '-')}" for name in _STUDIES if getattr(self, name)]

    def _check_study(self) -> None:
        """Refuse a second study, and options that the study ignores."""
        names = self.studies
        if len(names) > 1:
            raise ConfigError(f"{' and '.join(names)} are {len(names)} studies: run one at a time")
        for option in ("systems", "suite", "whole_drafts", "resume"):
            is_for_all = option == "resume" and self.ablations
            if names and getattr(self, option) and not is_for_all:
                option = option.replace("_", "-")
                raise ConfigError(f"--{option} has no effect on {names[0]}")
        if self.rounds != ROUNDS and not self.load:
            raise ConfigError("--rounds has no effect without --load")
        if self.pre_drafts and self.repeats > 1:
            raise ConfigError("--repeats has no effect on --pre-drafts")

    def _check_sizes(self) -> None:
        """Refuse models and options that --sizes ignores, and its own options without it."""
        for option in ("drafter_sizes", "profile"):
            if getattr(self, option) and self.sizes is None:
                raise ConfigError(f"--{option.replace('_', '-')} needs --sizes")
        for option in ("pair", "target", "ngram", "questions", "limit"):
            if getattr(self, option) is not None and self.sizes is not None:
                raise ConfigError(f"--{option} has no effect on --sizes, which draws weights")

    def _check_plain(self) -> None:
        """Refuse options that need a drafter."""
        for option in ("ngram", "ablations", "pre_drafts", "load"):
            if getattr(self, option):
                raise ConfigError(f"--{option.replace('_', '-')} needs --drafter")


def system_names(options: BenchOptions, config: EngineConfig) -> tuple[str, ...]:
    """Return the systems to run, plain first. Raises ConfigError."""
    if not options.systems:
        return table_systems(config)[0] if options.suite else _all_systems(config)
    for name in options.systems:
        if name not in TRANSFORMERS_SYSTEMS:
            find_drafter(name, config)
    return tuple(dict.fromkeys((BASELINE, *options.systems)))


def table_systems(config: EngineConfig) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the systems of the paper's table that a target has, and why others are missing."""
    there, missing = [BASELINE], dict[str, str]()
    for name in dict.fromkeys((*_TABLE_ORDER, *DRAFTER_SYSTEMS)):
        if name == "dflash_remote":  # the same drafts as dflash, made in another process
            continue
        try:
            find_drafter(name, config)
            there.append(name)
        except ConfigError:
            missing[name] = "the target has no drafter of this kind"
    return tuple(there), missing


def shared_config(config: EngineConfig, names: Sequence[str]) -> EngineConfig:
    """Return the configuration with the one drafter that several systems share.

    That is the drafter that makes lattices, unless it observes the target and so slows the other
    systems. Each system loads any other drafter itself.
    """
    sections = [find_drafter(name, config) for name in names if name not in TRANSFORMERS_SYSTEMS]
    kinds = [(one, kind_of(one)) for one in sections if one]
    shared = next((one for one, k in kinds if k.needs_path_scorer and not k.observes), None)
    return config.model_copy(update={"drafter": shared, "drafters": {}})


def engine_config(options: BenchOptions) -> EngineConfig:
    """Compose the configuration, for the largest concurrency. Raises ConfigError."""
    if options.target is None:
        data = options.chosen_pair.load_config().model_dump()
        if not options.studies:  # these concern the pair's own drafter
            data["drafters"] = {**options.chosen_pair.other_drafters(), **data["drafters"]}
    else:
        data = {"target": {"path": options.target}, "search": {}}
    if options.drafter is not None:
        data["drafter"] = {"path": options.drafter}
    if options.ngram is not None:
        data["search"]["ngram"] = options.ngram
    if options.whole_drafts:
        data["target"]["max_tree_nodes"] = WHOLE_DRAFT_NODES
    if options.dtype is not None:
        data["target"]["dtype"] = options.dtype
    num_sequences = max(CONCURRENCIES) if options.load else 8 if options.costs else 1
    data["target"]["max_sequences"] = num_sequences
    config = parse_config(data)
    if not _makes_lattices(config):
        for name in ("ngram", "ablations", "pre_drafts"):
            if getattr(options, name):
                option = name.replace("_", "-")
                raise ConfigError(f"--{option} needs a drafter that makes lattices")
    return config


def _all_systems(config: EngineConfig) -> tuple[str, ...]:
    """Return the systems that differ: without lattices there is only one way to draft."""
    if config.drafter is None:
        return (BASELINE, *TRANSFORMERS_SYSTEMS)
    if not _makes_lattices(config):
        return (BASELINE, DEFAULT_SYSTEM, *TRANSFORMERS_SYSTEMS)
    return ALL_SYSTEMS


def _makes_lattices(config: EngineConfig) -> bool:
    return config.drafter is not None and kind_of(config.drafter).needs_path_scorer
