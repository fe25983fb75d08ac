"""The paper's ablations: CPS and ADL on and off, fixed draft lengths, and four constants.

Every sweep starts from the paper's settings (one path, lambda 0.5, ADL) and changes one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from diffuspec.core.config import EngineConfig
from diffuspec.core.params import MAX_DRAFT_TOKENS, SpeculationParams

PAPER = SpeculationParams(
    policy="paper", tree_shape="path", drafter_weight=0.5, max_nodes=MAX_DRAFT_TOKENS
)
FIXED_LENGTH = 20  # draft length without ADL; the paper does not give it


@dataclass(frozen=True, slots=True)
class PaperFigures:
    """The paper's means over Spec-Bench for one variant."""

    mean_acceptance_length: float
    speedup: float


@dataclass(frozen=True, slots=True)
class Variant:
    """One setting of a sweep."""

    label: str
    x: float | str  # position on the plot's axis
    speculation: SpeculationParams
    change: tuple[str, str, object] | None = None  # section, key and value of the configuration
    paper: PaperFigures | None = None

    def apply(self, config: EngineConfig) -> EngineConfig:
        """Return the configuration with this variant's value."""
        if self.change is None:
            return config
        section, key, value = self.change
        changed = getattr(config, section).model_copy(update={key: value})
        return config.model_copy(update={section: changed})


@dataclass(frozen=True, slots=True)
class Sweep:
    """Variants compared with each other."""

    name: str
    title: str
    parameter: str
    variants: tuple[Variant, ...]
    shows_families: bool = False


def sweeps() -> list[Sweep]:
    """Return the paper's ablations."""
    return [
        _cps_and_adl(),
        _draft_lengths(),
        _constant(
            "refinement_steps",
            "S, refinement steps",
            ("drafter", "num_refinement_steps"),
            {1: (6.99, 3.08), 2: (6.90, 2.37), 4: (7.04, 1.71), 8: (7.28, 1.08)},
        ),
        _constant(
            "beam_width",
            "B, beam width",
            ("search", "beam_width"),
            {1: (6.67, 2.87), 2: (6.95, 2.98), 3: (6.99, 3.08), 4: (7.00, 2.99), 5: (6.95, 2.98)},
        ),
        _constant(
            "max_candidates",
            "M_max, candidates per position",
            ("drafter", "max_candidates"),
            {5: (6.73, 2.88), 10: (6.90, 2.91), 15: (6.99, 3.08), 20: (6.96, 2.91)},
        ),
        _constant(
            "candidate_mass",
            "tau, candidates' mass",
            ("drafter", "candidate_mass"),
            {
                0.5: (6.73, 2.80),
                0.6: (6.77, 2.84),
                0.7: (6.93, 2.90),
                0.8: (6.99, 3.08),
                0.9: (6.94, 2.93),
            },
        ),
    ]


def _cps_and_adl() -> Sweep:
    """CPS and ADL on and off. Without CPS the path is each position's argmax: lambda 1 in Eq. 8."""
    no_adl = replace(PAPER, policy="fixed", num_draft_tokens=FIXED_LENGTH)
    settings = {
        "CPS and ADL": (PAPER, PaperFigures(6.99, 3.08)),
        "CPS": (no_adl, PaperFigures(6.95, 2.98)),
        "ADL": (replace(PAPER, drafter_weight=1.0), PaperFigures(6.43, 2.73)),
        "neither": (replace(no_adl, drafter_weight=1.0), PaperFigures(6.05, 2.69)),
    }
    variants = tuple(
        Variant(label, label.replace(" ", "\n"), speculation, paper=paper)
        for label, (speculation, paper) in settings.items()
    )
    title = "CPS and ADL on and off (Tables 2 and 4)"
    return Sweep("cps_adl", title, "switched on", variants, shows_families=True)


def _draft_lengths() -> Sweep:
    lengths = {
        10: PaperFigures(5.53, 2.74),
        20: PaperFigures(6.56, 2.98),
        30: PaperFigures(6.49, 2.98),
        50: PaperFigures(6.51, 2.91),
        100: PaperFigures(6.69, 2.78),
    }
    fixed = [
        Variant(str(k), str(k), replace(PAPER, policy="fixed", num_draft_tokens=k), paper=paper)
        for k, paper in lengths.items()
    ]
    adl = Variant("ADL", "ADL", PAPER, paper=PaperFigures(6.99, 3.08))
    ours = Variant("cost-aware", "cost-\naware", replace(PAPER, policy="cost_aware"))
    title = "Draft length (Table 5)"
    return Sweep("draft_length", title, "draft length", (*fixed, adl, ours))


def _constant(
    name: str,
    parameter: str,
    field: tuple[str, str],
    figures: dict[int, tuple[float, float]] | dict[float, tuple[float, float]],
) -> Sweep:
    variants = tuple(
        Variant(f"{value:g}", value, PAPER, (*field, value), PaperFigures(*figures_of_value))
        for value, figures_of_value in figures.items()
    )
    return Sweep(name, f"{parameter} (Fig. 7)", parameter, variants)
