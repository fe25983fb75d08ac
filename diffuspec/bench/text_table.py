"""A table of numbers, on a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

_GAP, _EDGES = 3, 2  # columns of a terminal between two columns, and beside all of them


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table whose first column is text and whose others are numbers."""

    title: str
    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]

    def to_rich(self, width: int = 80) -> list[Table]:
        """Return the table, split into several below each other if it is too wide.

        Headings are wrapped, cells never: half a number would be another number.
        """
        return [self._part(group) for group in self._groups(width)]

    def to_markdown(self) -> str:
        rule = ("---", *("---:" for _ in self.columns[1:]))
        lines = [f"| {' | '.join(row)} |" for row in (self.columns, rule, *self.cells)]
        return "\n".join([f"**{self.title}**", "", *lines, ""])

    def _groups(self, width: int) -> Iterator[list[int]]:
        """Yield the columns of each part, always with the first column."""
        widths = [self._width(number) for number in range(len(self.columns))]
        group, taken = [0], _EDGES + widths[0]
        for number in range(1, len(self.columns)):
            if len(group) > 1 and taken + _GAP + widths[number] > width:
                yield group
                group, taken = [0], _EDGES + widths[0]
            group.append(number)
            taken += _GAP + widths[number]
        yield group

    def _width(self, number: int) -> int:
        cells = [row[number] for row in self.cells]
        return max(map(len, [*cells, *_heading(self.columns[number]).split("\n")]))

    def _part(self, numbers: Sequence[int]) -> Table:
        title = self.title if numbers[:2] in ([0], [0, 1]) else f"{self.title} (continued)"
        table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
        for number in numbers:
            heading = _heading(self.columns[number])
            table.add_column(heading, justify="right" if number else "left", no_wrap=True)
        for row in self.cells:
            table.add_row(*(row[number] for number in numbers))
        return table


def _heading(column: str) -> str:
    return column.replace(" " if " " in column else "_", "\n")
