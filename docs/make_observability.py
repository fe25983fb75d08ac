"""Write the tables of docs/observability.md from the code, or check that they are current.

    python docs/make_observability.py [--check]

The text around the tables is written in the page itself.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # `deploy` is not an installed package

from deploy.grafana.panels import ROWS  # noqa: E402
from diffuspec.draft_server.metrics import DraftMetrics  # noqa: E402
from diffuspec.serve.http.observer import HttpSeries  # noqa: E402
from diffuspec.telemetry.metrics import Metrics  # noqa: E402
from diffuspec.telemetry.series import Series  # noqa: E402

PAGE = ROOT / "docs" / "observability.md"


def render(page: str) -> str:
    """Return the page with every table as the code has it now."""
    tables = {
        "coordinator": _series(Metrics().table.series),
        "http": _series(HttpSeries().table.series),
        "draft_server": _series(DraftMetrics().table.series),
        "dashboard": _panels(),
    }
    for name, table in tables.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        found = re.search(rf"{begin}\n.*?{end}", page, re.DOTALL)
        if found is None:
            raise ValueError(f"the page must have {begin} and {end}")
        page = page.replace(found[0], f"{begin}\n{table}{end}")
    return page


def _series(series: Iterable[Series]) -> str:
    lines = ["| series | kind | labels | what |", "|---|---|---|---|"]
    for one in series:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.text} |")
    return "\n".join(lines) + "\n"


def _panels() -> str:
    lines = ["| panel | what it tells, and what to change |", "|---|---|"]
    for row, panels in ROWS.items():
        lines += [f"| {row}: {panel.title} | {panel.text} |" for panel in panels]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare contents")
    options = parser.parse_args(arguments)
    page = PAGE.read_text(encoding="utf-8")
    fresh = render(page)
    if not options.check:
        PAGE.write_text(fresh, encoding="utf-8")
    elif page != fresh:
        print(f"{PAGE} is stale: run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
