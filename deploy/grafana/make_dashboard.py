"""Makes dashboard.json from the rows in panels.py: `python -m deploy.grafana.make_dashboard`.

Import the file in Grafana, which then asks for a Prometheus data source. The variables job and
pipeline select what is shown.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploy.grafana.panels import ROWS, Panel

PATH = Path(__file__).with_name("dashboard.json")

_SOURCE = {"type": "prometheus", "uid": "${source}"}
_COLUMNS, _WIDTH, _HEIGHT = 3, 8, 8


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON model."""
    return {
        "uid": "diffuspec",
        "title": "diffuspec",
        "tags": ["diffuspec"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _panels(),
    }


def _variables() -> list[dict[str, Any]]:
    def choice(name: str, label: str, of: str, **options: Any) -> dict[str, Any]:
        query = f"label_values(diffuspec_num_requests_running{of}, {name})"
        about = {"type": "query", "datasource": _SOURCE, "refresh": 2, "sort": 1}
        return about | {"name": name, "label": label, "query": query, **options}

    every = {"includeAll": True, "multi": True, "allValue": ".*"}
    every["current"] = {"text": "All", "value": "$__all"}
    source = {"type": "datasource", "name": "source", "label": "Prometheus", "query": "prometheus"}
    return [
        source,
        choice("job", "Job", ""),
        choice("pipeline", "Pipeline", '{job="$job"}', **every),
    ]


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": y, "w": _COLUMNS * _WIDTH, "h": 1}
        panels.append({"type": "row", "title": title, "gridPos": place, "panels": []})
        for index, panel in enumerate(row):
            down, right = divmod(index, _COLUMNS)
            place = {"x": right * _WIDTH, "y": y + 1 + down * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_graph(panel, place))
        y += 1 + -(-len(row) // _COLUMNS) * _HEIGHT
    return [{"id": number, **panel} for number, panel in enumerate(panels, 1)]


def _graph(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    drawn = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": drawn},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": _targets(panel),
    }


def _targets(panel: Panel) -> list[dict[str, Any]]:
    return [
        {"refId": chr(65 + index), "expr": query, "legendFormat": legend, "datasource": _SOURCE}
        for index, (legend, query) in enumerate(panel.queries.items())
    ]


def text() -> str:
    """Return the file's content."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
