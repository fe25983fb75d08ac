"""Fixtures that several files here share."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Keep reports of workers that fail on purpose out of the log."""
    caplog.set_level(logging.CRITICAL)
