"""What a benchmark can be asked for, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from diffuspec.bench.systems import ALL_SYSTEMS, BASELINE, TRANSFORMERS_SYSTEMS, speculation_for
from diffuspec.core.config import EngineConfig, parse_config
from diffuspec.core.errors import ConfigError
from diffuspec.core.params import SpeculationParams
from diffuspec.pairs import tiny


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What `diffuspec bench` can be asked for. Raises ConfigError on construction."""

    target: Path | None = None  # None: the embedded pair
    drafter: Path | None = None  # with a target, None: no drafter, hence plain decoding only
    ngram: Path | None = None
    questions: Path | None = None  # None: the embedded pair's held-out questions
    limit: int | None = None  # questions per family; None: all
    max_tokens: int = 256
    repeats: int = 1
    threads: int | None = None  # None: as many as torch would use
    out: Path = Path("runs/bench")
    ablations: bool = False
    ahead: bool = False
    trace: Path | None = None  # a file for Perfetto; of what is drafted ahead, the last system's
    systems: tuple[str, ...] = ()  # empty: all; plain is always among them

    def __post_init__(self) -> None:
        for name in ("limit", "max_tokens", "repeats", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be 1 or more, got {value}")
        if self.drafter is not None and self.target is None:
            raise ConfigError("a drafter needs a target: the embedded target has its own")


def system_names(options: BenchOptions) -> tuple[str, ...]:
    """Return the systems to run, plain first. Raises ConfigError."""
    has_drafter = options.target is None or options.drafter is not None
    if not options.systems:
        return ALL_SYSTEMS if has_drafter else (BASELINE, *TRANSFORMERS_SYSTEMS)
    for name in options.systems:
        if name in (BASELINE, *TRANSFORMERS_SYSTEMS):
            continue
        speculation_for(name, SpeculationParams())
        if not has_drafter:
            raise ConfigError(f"system {name} needs a drafter")
    return tuple(dict.fromkeys((BASELINE, *options.systems)))


def engine_config(options: BenchOptions) -> EngineConfig:
    """Compose the configuration, for one request at a time. Raises ConfigError."""
    if options.target is None:
        data = tiny.tiny_config().model_dump()
    else:
        data = {"target": {"path": options.target}, "search": {}}
    if options.drafter is not None:
        data["drafter"] = {"path": options.drafter}
    if options.ngram is not None:
        data["search"]["ngram"] = options.ngram
    data["target"]["max_sequences"] = 1
    return parse_config(data)
