"""DrafterKind: the registry's entry for a kind of drafter."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

from diffuspec.core.interfaces import Drafter, ObservableVerifier, PathScorer, TargetInfo
from diffuspec.core.validation import Section

C = TypeVar("C", bound=Section)

Home: TypeAlias = Literal["process", "coordinator", "verifier"]


@dataclass(frozen=True, slots=True)
class Target:
    """The facts about the target that a drafter needs."""

    info: TargetInfo
    # a vocabulary digest, see `vocabulary_digest`; None: token ids are not compared
    vocabulary: str | None
    path: Path | None = None  # the target's directory, with its tokenizer; None: unknown here
    verifier: ObservableVerifier | None = None  # None: it runs in another process

    @property
    def observed(self) -> ObservableVerifier:
        """The verifier in this process, which drafters that observe need."""
        assert self.verifier is not None, "it runs beside the verifier"
        return self.verifier


class LocalDrafter(Drafter, Protocol):
    """A drafter in this process."""

    def close(self) -> None:
        """End its threads and free its memory. Nothing can be drafted afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class DrafterKind(Generic[C]):
    """How to create drafters of one kind, and what they need where they run.

    load: (configuration, target, path scorer or None if not needed) -> drafter. Raises ConfigError,
    ModelLoadError, NgramError. It imports torch only when called.
    """

    config: type[C]
    load: Callable[[C, Target, PathScorer | None], LocalDrafter]
    # module of its own model, which may run on a GPU: its configuration has a key `device`
    model_module: str | None = None
    needs_path_scorer: bool = False  # it makes lattices, searched here or in another process
    observes: bool = False  # it observes verifications, and so runs in the verifier's process
    takes_states: bool = False  # it receives the target's hidden states

    @property
    def has_model(self) -> bool:
        return self.model_module is not None

    def import_ahead(self) -> None:
        """Import what `load` needs, which takes seconds."""
        if self.model_module is not None:
            importlib.import_module(self.model_module)

    @property
    def needs_tokens_alone(self) -> bool:
        """Whether it can draft for a target of which only the tokens are known."""
        return not (self.observes or self.takes_states)

    @property
    def home(self) -> Home:
        """Where it runs when the roles have processes of their own.

        A drafter that observes runs in the target's process, one with a model in its own process.
        Others run in the coordinator's process, since their drafts take less time than a message.
        """
        if self.observes:
            return "verifier"
        return "process" if self.has_model or self.needs_path_scorer else "coordinator"
