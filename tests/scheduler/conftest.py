"""Fixtures that several files here share."""

from __future__ import annotations

import logging
import time

import pytest

from tests.support.snapshots import NOW


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Keep reports of workers that fail on purpose out of the log."""
    caplog.set_level(logging.CRITICAL)


@pytest.fixture(autouse=True)
def clock_of_tables(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock at NOW in files whose states are of that moment, on a machine of any age."""
    if getattr(request.module, "NOW", None) == NOW:
        monkeypatch.setattr(time, "monotonic", lambda: NOW)
