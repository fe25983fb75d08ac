"""Reads trace files as a viewer does."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the spans of each lane, in order of time."""
    events = json.loads(path.read_text())
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[names[event["tid"]]].append(event)
    for spans in lanes.values():
        spans.sort(key=lambda event: (event["ts"], -event["dur"]))
    return dict(lanes)


def assert_nested(spans: list[dict[str, Any]]) -> None:
    """Of any two spans, one holds the other, or they do not overlap."""
    open_until: list[int] = []
    for span in spans:
        start, end = span["ts"], span["ts"] + span["dur"]
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or end <= open_until[-1], span
        open_until.append(end)
