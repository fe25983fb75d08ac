"""`diffuspec plan`: how many GPUs a load needs, and whether drafts pay."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffuspec.cli import options
from diffuspec.cli.command import parse_numbers
from diffuspec.cli.parameters import takes_fields
from diffuspec.core.errors import ConfigError
from diffuspec.pairs import PAIRS, find_pair

if TYPE_CHECKING:
    from diffuspec.bench.planning.placements import Hardware, Models
    from diffuspec.bench.planning.plan import Arrival, Placement, Plan, Traffic

EXAMPLES = """[bold]Examples[/bold]

  diffuspec plan --target Qwen2.5-32B --drafter Dream-7B --gpu h200 --acceptance 6.99
  diffuspec plan --target Qwen2.5-32B --drafter Fast_dLLM_v2_1.5B --gpu h200 --acceptance 3.5 \\
      --requests-per-second 4 --prompt-tokens 800 --answer-tokens 300 --gpu-hour 3.5
  diffuspec plan record --pair smollm2 --out acceptance.jsonl
  diffuspec plan --pair smollm2 --acceptance acceptance.jsonl
"""

_GARBAGE_OBJECTS = 100_000  # objects that a simulation makes between two garbage collections
_MOST_ENGINES = 16  # engines that share a draft server by default
_MODELS, _LOAD, _HARDWARE = "Models", "Load", "Hardware"


def _option(panel: str, text: str, metavar: str, **limits: Any) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel=panel, **limits)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The options of the command, in the order of its help."""

    pair: Annotated[
        str | None, _option(_MODELS, "A pair on CPUs in place of --target.", "|".join(PAIRS))
    ] = None
    target: Annotated[
        str | None, _option(_MODELS, "Name of a model, or a directory with a config.json.", "NAME")
    ] = None
    drafter: Annotated[
        str | None, _option(_MODELS, "The same of the drafter. Default: no drafts.", "NAME")
    ] = None
    acceptance: Annotated[
        str | None,
        _option(
            _MODELS,
            "Tokens a step in drafts of 30 tokens, or a file of `diffuspec plan record`. "
            "Default: the pair's own recording.",
            "X|FILE",
        ),
    ] = None
    family: Annotated[
        str | None, _option(_MODELS, "Only the recorded answers of this task.", "NAME")
    ] = None
    gpu: Annotated[str, _option(_HARDWARE, "a100, h100, h200, l4, l40s or cpu.", "NAME")] = "h200"
    costs: Annotated[
        Path | None,
        _option(_HARDWARE, "Costs that `diffuspec bench --costs` has measured.", "FILE.json"),
    ] = None
    target_gpus: Annotated[
        int, _option(_HARDWARE, "GPUs over which the target is split.", "N", min=1, max=64)
    ] = 1
    drafter_gpus: Annotated[
        int, _option(_HARDWARE, "Drafters, each on its own GPU.", "N", min=1, max=64)
    ] = 1
    engines: Annotated[
        int,
        _option(
            _HARDWARE,
            "Also plan for N engines of another make, such as vLLM, with a draft server on each "
            "--drafter-gpus.",
            "N",
            min=0,
            max=256,
        ),
    ] = 0
    network_ms: Annotated[
        float, _option(_HARDWARE, "One way between target and drafter.", "X", min=0, max=1000)
    ] = 0.15
    gpu_hour: Annotated[
        float | None, _option(_HARDWARE, "Price of an hour of a GPU.", "X", min=0)
    ] = None
    requests_per_second: Annotated[
        float | None,
        _option(_LOAD, "Requests that arrive at random times.", "R", min=1e-3, max=1e4),
    ] = None
    at_a_time: Annotated[
        str, _option(_LOAD, "Numbers of concurrent requests to compare.", "N,N,...")
    ] = "1,2,4,8,16,32,64"
    prompt_tokens: Annotated[
        int, _option(_LOAD, "Mean tokens of a prompt.", "N", min=2, max=65_536)
    ] = 512
    answer_tokens: Annotated[
        int, _option(_LOAD, "Mean tokens of an answer.", "N", min=2, max=8192)
    ] = 256
    shared_tokens: Annotated[
        int, _option(_LOAD, "Leading tokens that all prompts share.", "N", min=0)
    ] = 0
    trace: Annotated[
        Path | None,
        _option(
            _LOAD,
            "Requests as lines of JSON with at (seconds), prompt_tokens and answer_tokens, "
            "in place of random ones.",
            "FILE.jsonl",
        ),
    ] = None
    max_sequences: Annotated[
        int, _option(_LOAD, "Requests that one pipeline decodes at a time.", "N", min=1, max=128)
    ] = 128
    threads: Annotated[int, _option(_HARDWARE, "Processes that simulate.", "N", min=1)] = 2
    out: Annotated[Path, typer.Option(help="Folder for results.", metavar="DIR")] = Path(
        "runs/plan"
    )


@takes_fields("chosen", Chosen)
def run(context: typer.Context, chosen: Chosen) -> None:
    """Compare a target without drafts, with a drafter on its GPU, and with one on its own.

    The scheduler decodes in simulated time. Prints tables, advice, and what deploys it.
    """
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console

    from diffuspec.bench.output import make_folder
    from diffuspec.bench.planning.placements import Hardware, find_models
    from diffuspec.bench.planning.plan_report import PlanReport, plot_plan
    from diffuspec.bench.report import write_report

    if (chosen.pair is None) == (chosen.target is None):
        raise ConfigError("give --target, the model to plan for, or --pair")
    least, most = chosen.drafter_gpus, _MOST_ENGINES * chosen.drafter_gpus
    if chosen.engines and not least <= chosen.engines <= most:
        raise ConfigError(
            f"--engines must be 0, or from {least} to {most}: from 1 to {_MOST_ENGINES} of each "
            f"draft server; got {chosen.engines}"
        )
    pair = chosen.pair
    if pair is not None:
        find_pair(pair, "--pair").load_config()  # what deploys it has to be there
    hardware = Hardware(
        device="cpu" if pair else chosen.gpu.lower(),
        costs=chosen.costs,
        num_target_gpus=chosen.target_gpus,
        num_drafter_gpus=chosen.drafter_gpus,
        num_engines=chosen.engines,
        network_seconds=chosen.network_ms / 1e3,
    )
    device = hardware.read()
    models = find_models(device, hardware, pair or chosen.target or "", pair or chosen.drafter)
    traffic = _traffic(chosen, pair, models)
    make_folder(chosen.out)
    plan = _simulated(chosen, hardware, models, traffic)
    report, console = PlanReport(plan, chosen.gpu_hour), Console()
    plot_plan(plan, chosen.out / "plan.png")
    lines = [*report.warnings(), *models.origins, "", report.advice()]
    commands = _commands(report.advised().name, plan, hardware, models, chosen)
    write_report(chosen.out, "plan", report.to_json(), report.tables(), lines, console)
    typer.echo("\n".join(commands))  # in whole lines, to be copied


def _traffic(chosen: Chosen, pair: str | None, models: Models) -> Traffic:
    """Return the requests, and what their drafts have accepted. Raises ConfigError."""
    from diffuspec.bench.planning.acceptance import read_recording, typed_regime
    from diffuspec.bench.planning.costs import SHIPPED
    from diffuspec.bench.planning.plan import Traffic

    given = chosen.acceptance
    if given is None and pair is not None:
        given = str(SHIPPED / f"{pair}.jsonl")
    if given is None and models.drafter is not None:
        raise ConfigError("--acceptance is missing: a number such as 3.5, or a recording")
    try:
        typed: float | None = float(given or 1)
    except ValueError:
        typed = None
    recording = None if typed is not None else read_recording(Path(given or ""))
    if recording is not None:
        recording = recording.of_family(chosen.family)
    elif chosen.family is not None:
        raise ConfigError("--family has no effect on an acceptance that is a number")
    if chosen.shared_tokens >= chosen.prompt_tokens // 2:
        raise ConfigError("--shared-tokens must be below half of --prompt-tokens")
    regime = replace(
        typed_regime(1.0 if typed is None else typed),
        prompt_tokens=_around(chosen.prompt_tokens),
        answer_tokens=_around(chosen.answer_tokens),
    )
    trace = () if chosen.trace is None else _read_trace(chosen.trace)
    return Traffic(regime, recording, chosen.shared_tokens, trace)


def _around(mean: int) -> tuple[int, int]:
    """Return the range of lengths with this mean."""
    least = max(mean // 2, 2)
    return least, 2 * mean - least


def _read_trace(path: Path) -> tuple[Arrival, ...]:
    """Read at most 900 requests. Raises ConfigError."""
    from diffuspec.bench.planning.plan import MOST_REQUESTS, Arrival

    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()[:MOST_REQUESTS]]
        trace = [
            Arrival(float(r["at"]), int(r["prompt_tokens"]), int(r["answer_tokens"])) for r in rows
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: no trace of requests: {error!r}") from error
    is_right = all(
        0 <= arrival.at < 1e6
        and 2 <= arrival.prompt_tokens <= 65_536
        and 2 <= arrival.answer_tokens <= 8192
        for arrival in trace
    )
    if not trace or not is_right or trace != sorted(trace, key=lambda arrival: arrival.at):
        raise ConfigError(f"{path}: times must rise from 0, tokens be from 2 to 65,536 and 8,192")
    return tuple(replace(arrival, at=arrival.at - trace[0].at) for arrival in trace)


def _simulated(chosen: Chosen, hardware: Hardware, models: Models, traffic: Traffic) -> Plan:
    import gc
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from diffuspec.bench.output import progress
    from diffuspec.bench.planning.placements import make_placements
    from diffuspec.bench.planning.plan import make_plan

    tokens = sum(traffic.mean_tokens)
    placements = make_placements(hardware.read(), hardware, models, tokens, chosen.max_sequences)
    most = min(placement.max_sequences for placement in placements)
    loads = [load for load in parse_numbers("--at-a-time", chosen.at_a_time, int) if load <= most]
    if not loads:
        raise ConfigError(f"--at-a-time must have a number up to {most}, the requests that fit")
    has_opened = traffic.trace or chosen.requests_per_second
    num_points = len(placements) * (len(loads) + bool(has_opened))
    with (
        progress(num_points) as advance,
        ProcessPoolExecutor(
            chosen.threads,
            get_context("spawn"),
            gc.set_threshold,  # the usual one costs a tenth of a simulation's time
            (_GARBAGE_OBJECTS,),
        ) as executor,
    ):
        return make_plan(placements, traffic, loads, chosen.requests_per_second, executor, advance)


def _commands(
    name: str, plan: Plan, hardware: Hardware, models: Models, chosen: Chosen
) -> list[str]:
    """Return what deploys a placement, and what checks it."""
    placement = next(placement for placement in plan.placements if placement.name == name)
    if placement.num_engines:
        deploy = _server_commands(models, chosen)
    else:
        deploy = [_serve_command(placement, hardware, models, chosen)]
    rate = f" --rates {chosen.requests_per_second:g}" if chosen.requests_per_second else ""
    check = f"Check it:  diffuspec load http://127.0.0.1:8000 --at-a-time 1,8{rate}"
    return [*(f"Deploy it: {command}" for command in deploy), check]


def _serve_command(placement: Placement, hardware: Hardware, models: Models, chosen: Chosen) -> str:
    """Write the configuration of a placement, checked by the loader; return what deploys it."""
    from diffuspec.bench.planning.placements import as_yaml, deployment
    from diffuspec.pairs import parse_config

    data = deployment(placement, hardware, models, chosen.pair)
    parse_config(data.get("engine", data))
    path = chosen.out / "deploy.yaml"
    path.write_text(as_yaml(data), encoding="utf-8")
    return f"diffuspec {'ray serve' if 'placement' in data else 'serve'} --config {path}"


def _server_commands(models: Models, chosen: Chosen) -> list[str]:
    """Return what starts a draft server, and an engine of another make with its drafts."""
    from diffuspec.bench.planning.served import MAX_DRAFT_TOKENS

    drafter = f"--drafter {models.drafter} --tokenizer {models.target}"
    proposer = {
        "model": "diffuspec_client.vllm.Proposer",
        "num_speculative_tokens": MAX_DRAFT_TOKENS,
    }
    ranks = f"--tensor-parallel-size {chosen.target_gpus} " if chosen.target_gpus > 1 else ""
    return [
        f"diffuspec draft-server {f'--pair {chosen.pair}' if chosen.pair else drafter}",
        f"vllm serve {'MODEL' if chosen.pair else models.target} {ranks}"
        f"--speculative-config '{json.dumps(proposer)}'",
    ]


Answers = Annotated[
    Path | None,
    typer.Option(
        help="Answers as lines of JSON: prompt_token_ids and token_ids, or messages (or prompt) "
        "and text; family. Default: the pair answers its own questions.",
        metavar="FILE.jsonl",
    ),
]
RecordOut = Annotated[Path, typer.Option(help="The file to write.", metavar="FILE.jsonl")]


def record(
    pair: Annotated[str | None, options.model("Drafter of a pair.", "|".join(PAIRS))] = None,
    drafter: Annotated[Path | None, options.model("The model that drafts.", "DIR")] = None,
    kind: Annotated[
        str | None, options.model("What drafts: diffuspec, sps, pld, samd.", "KIND")
    ] = None,
    ngram: Annotated[Path | None, options.model("KenLM model over token ids.", "FILE")] = None,
    tokenizer: Annotated[
        Path | None, options.model("Directory with the target's tokenizer.", "DIR")
    ] = None,
    answers: Answers = None,
    limit: options.Limit = None,
    max_tokens: options.MaxTokens = 96,
    out: RecordOut = Path("acceptance.jsonl"),
) -> None:
    """Replay a drafter over recorded answers, and store what would have been accepted.

    The drafter works from tokens alone: no target is needed.
    """
    from diffuspec.bench.record import record_file

    given: dict[str, Any] = {} if pair is None else {"preset": pair}
    if drafter is not None or kind is not None:
        given["drafter"] = {"kind": kind or "diffuspec"} | ({"path": drafter} if drafter else {})
    if ngram is not None:
        given["search"] = {"ngram": ngram}
    if tokenizer is not None:
        given["tokenizer"] = tokenizer
    if not given:
        raise ConfigError("what drafts is missing: give --pair, or --drafter and --tokenizer")
    length = asyncio.run(record_file(given, answers, limit, max_tokens, out))
    typer.echo(f"Written to {out}: {length:.2f} tokens a step with the widest drafts")
