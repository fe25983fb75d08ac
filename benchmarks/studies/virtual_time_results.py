"""Results of the study: stored in a JSON file, and compared as tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import TypeAlias

from benchmarks.studies.virtual_time_cells import DEFAULT, OFF, ORACLE, CellRow
from benchmarks.studies.virtual_time_machines import MACHINES
from benchmarks.studies.virtual_time_regimes import REGIMES
from diffuspec.bench.text_table import TextTable
from diffuspec.core.errors import ConfigError

_Place: TypeAlias = tuple[str, str, int]  # machine, regime, load
_RATIOS = {"new/ old": 0.97, "new/ off": 0.97, "new/ oracle": 0.9}  # lower ratios are marked
_FIRST_TOKENS = "first token"  # time of `new` divided by that of `off`


class ResultsFile:
    """Rows in a JSON file; a row replaces an earlier one of the same system and cell."""

    def __init__(self, path: Path) -> None:
        """Read the rows in the file, if it exists. Raises ConfigError."""
        self._path = path
        self._rows = {_key(row): row for row in read_rows(path)} if path.exists() else {}

    def add(self, rows: Iterable[CellRow]) -> None:
        self._rows.update({_key(row): row for row in rows})
        lines = [json.dumps(asdict(row)) for row in self._rows.values()]
        self._path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def _key(row: CellRow) -> tuple[str, str, int, str]:
    return row.machine, row.regime, row.load, row.system


def read_rows(path: Path) -> list[CellRow]:
    """Return the rows of a file. Raises ConfigError."""
    try:
        return [CellRow(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"cannot read results from {path}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The rows of one machine, regime and load; None where a row is missing."""

    place: _Place
    old: CellRow | None
    new: CellRow
    off: CellRow | None
    oracle: CellRow | None

    @property
    def ratios(self) -> dict[str, float]:
        """The known ratios, by the names of _RATIOS and _FIRST_TOKENS."""
        others = zip(_RATIOS, (self.old, self.off, self.oracle), strict=True)
        rate = self.new.tokens_per_second
        found = {name: rate / row.tokens_per_second for name, row in others if row is not None}
        if self.off is not None:
            found[_FIRST_TOKENS] = self.new.first_token_p50 / self.off.first_token_p50
        return found


def comparison_tables(old: Sequence[CellRow], new: Sequence[CellRow]) -> list[TextTable]:
    """Return a table for each machine, and one of the worst and mean ratios.

    The rows of DEFAULT are compared; OFF and ORACLE are those in `new`, or else in `old`.
    """
    found = _comparisons(old, new)
    machines = [name for name in MACHINES if any(one.place[0] == name for one in found)]
    by_machine = {name: [one for one in found if one.place[0] == name] for name in machines}
    tables = [_machine_table(name, own) for name, own in by_machine.items()]
    return [*tables, _summary({**by_machine, "all": found})]


def _comparisons(old: Sequence[CellRow], new: Sequence[CellRow]) -> list[_Comparison]:
    before, after = _by_place(old), _by_place(new)

    def compared() -> Iterator[_Comparison]:
        for place in sorted(after, key=_order):
            was, here = before.get(place, {}), after[place]
            if DEFAULT in here:
                known = was | here
                others = known.get(OFF), known.get(ORACLE)
                yield _Comparison(place, was.get(DEFAULT), here[DEFAULT], *others)

    return list(compared())


def _by_place(rows: Iterable[CellRow]) -> dict[_Place, dict[str, CellRow]]:
    found: dict[_Place, dict[str, CellRow]] = {}
    for row in rows:
        found.setdefault((row.machine, row.regime, row.load), {})[row.system] = row
    return found


def _order(place: _Place) -> tuple[int, int, int]:
    machine, regime, load = place
    return list(MACHINES).index(machine), list(REGIMES).index(regime), load


def _machine_table(machine: str, comparisons: Sequence[_Comparison]) -> TextTable:
    columns = ("regime, load", "old", "new", "off", "oracle", *_RATIOS, _FIRST_TOKENS)
    cells = []
    for one in comparisons:
        _, regime, load = one.place
        rates = [_rate(row) for row in (one.old, one.new, one.off, one.oracle)]
        ratios = [_ratio(one.ratios.get(name), name, 2) for name in columns[5:]]
        cells.append((f"{regime} {load}", *rates, *ratios))
    title = f"{machine}: tokens/s, and the median first token against off"
    return TextTable(title, columns, tuple(cells))


def _rate(row: CellRow | None) -> str:
    return "" if row is None else _short(row.tokens_per_second)


def _short(figure: float) -> str:
    return f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}"


def _ratio(ratio: float | None, name: str, num_decimals: int) -> str:
    if ratio is None:
        return ""
    return f"{'*' if _is_marked(ratio, name) else ''}{ratio:.{num_decimals}f}"


def _is_marked(ratio: float, name: str) -> bool:
    return ratio < _RATIOS.get(name, 0.0)


def _summary(groups: Mapping[str, Sequence[_Comparison]]) -> TextTable:
    cells = [
        (f"{group}, {name}", *figures, place.removeprefix(f"{group} "))
        for group, comparisons in groups.items()
        for name in (*_RATIOS, _FIRST_TOKENS)
        for *figures, place in _summarised(comparisons, name)
    ]
    columns = ("ratio", "worst", "geometric mean", "marked", "worst in")
    return TextTable("Worst and geometric mean of the ratios", columns, tuple(cells))


def _summarised(comparisons: Sequence[_Comparison], name: str) -> list[tuple[str, ...]]:
    """Return the worst ratio, the mean, the number of marked ones and the cell of the worst.

    The list is empty if no such ratio is known.
    """
    found = {one.place: one.ratios[name] for one in comparisons if name in one.ratios}
    if not found:
        return []
    worst = (max if name == _FIRST_TOKENS else min)(found, key=found.__getitem__)
    num_marked = sum(_is_marked(ratio, name) for ratio in found.values())
    mean = f"{geometric_mean(found.values()):.3f}"
    return [(_ratio(found[worst], name, 3), mean, str(num_marked), " ".join(map(str, worst)))]


def rates_tables(rows: Sequence[CellRow]) -> list[TextTable]:
    """Return two tables for each machine: tokens per second and times to the first token."""
    tables = []
    for machine in dict.fromkeys(row.machine for row in rows):
        own = [row for row in rows if row.machine == machine]
        tables.append(_table_of(f"{machine}: tokens/s", own, lambda row: row.tokens_per_second))
        title = f"{machine}: median first token, ms"
        tables.append(_table_of(title, own, lambda row: 1000 * row.first_token_p50))
    return tables


def _table_of(title: str, rows: Sequence[CellRow], figure: Callable[[CellRow], float]) -> TextTable:
    places, systems = _by_place(rows), list(dict.fromkeys(row.system for row in rows))
    cells = [
        (f"{place[1]} {place[2]}", *(_short(figure(places[place][name])) for name in systems))
        for place in sorted(places, key=_order)
    ]
    return TextTable(title, ("regime, load", *systems), tuple(cells))
