"""The options of a benchmark, and the systems and configuration that they select."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from diffuspec.bench.systems import ALL_SYSTEMS, BASELINE, TRANSFORMERS_SYSTEMS, speculation_for
from diffuspec.core.config import EngineConfig, parse_config
from diffuspec.core.errors import ConfigError
from diffuspec.core.params import SpeculationParams
from diffuspec.pairs import tiny

CONCURRENCIES = (1, 2, 4, 8, 16, 32)  # requests at a time in the study of load
_STUDIES = ("ablations", "pre_drafts", "load")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of `diffuspec bench`. Raises ConfigError on construction."""

    target: Path | None = None  # None: the embedded pair
    drafter: Path | None = None  # with a target, None: no drafter, hence plain decoding only
    ngram: Path | None = None
    questions: Path | None = None  # None: the embedded pair's held-out questions
    limit: int | None = None  # questions per family; None: all
    max_tokens: int = 256
    repeats: int = 1
    threads: int | None = None  # None: torch's choice, 1 for the embedded pair
    out: Path = Path("runs/bench")
    ablations: bool = False
    pre_drafts: bool = False
    load: bool = False
    trace: Path | None = None  # a file for Perfetto; of the pre-draft study, its last system
    systems: tuple[str, ...] = ()  # empty: all; plain is always among them

    def __post_init__(self) -> None:
        for name in ("limit", "max_tokens", "repeats", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be 1 or more, got {value}")
        if self.drafter is not None and self.target is None:
            raise ConfigError("--drafter needs --target: the embedded target has its own drafter")
        self._check_study()
        if not self.has_drafter:
            self._check_plain()

    @property
    def has_drafter(self) -> bool:
        return self.target is None or self.drafter is not None

    def _check_study(self) -> None:
        """Refuse a second study, and the options that a study ignores."""
        names = [f"--{name.replace('_', '-')}" for name in _STUDIES if getattr(self, name)]
        if len(names) > 1:
            raise ConfigError(f"{' and '.join(names)} are {len(names)} studies: run one at a time")
        if names and self.systems:
            raise ConfigError(f"--systems has no effect on {names[0]}, which has its own")
        if self.pre_drafts and self.repeats > 1:
            raise ConfigError("--repeats has no effect on --pre-drafts")

    def _check_plain(self) -> None:
        """Refuse what needs a drafter."""
        for option in ("ngram", *_STUDIES):
            if getattr(self, option):
                raise ConfigError(f"--{option.replace('_', '-')} needs --drafter")


def system_names(options: BenchOptions) -> tuple[str, ...]:
    """Return the systems to run, plain first. Raises ConfigError."""
    if not options.systems:
        return ALL_SYSTEMS if options.has_drafter else (BASELINE, *TRANSFORMERS_SYSTEMS)
    for name in options.systems:
        if name in (BASELINE, *TRANSFORMERS_SYSTEMS):
            continue
        speculation_for(name, SpeculationParams())
        if not options.has_drafter:
            raise ConfigError(f"--systems: {name} needs --drafter")
    return tuple(dict.fromkeys((BASELINE, *options.systems)))


def engine_config(options: BenchOptions) -> EngineConfig:
    """Compose the configuration, for the most requests at a time. Raises ConfigError."""
    if options.target is None:
        data = tiny.tiny_config().model_dump()
    else:
        data = {"target": {"path": options.target}, "search": {}}
    if options.drafter is not None:
        data["drafter"] = {"path": options.drafter}
    if options.ngram is not None:
        data["search"]["ngram"] = options.ngram
    data["target"]["max_sequences"] = max(CONCURRENCIES) if options.load else 1
    return parse_config(data)
