"""Results of `bench --sizes`: tables, JSON, and what drafts gain."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from diffuspec.bench.machine import Machine
from diffuspec.bench.sizes.calls import Kind, Timed
from diffuspec.bench.sizes.models import Sized
from diffuspec.bench.sizes.timing import Speeds
from diffuspec.bench.text_table import TextTable

ACCEPTED = (3.0, 5.0, 6.99)  # acceptance lengths; the last is the paper's for this pair
_NAMES: Mapping[Kind, str] = {
    "verify": "verify",
    "sampled": "verify, sampled",
    "prompt": "read a prompt",
    "draft": "draft",
    "refresh": "draft with refresh",
}


@dataclass(slots=True)
class Results:
    """What has been measured so far."""

    machine: Machine
    speeds: Speeds
    target: Sized
    drafter: Sized | None
    refresh_every: int | None
    rows: list[Timed] = field(default_factory=list)
    peak_bytes: dict[str, int] = field(default_factory=dict)  # keys: parts of the run

    def find(self, kind: Kind, prefix: int, drafted: int = 0, requests: int = 1) -> Timed | None:
        """Return a measured call; None if it was not measured."""
        wanted = kind, requests, prefix, drafted
        every = ((r.kind, r.num_requests, r.num_prefix_tokens, r.num_drafted) for r in self.rows)
        return next((row for row, key in zip(self.rows, every, strict=True) if key == wanted), None)

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        data: dict[str, Any] = {
            "machine": asdict(self.machine),
            "speeds": self.speeds._asdict(),
            "target": _facts(self.target),
            "drafter": None if self.drafter is None else _facts(self.drafter),
            "peak_bytes": self.peak_bytes,
            "calls": [asdict(row) for row in self.rows],
            "speed_ups": [asdict(speed_up) for speed_up in speed_ups(self)],
        }
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    def tables(self) -> list[TextTable]:
        cells = tuple(tuple(self._cells(row)) for row in self.rows)
        columns = ("call", "requests", "prefix", "drafted", "ms", "least", "tokens/s", "of copy")
        calls = TextTable("Calls", (*columns, "of product"), cells)
        pairs = speed_ups(self)
        if not pairs:
            return [calls]
        headings = ("prefix", "drafted", "step, ms", *(f"accepts {n:g}" for n in ACCEPTED))
        lines = tuple(
            (
                f"{pair.num_prefix_tokens:,}",
                str(pair.num_drafted),
                f"{1e3 * pair.step_seconds[-1]:.1f}",
                *(f"{ratio:.2f}x" for ratio in pair.ratios),
            )
            for pair in pairs
        )
        return [
            calls,
            TextTable("Drafted over plain decoding, without the search", headings, lines),
        ]

    def _cells(self, row: Timed) -> Iterator[str]:
        model = self.target if row.kind in ("verify", "sampled", "prompt") else self.drafter
        assert model is not None
        tokens = row.num_requests * (row.num_rows if row.kind == "prompt" else 1)
        seen = row.num_requests * row.num_prefix_tokens * model.cache_bytes
        num_bytes = model.step_bytes + (0 if row.kind in ("prompt", "refresh") else seen)
        num_rows = row.num_requests * row.num_rows
        yield from (_NAMES[row.kind], str(row.num_requests), f"{row.num_prefix_tokens:,}")
        yield from (str(row.num_drafted), f"{1e3 * row.seconds:.2f}")
        yield from (f"{1e3 * row.least_seconds:.2f}", f"{tokens / row.seconds:,.0f}")
        yield f"{num_bytes / row.seconds / self.speeds.copy:.0%}"
        yield f"{2 * model.num_multiplied * num_rows / row.seconds / self.speeds.product:.1%}"


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """A pair against its own plain decoding, one request at a time."""

    num_prefix_tokens: int
    num_drafted: int
    step_seconds: tuple[float, ...]  # at each of ACCEPTED, with the share of refreshes
    ratios: tuple[float, ...]


def speed_ups(results: Results) -> list[SpeedUp]:
    """Compute what drafts gain at each acceptance length, from the times of calls."""
    found = []
    for row in results.rows:
        prefix, drafted = row.num_prefix_tokens, row.num_drafted
        plain, verify = results.find("verify", prefix), results.find("verify", prefix, drafted)
        if row.kind != "draft" or row.num_requests > 1 or plain is None or verify is None:
            continue
        more = 0.0
        if results.refresh_every and (refresh := _refresh_behind(results, prefix)) is not None:
            more = max(refresh.seconds - row.seconds, 0.0) / results.refresh_every
        steps = tuple(row.seconds + verify.seconds + more * accepted for accepted in ACCEPTED)
        ratios = tuple(n * plain.seconds / step for n, step in zip(ACCEPTED, steps, strict=True))
        found.append(SpeedUp(prefix, drafted, steps, ratios))
    return found


def _refresh_behind(results: Results, prefix: int) -> Timed | None:
    rows = (row for row in results.rows if row.kind == "refresh")
    return next((row for row in rows if row.num_prefix_tokens == prefix), None)


def _facts(model: Sized) -> dict[str, Any]:
    return {
        "name": model.name,
        "arithmetic": str(model.backend),
        "weights": model.checkpoint.num_weights,
        "step_bytes": model.step_bytes,
        "cache_bytes_of_a_token": model.cache_bytes,
    }
