"""`python -m benchmarks.studies.virtual_time`: the coordinator on simulated machines.

The real coordinator decodes in virtual time: the roles' calls take as long as on a given machine,
and drafts are right as often as the regime says. Default speculation is compared with no
speculation, with fixed draft lengths, and with an oracle: the best of these static plans for the
cell. A cell gives the same results on every computer.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from benchmarks.studies.virtual_time_cells import (
    LOADS,
    SYSTEMS,
    Cell,
    CellRow,
    measure,
)
from benchmarks.studies.virtual_time_machines import MACHINES
from benchmarks.studies.virtual_time_regimes import REGIMES
from benchmarks.studies.virtual_time_results import (
    ResultsFile,
    comparison_tables,
    rates_tables,
    read_rows,
)
from diffuspec.bench.output import progress
from diffuspec.bench.report import print_tables
from diffuspec.cli.command import Command
from diffuspec.core.errors import ConfigError

T = TypeVar("T", str, int)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def study(
    cells: Sequence[Cell],
    systems: Sequence[str],
    num_processes: int = 1,
    on_cell: Callable[[Cell, list[CellRow]], None] = lambda *_: None,
) -> list[CellRow]:
    """Return the rows of all cells. `on_cell` is called with each cell's rows as it ends."""
    rows: list[CellRow] = []
    for cell, found in _measured(cells, systems, num_processes):
        rows += found
        on_cell(cell, found)
    return rows


def _measured(
    cells: Sequence[Cell], systems: Sequence[str], num_processes: int
) -> Iterator[tuple[Cell, list[CellRow]]]:
    if num_processes == 1:
        for cell in cells:
            yield cell, measure(cell, systems)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context) as executor:
        # The largest first, so that no process is left with a large one at the end.
        order = sorted(cells, key=lambda cell: cell.load, reverse=True)
        calls = {executor.submit(measure, cell, systems): cell for cell in order}
        for call in as_completed(calls):
            yield calls[call], call.result()


def _chosen(name: str, given: Sequence[T] | None, known: Sequence[T]) -> list[T]:
    """Return the given values in the order of `known`; all known ones if none are given."""
    if wrong := [one for one in given or () if one not in known]:
        names = ", ".join(map(str, known))
        raise typer.BadParameter(f"must be one of {names}, got {wrong[0]}", param_hint=name)
    return [one for one in known if not given or one in given]


@app.command(cls=Command)
def main(
    machine: Annotated[
        list[str] | None, typer.Option(help="Machine to simulate; default: all.")
    ] = None,
    regime: Annotated[
        list[str] | None, typer.Option(help="Kind of drafts to simulate; default: all.")
    ] = None,
    load: Annotated[list[int] | None, typer.Option(help="Number of concurrent requests.")] = None,
    system: Annotated[
        list[str] | None,
        typer.Option(help="System to measure: default, off, fixed or oracle; default: all."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON file into which the results are merged.")
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            min=1, help="Number of cells measured in parallel.", show_default="processors"
        ),
    ] = os.cpu_count() or 1,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="OLD NEW", help="Two result files to compare; nothing is measured."),
    ] = None,
) -> None:
    """Decode on simulated machines, in virtual time, and print tokens per second."""
    if compare is not None:
        try:
            tables = comparison_tables(*map(read_rows, compare))
        except ConfigError as error:
            raise typer.BadParameter(str(error), param_hint="--compare") from error
        print_tables(tables, [], Console())
        return
    systems = _chosen("--system", system, SYSTEMS)
    cells = [
        Cell(*place)
        for place in itertools.product(
            _chosen("--machine", machine, tuple(MACHINES)),
            _chosen("--regime", regime, tuple(REGIMES)),
            _chosen("--load", load, LOADS),
        )
    ]
    results = None if out is None else ResultsFile(out)
    with progress(len(cells)) as advance:

        def keep(cell: Cell, rows: list[CellRow]) -> None:
            if results is not None:
                results.add(rows)
            advance(str(cell))

        rows = study(cells, systems, processes, keep)
    print_tables(rates_tables(rows), [], Console())


if __name__ == "__main__":
    app()
