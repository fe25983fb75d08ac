"""Problems that may come up in every step: later ones than the first are logged for debugging."""

from __future__ import annotations

import logging


class Problems:
    """Logs the first problem at its level, and later ones at level debug."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._has_shown = False

    def show(self, message: str, level: int = logging.WARNING, has_trace: bool = False) -> None:
        """Log a problem; has_trace: with the exception that is being handled."""
        level = logging.DEBUG if self._has_shown else level
        self._logger.log(level, "diffuspec: %s", message, exc_info=has_trace)
        self._has_shown = True
