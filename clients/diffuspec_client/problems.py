"""Problems that may recur in every step: the first is logged, later ones only for debugging."""

from __future__ import annotations

import logging


class Problems:
    """Logs the first problem at its own level and later ones at level debug."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._has_shown = False

    def show(self, message: str, level: int = logging.WARNING, has_trace: bool = False) -> None:
        """Log a problem. has_trace: include the exception being handled."""
        level = logging.DEBUG if self._has_shown else level
        self._logger.log(level, "diffuspec: %s", message, exc_info=has_trace)
        self._has_shown = True
