"""The log says what quantised weights cost on a GPU."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from diffuspec.models.loading.quantized_cost import log_ratios


def test_slower_weights_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_ratios(Path("model"), "4 bits in groups of 32", [0.7, 1.2])
    log_ratios(Path("model"), "8 bits in groups of 128", [0.5, 0.6])
    slow, fast = caplog.records
    assert slow.levelno == logging.WARNING and "no time" in slow.getMessage()
    assert "0.70 (1 row) and 1.20 (16 rows)" in slow.getMessage()
    assert fast.levelno == logging.INFO and "no time" not in fast.getMessage()
