"""A target and a drafter of given sizes, with drawn weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import MAX_DRAFT_TOKENS
from diffuspec.core.types import TokenIds
from diffuspec.models.diffusion import NUM_SCRATCH_ROWS, DiffusionDrafter
from diffuspec.models.loading.backend import Backend
from diffuspec.models.loading.checkpoint import Checkpoint
from diffuspec.models.loading.drawn_model import inspect_sizes
from diffuspec.models.loading.load import load_model
from diffuspec.models.runner import ModelRunner
from diffuspec.models.target import CausalTarget

MAX_NODES = 64  # drafted tokens in a step, as a target's default
CONFIGURATIONS = Path(__file__).with_name("configurations")


@dataclass(frozen=True, slots=True)
class Sized:
    """A model of given sizes in its role."""

    name: str
    checkpoint: Checkpoint
    runner: ModelRunner
    backend: Backend

    @property
    def num_multiplied(self) -> int:
        """Number of weights that multiply each row: all but those of the embeddings."""
        embeddings = self.runner.model.get_input_embeddings().weight.numel()
        is_tied = bool(self.checkpoint.config.get("tie_word_embeddings"))
        return self.checkpoint.num_weights - (0 if is_tied else embeddings)

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a call reads."""
        return self.num_multiplied * self.backend.dtype.itemsize

    @property
    def cache_bytes(self) -> int:
        """Bytes of a token in the key-value cache."""
        return self.runner.cache.store.shape.num_bytes(1, self.backend.dtype)


@dataclass(frozen=True, slots=True)
class SizedTarget(Sized):
    target: CausalTarget

    def prompt(self, size: int, number: int = 0) -> TokenIds:
        """Return a prompt; those of different numbers differ from the first token on."""
        random = np.random.default_rng(number)
        return random.integers(1, self.target.info.vocab_size, size).astype(np.int32)


@dataclass(frozen=True, slots=True)
class SizedDrafter(Sized):
    model: DiffusionDrafter
    refresh_every: int | None  # committed tokens after which it reads a prefix again; None: never


def find_configuration(given: Path) -> Path:
    """Return the config.json of a path, a directory or a shipped configuration's name.

    Raises ConfigError.
    """
    shipped = {path.stem.lower(): path for path in sorted(CONFIGURATIONS.glob("*.json"))}
    for path in (given, given / "config.json", shipped.get(str(given).lower())):
        if path is not None and path.is_file():
            return path
    names = ", ".join(path.stem for path in shipped.values())
    raise ConfigError(f"{given} is neither a config.json nor one that comes along: {names}")


def draw_target(path: Path, longest: int, num_requests: int, dtype: str | None) -> SizedTarget:
    """Draw a target for prefixes up to `longest`. Raises ModelLoadError."""
    checkpoint = inspect_sizes(path)
    max_len = min(longest + MAX_NODES, checkpoint.max_positions)
    loaded = load_model(
        checkpoint,
        device="auto",
        dtype=dtype or "auto",  # type: ignore[arg-type]  # checked by the command
        max_sequences=num_requests,
        max_len=max_len,
        num_scratch_rows=MAX_NODES,
        is_exact=None,
        is_target=True,
    )
    runner = loaded.runner
    info = TargetInfo(runner.vocab_size, max_len, num_requests, (), MAX_NODES)
    target = CausalTarget(runner, info)
    return SizedTarget(_name(path), checkpoint, runner, loaded.backend, target)


def draw_drafter(path: Path, target: TargetInfo, dtype: str | None) -> SizedDrafter:
    """Draw a drafter for a target. Raises ModelLoadError."""
    checkpoint, config = inspect_sizes(path), DiffuSpecConfig(path=path)
    settings = checkpoint.diffusion_with(None)
    max_len = min(target.max_model_len + MAX_DRAFT_TOKENS, checkpoint.max_positions)
    loaded = load_model(
        checkpoint,
        device="auto",
        dtype=dtype or "auto",  # type: ignore[arg-type]  # checked by the command
        max_sequences=target.max_sequences,
        max_len=max_len,
        num_scratch_rows=NUM_SCRATCH_ROWS,
        shares_prefixes=settings.has_exact_pages,
    )
    model = DiffusionDrafter(loaded.runner, settings, config, target, max_len)
    refresh_every = None if settings.has_exact_prefix else config.refresh_every
    return SizedDrafter(
        _name(path), checkpoint, loaded.runner, loaded.backend, model, refresh_every
    )


def _name(path: Path) -> str:
    return path.parent.name if path.name == "config.json" else path.stem
