"""The results of runs: tables, reasons of failures, JSON."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.soak.checks import Check, checks, failed, undisturbed
from benchmarks.soak.mixture import Kind
from benchmarks.soak.run import Run
from diffuspec.bench.text_table import TextTable

_MAX_LISTED = 20  # samples of descriptors


def tables(runs: Sequence[Run]) -> list[TextTable]:
    """Return the checks of all runs, and the times of each kind of request."""
    return [_checks_table(runs), _times_table(runs)]


def failures(runs: Sequence[Run]) -> list[str]:
    """Return a line for each reason for which a check failed."""
    return [
        f"{run.plan.name}: {check.name}: {reason}"
        for run in runs
        for check in failed(checks(run))
        for reason in check.reasons
    ]


def to_json(runs: Sequence[Run]) -> list[dict[str, Any]]:
    return [_run_json(run) for run in runs]


def _checks_table(runs: Sequence[Run]) -> TextTable:
    columns = [checks(run) for run in runs]
    rows = [
        ("minutes", *(f"{run.seconds / 60:.1f}" for run in runs)),
        ("requests", *(f"{len(run.outcomes):,}" for run in runs)),
        ("kills", *(str(len(run.kills.done)) for run in runs)),
        *((row[0].name, *map(_cell, row)) for row in zip(*columns, strict=True)),
    ]
    return TextTable("Soak", ("", *(run.plan.name for run in runs)), tuple(rows))


def _cell(check: Check) -> str:
    return check.measured if check.has_passed else f"{check.measured} FAILED"


def _times_table(runs: Sequence[Run]) -> TextTable:
    by_kind = [undisturbed(run) for run in runs]
    rows = [(kind.value, *(_times_cell(kinds[kind]) for kinds in by_kind)) for kind in Kind]
    title = "Number, median and longest seconds of each kind"
    return TextTable(title, ("", *(run.plan.name for run in runs)), tuple(rows))


def _times_cell(outcomes: Sequence[Any]) -> str:
    if not outcomes:
        return "-"
    seconds = [outcome.seconds for outcome in outcomes]
    return f"{len(seconds):,} {statistics.median(seconds):.3f} {max(seconds):.2f}"


def _run_json(run: Run) -> dict[str, Any]:
    return {
        "service": run.plan.service.value,
        "clients": run.plan.num_clients,
        "seed": run.plan.seed,
        "seconds": run.seconds,
        "checks": [
            {"name": check.name, "measured": check.measured, "reasons": check.reasons}
            for check in checks(run)
        ],
        "requests": {
            kind.value: Counter(
                outcome.end.value for outcome in run.outcomes if outcome.kind is kind
            )
            for kind in Kind
        },
        "seconds_by_kind": {
            kind.value: {
                "median": statistics.median(outcome.seconds for outcome in outcomes),
                "longest": max(outcome.seconds for outcome in outcomes),
            }
            for kind, outcomes in undisturbed(run).items()
            if outcomes
        },
        "memory": [
            {"requests": sample.num_requests, "mib": round(sample.resident_mib, 1)}
            for sample in run.samples
        ],
        "descriptors": [
            {process.name: process.num_descriptors for process in sample.processes.values()}
            for sample in run.samples[:: max(1, len(run.samples) // _MAX_LISTED)]
        ],
        "kills": [
            {"role": kill.role, "seconds": kill.ended and kill.ended - kill.began}
            for kill in run.kills.done
        ],
    }
