"""DrafterKind: the registry's entry for a kind of drafter."""

from __future__ import annotations

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
    """The target, as far as a drafter needs to know it."""

    info: TargetInfo
    vocabulary: str | None  # see vocabulary_digest; None: token ids are not compared
    path: Path | None = None  # the target's directory, with its tokenizer; None: not known here
    verifier: ObservableVerifier | None = None  # None: it runs in another process


class LocalDrafter(Drafter, Protocol):
    """A drafter in this process."""

    def close(self) -> None:
        """End its threads and give back its memory. Nothing is drafted afterwards."""
        ...


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class DrafterKind(Generic[C]):
    """How drafters of one kind are made, and what they need where they run.

    load: (configuration, target, path scorer, which is None unless needed) -> drafter. Raises
    ConfigError, ModelLoadError, NgramError. It imports torch itself, if it needs it.
    """

    config: type[C]
    load: Callable[[C, Target, PathScorer | None], LocalDrafter]
    needs_path_scorer: bool  # whether it makes lattices, to be searched here or in another process
    has_model: bool  # a model that may run on a GPU; its configuration has a key `device`
    observes: bool = False  # whether it observes verifications: it runs in the verifier's process
    takes_states: bool = False  # whether the target's hidden states are sent to it
    import_ahead: Callable[[], None] = _nothing  # imports the modules of `load` ahead of it

    @property
    def needs_tokens_alone(self) -> bool:
        """Whether it can draft for a target of which nothing is known but its tokens."""
        return not (self.observes or self.takes_states)

    @property
    def home(self) -> Home:
        """Where it runs when the roles have processes of their own.

        A drafter that observes runs beside the target, one with a model in its own process. Others
        run in the coordinator's, since their drafts take less time than a message.
        """
        if self.observes:
            return "verifier"
        return "process" if self.has_model or self.needs_path_scorer else "coordinator"
