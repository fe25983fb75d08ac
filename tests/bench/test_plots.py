"""Plots are made, and something is drawn on them."""

import sys
from pathlib import Path

import numpy as np
import pytest

from diffuspec.bench.plots import (
    Line,
    plot_acceptance,
    plot_speedup,
    plot_sweep,
    plot_time_share,
    require_matplotlib,
)
from diffuspec.core.errors import MissingDependencyError
from tests.bench.test_report import make_results


def coloured_share(path: Path) -> float:
    """Return the share of pixels that are neither white nor grey."""
    image = pytest.importorskip("matplotlib.image").imread(path)[..., :3]
    return float(np.mean(np.ptp(image, axis=-1) > 0.1))


@pytest.mark.parametrize("plot", [plot_speedup, plot_time_share])
def test_speed_ups_and_time_shares_are_bars(plot, tmp_path):
    plot(make_results().rows, tmp_path / "plot.png")
    assert coloured_share(tmp_path / "plot.png") > 0.05


def test_acceptance_is_a_line_per_system(tmp_path):
    plot_acceptance({"paper": [0.9, 0.5, 0.1], "cost_aware_path": [0.8]}, tmp_path / "plot.png")
    assert coloured_share(tmp_path / "plot.png") > 0.002


@pytest.mark.parametrize("xs", [(1, 2), ("CPS", "neither")])
def test_sweeps_are_lines_over_figures_or_names(xs, tmp_path):
    lines = [Line("measured", xs, (2.0, 3.0)), Line("paper", xs[:1], (7.0,))]
    plot_sweep("A sweep", "value", {"length": lines, "speed": lines}, tmp_path / "plot.png")
    assert coloured_share(tmp_path / "plot.png") > 0.002


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'diffuspec\[bench\]'"):
        require_matplotlib()
