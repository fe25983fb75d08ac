"""`diffuspec batch`: answer the rows of a file, with a pipeline or a running endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from actors.settings import load_pipeline
from deploy.batches.command import Files, Interrupted, Report, answer_file
from deploy.batches.places import API_KEY_VARIABLE, at_address, in_process, needs_ray, on_ray
from deploy.batches.results import BatchStoppedError
from deploy.batches.run import Options
from deploy.batches.summary import summary_table
from deploy.options import PIPELINE, Config
from diffuspec.cli import options
from diffuspec.cli.command import EXIT_FAILURE, Command
from diffuspec.cli.display import stdout_console
from diffuspec.cli.parameters import NOTHING_GIVEN, Given
from diffuspec.core.errors import ConfigError
from diffuspec.core.params import SamplingParams, SpeculationParams

_MAX_CONCURRENCY = 4096
_ROWS_AT_AN_ADDRESS = 16  # rows in flight
_TIMEOUT_SECONDS = 600.0
_SHARD_BYTES = 4 * 2**20

HELP = """
Each line of the input is a row, in one of these forms:

\b
  {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
  {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}
  {"prompt": "Once upon a time"}
  {"question_id": 81, "category": "writing", "turns": ["...", "..."]}

The first is OpenAI's, with OpenAI's defaults. The last is Spec-Bench's: each turn is asked after
the answers to those before it. The sampling options are defaults of rows in the last three forms;
without options those are answered as by `diffuspec generate`.

Each line of the output is a result in the form of OpenAI's batch files, in the order in which rows
finish. A result is on disk before it counts: after a kill, a loss of power or Ctrl-C the same
command goes on where it was, and no row is missing or there twice.

For inputs beyond one reader there is --engine data: --input is a JSONL or Parquet file or a folder
of them, --output a folder that all nodes see, and parts that are whole are not answered again.

\b
  diffuspec batch --input in.jsonl --output out.jsonl
  diffuspec batch --input in.jsonl --output out.jsonl --address http://127.0.0.1:8000
  ray job submit --address http://127.0.0.1:8265 -- \\
    python -m deploy.batch --input /data/in.jsonl --output /data/out.jsonl

Exit codes: 0 every row has an answer; 1 some rows failed, and the output says why; 2 the batch
could not run, or not to its end; 130 and 143 after Ctrl-C and SIGTERM.
"""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_Input = Annotated[Path, typer.Option("--input", metavar="IN.jsonl", help="The input rows.")]
_Output = Annotated[
    Path,
    typer.Option(
        "--output",
        metavar="OUT.jsonl",
        help="The results; if the file exists, the batch is resumed.",
    ),
]
_Address = Annotated[
    str,
    typer.Option(
        metavar="URL|auto",
        help="A running OpenAI endpoint, such as http://127.0.0.1:8000; auto: the "
        "application that Ray Serve runs on this cluster. Default: start a pipeline for "
        "the batch.",
    ),
]
_Engine = Annotated[
    Literal["pipeline", "process", "data"] | None,
    typer.Option(
        help="Where to run without an address. pipeline (default): on the cluster that "
        "RAY_ADDRESS names, or else on a new local cluster; process: all roles in one "
        "process, without Ray; data: several pipelines through Ray Data, from and to "
        "folders of JSONL or Parquet."
    ),
]
_KeyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=f"The API key of the endpoint. Default: the variable {API_KEY_VARIABLE}.",
    ),
]
_Limit = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Answer only the first N rows.")
]
_Concurrency = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=_MAX_CONCURRENCY,
        help=f"Rows in flight. Default: {_ROWS_AT_AN_ADDRESS} at an address, else twice what the "
        "pipeline decodes at a time.",
    ),
]
_Patience = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        min=0,
        help="Rows wait while the service is busy or unreachable; the batch stops after this "
        "many seconds without an answer.",
    ),
]
_Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=1,
        help=f"Longest wait for one reply of --address. Default: {_TIMEOUT_SECONDS:g}.",
    ),
]
_Retry = Annotated[
    bool, typer.Option("--retry-failed", help="Retry the rows that failed in an earlier run.")
]
_DATA = "Large batches (--engine data)"
_Pipelines = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Number of pipelines that share the input. Default: 1.",
        rich_help_panel=_DATA,
    ),
]
_Format = Annotated[
    Literal["jsonl", "parquet"] | None,
    typer.Option(help="Format of the output. Default: jsonl.", rich_help_panel=_DATA),
]
_ShardBytes = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Size of the parts into which JSONL files are split; Parquet files are split into "
        f"their row groups. Default: {_SHARD_BYTES}.",
        rich_help_panel=_DATA,
    ),
]


@app.command(cls=Command, epilog=HELP)
@options.takes_sampling
@options.takes_speculation
def run(
    input: _Input,
    output: _Output,
    config: Config = None,
    address: _Address = "",
    engine: _Engine = None,
    api_key_file: _KeyFile = None,
    limit: _Limit = None,
    concurrency: _Concurrency = None,
    patience: _Patience = 600.0,
    timeout: _Timeout = None,
    retry_failed: _Retry = False,
    pipelines: _Pipelines = None,
    format: _Format = None,
    shard_bytes: _ShardBytes = None,
    sampling: Given = NOTHING_GIVEN,
    draft_length: options.DraftLength = None,
    speculation: Given = NOTHING_GIVEN,
) -> None:
    """Answer every row of a file, and write the results to another."""
    drafting = {**options.policy(draft_length), **speculation}
    SpeculationParams(**drafting)  # a wrong value is refused once, rather than in every row
    _check_effects(bool(address), "--address", timeout=timeout, api_key_file=api_key_file)
    large = {"pipelines": pipelines, "format": format, "shard_bytes": shard_bytes}
    _check_effects(engine == "data", "--engine data", **large)
    how = Options(concurrency, patience, _defaults(sampling), drafting)
    if engine == "data":
        if address or limit or retry_failed:
            raise ConfigError("--engine data takes no --address, --limit or --retry-failed")
        with needs_ray("--engine data", extra="data"):
            from deploy.batches.data.engine import LargeBatch, answer_folder

        batch = LargeBatch(
            input, output, format or "jsonl", pipelines or 1, shard_bytes or _SHARD_BYTES
        )
        _finish(answer_folder(batch, load_pipeline(config or PIPELINE), how), output)
        return
    if address:
        for name, value in (("config", config), ("engine", engine)):
            if value is not None:
                raise ConfigError(f"--{name} and --address exclude each other")
        num_rows = concurrency or _ROWS_AT_AN_ADDRESS
        place = at_address(address, api_key_file, num_rows, timeout or _TIMEOUT_SECONDS)
    else:
        pipeline = load_pipeline(config or PIPELINE)
        place = in_process(pipeline) if engine == "process" else on_ray(pipeline)
    files = Files(input, output, limit, retry_failed)
    _finish(answer_file(files, place, how, Console(stderr=True, highlight=False)), output)


def _check_effects(is_given: bool, needed: str, **values: object) -> None:
    """Raise ConfigError if an option is given that has no effect without another one."""
    for name, value in values.items():
        if value is not None and not is_given:
            raise ConfigError(f"--{name.replace('_', '-')} has no effect without {needed}")


def _defaults(sampling: Given) -> dict[str, Any]:
    """Return the default parameters of rows. Raises InvalidRequestError."""
    params = SamplingParams(**sampling)
    usual = {"temperature": params.temperature, "max_tokens": params.max_tokens}
    return {**usual, **sampling}


def _finish(report: Report, output: Path) -> None:
    """Print the summary, and exit with the report's code."""
    counts, problem = report.counts, report.problem
    if counts.num_done:
        stdout_console().print(summary_table(counts, report.seconds))
    if problem is None:
        typer.echo(f"written: {output}")
        if counts.num_failed:
            raise typer.Exit(EXIT_FAILURE)
        return
    state = f"{counts.state} are in {output}"
    if isinstance(problem, Interrupted | KeyboardInterrupt):
        typer.echo(f"interrupted: {state}; the same command goes on from there", err=True)
        # typer.Exit(130) would be reported as a second interrupt.
        raise SystemExit(getattr(problem, "exit_code", Interrupted.CTRL_C))
    reason = str(problem)
    if isinstance(problem, OSError):
        reason = f"cannot write {output}: {problem.strerror or problem}"
    hint = f" ({state}; the same command goes on from there)" if counts.num_done else ""
    raise BatchStoppedError(f"{reason}{hint}") from problem


if __name__ == "__main__":
    app()
