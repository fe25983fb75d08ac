"""Ports of this machine."""

from __future__ import annotations

import contextlib

from deploy.ports import reserved_port

_held = contextlib.ExitStack()


def free_port() -> int:
    """Return a port that no other test, in this process or another, is given."""
    return _held.enter_context(reserved_port())
