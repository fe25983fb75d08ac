"""`diffuspec bench`: the benchmark."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from diffuspec.cli import options
from diffuspec.cli.parameters import takes_fields

EXAMPLES = """[bold]Examples[/bold]

  diffuspec bench                     [dim]# the embedded pair on all its questions[/dim]
  diffuspec bench --limit 2 --systems plain,cost_aware_best_first
  diffuspec bench --suite spec-bench --limit 4 --out runs/table_1
  diffuspec bench --ablations --out runs/ablations
  diffuspec bench --ablations --pair smollm2 --questions spec_bench.jsonl --limit 1 --max-tokens 48
  diffuspec bench --pre-drafts --limit 3
  diffuspec bench --load --max-tokens 64 --repeats 3
  diffuspec bench --costs --out runs/costs
  diffuspec bench --sizes Qwen2.5-32B --drafter-sizes Dream-7B --profile --out runs/sizes
  diffuspec bench --pair smollm2 --questions spec_bench.jsonl --limit 10 --max-tokens 128
  diffuspec bench --target DIR --drafter DIR --questions spec_bench.jsonl
"""

Target = Annotated[Path | None, options.model("The verified model. Default: the pair's.", "DIR")]
Drafter = Annotated[Path | None, options.model("The diffusion LM that drafts.", "DIR")]
Ngram = Annotated[Path | None, options.model("KenLM model over token ids.", "FILE")]
Repeats = Annotated[
    int,
    typer.Option(
        help="Number of times each question is asked; the median is reported.", metavar="N"
    ),
]
Out = Annotated[
    Path, typer.Option(help="Folder for JSON results, tables and plots.", metavar="DIR")
]
Ablations = Annotated[
    bool, typer.Option("--ablations", help="Run the paper's ablations: Tables 2, 4, 5 and Fig. 7.")
]
PreDrafts = Annotated[
    bool,
    typer.Option("--pre-drafts", help="Measure the hit rate and the speed-up of pre-drafting."),
]
Load = Annotated[
    bool,
    typer.Option(
        "--load",
        help="Measure speed with 1 to 32 concurrent requests, with speculation on and off.",
    ),
]
Costs = Annotated[
    bool,
    typer.Option(
        "--costs", help="Measure calls of target and drafter by size: costs for `diffuspec plan`."
    ),
]
Sizes = Annotated[
    Path | None,
    typer.Option(
        help="The same for a target of these sizes, whose weights are drawn: a config.json, or "
        "[bold]Qwen2.5-32B[/bold], [bold]SmolLM2-135M[/bold].",
        metavar="CONFIG",
    ),
]
DrafterSizes = Annotated[
    Path | None,
    typer.Option(
        help="With --sizes: those of its drafter, or [bold]Dream-7B[/bold], "
        "[bold]Fast_dLLM_v2_1.5B[/bold].",
        metavar="CONFIG",
    ),
]
Profile = Annotated[
    bool, typer.Option("--profile", help="With --sizes: print kernels by the time that they take.")
]
Systems = Annotated[
    str | None,
    typer.Option(help="Systems to compare, separated by commas. Default: all.", metavar="NAMES"),
]
Suite = Annotated[
    str | None,
    typer.Option(
        help="[bold]spec-bench[/bold]: those systems of the paper's Table 1 for which the "
        "target has a drafter, in tables with the paper's figures.",
        metavar="NAME",
    ),
]
WholeDrafts = Annotated[
    bool,
    typer.Option(
        "--whole-drafts",
        help="Verify whole drafts, as the papers do, not only the part that pays.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Continue with the answers that an interrupted run left in --out."
    ),
]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The options of the command, in the order of its help."""

    pair: options.PairName = None
    target: Target = None
    drafter: Drafter = None
    ngram: Ngram = None
    dtype: options.Dtype = None
    questions: options.Questions = None
    limit: options.Limit = None
    max_tokens: options.MaxTokens = 256
    repeats: Repeats = 1
    suite: Suite = None
    systems: Systems = None
    whole_drafts: WholeDrafts = False
    ablations: Ablations = False
    pre_drafts: PreDrafts = False
    load: Load = False
    costs: Costs = False
    sizes: Sizes = None
    drafter_sizes: DrafterSizes = None
    profile: Profile = False
    rounds: options.Rounds = 6
    threads: options.Threads = None
    out: Out = Path("runs/bench")
    resume: Resume = False
    trace: options.Trace = None


@takes_fields("chosen", Chosen)
def run(chosen: Chosen) -> None:
    """Compare plain decoding, DiffuSpec and transformers on the same questions.

    The systems take turns. Exits with 1 if tokens differ.
    """
    from diffuspec.bench.options import BenchOptions

    given = {name: value for name, value in asdict(chosen).items() if value is not None}
    if chosen.systems is not None:
        given["systems"] = tuple(name.strip() for name in chosen.systems.split(","))
    checked = BenchOptions(**given)
    # takes seconds, so wrong options are refused first
    from diffuspec.bench.main import run_benchmark

    raise typer.Exit(run_benchmark(checked))
