"""`diffuspec bench`: the benchmark, from options to its exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffuspec.cli import options

EXAMPLES = """[bold]Examples[/bold]

\b
  diffuspec bench                     [dim]# the embedded pair on all its questions[/dim]
  diffuspec bench --limit 2 --systems plain,cost_aware_best_first
  diffuspec bench --ablations --out runs/ablations
  diffuspec bench --ahead --limit 3
  diffuspec bench --target DIR --drafter DIR --questions spec_bench.jsonl
"""

Drafter = Annotated[Path | None, options.model("The diffusion LM that drafts.", "DIR")]
Ngram = Annotated[Path | None, options.model("KenLM model over token ids.", "FILE")]
Questions = Annotated[
    Path | None,
    typer.Option(help="Question file in Spec-Bench's format.", metavar="FILE.jsonl"),
]
Limit = Annotated[int | None, typer.Option(help="Questions per family. Default: all.")]
MaxTokens = Annotated[int, typer.Option(help="Longest answer.")]
Repeats = Annotated[int, typer.Option(help="Times every question is answered.")]
Out = Annotated[Path, typer.Option(help="Folder for results.json, tables and plots.")]
Ablations = Annotated[
    bool, typer.Option("--ablations", help="The paper's Tables 2, 4, 5 and Fig. 7 instead.")
]
Ahead = Annotated[
    bool, typer.Option("--ahead", help="What drafting ahead of the verdict buys, instead.")
]
Systems = Annotated[
    str | None,
    typer.Option(help="What to compare, separated by commas. Default: all.", metavar="NAME,NAME"),
]


def run(
    target: options.Target = None,
    drafter: Drafter = None,
    ngram: Ngram = None,
    questions: Questions = None,
    limit: Limit = None,
    max_tokens: MaxTokens = 256,
    repeats: Repeats = 1,
    systems: Systems = None,
    ablations: Ablations = False,
    ahead: Ahead = False,
    threads: options.Threads = None,
    out: Out = Path("runs/bench"),
    trace: options.Trace = None,
) -> None:
    """Measure plain decoding, DiffuSpec and transformers on the same questions, interleaved."""
    from diffuspec.bench.main import BenchOptions, run_benchmark

    code = run_benchmark(
        BenchOptions(
            target=target,
            drafter=drafter,
            ngram=ngram,
            questions=questions,
            limit=limit,
            max_tokens=max_tokens,
            repeats=repeats,
            threads=threads,
            out=out,
            ablations=ablations,
            ahead=ahead,
            trace=trace,
            systems=tuple(name.strip() for name in systems.split(",")) if systems else (),
        )
    )
    raise typer.Exit(code)
