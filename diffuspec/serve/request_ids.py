"""Ids that clients give their requests."""

from __future__ import annotations

import re

_REQUEST_ID = re.compile(r"[A-Za-z0-9._#:-]{1,128}")  # Kong counts with #, Istio joins with :


def check_request_id(given: str) -> str:
    """Return a client's id of its request. Raises ValueError."""
    if not _REQUEST_ID.fullmatch(given):
        raise ValueError("must be at most 128 of A-Z a-z 0-9 . _ # : -")
    return given
