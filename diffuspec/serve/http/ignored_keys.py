"""Names ignored keys of bodies, to clients in a header and to operators in the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from starlette.responses import Response

logger = logging.getLogger(__name__)

HEADER = "x-diffuspec-ignored"
MAX_NAMED = 8  # keys in a header, or in a row of a batch
_MAX_LOGGED = 64  # keys in the log of a process: clients choose them


class IgnoredKeys:
    """Names ignored keys in answers, and each once in the log."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def tell(self, keys: Sequence[str], response: Response) -> None:
        """Add the header to an answer, if there are `keys`, which are ASCII."""
        if not keys:
            return
        response.headers[HEADER] = ", ".join(keys[:MAX_NAMED])
        for key in keys:
            if key not in self._logged and len(self._logged) < _MAX_LOGGED:
                self._logged.add(key)
                logger.warning("a request's key %s has no effect, and is ignored from now on", key)
