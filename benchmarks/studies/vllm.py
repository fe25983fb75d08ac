"""`python -m benchmarks.studies.vllm`: vLLM with the drafts of a draft server, and without.

vLLM runs in its own environment (`make vllm` creates it) on the first processor, the draft server
on the last. All systems are loaded at the same time and answer each question in turns, so that
changes in the machine's speed affect all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from benchmarks.studies.json_worker import JsonWorker, started
from benchmarks.studies.vllm_prefix_hits import Chats, prefix_hits
from diffuspec.bench.questions import first_per_family, load_questions, rotated
from diffuspec.bench.report import print_tables
from diffuspec.bench.text_table import TextTable
from diffuspec.cli.command import Command, parse_numbers
from diffuspec.core.errors import ConfigError
from diffuspec.pairs import smollm2
from diffuspec.text.tokenizer import load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
WORKER = ROOT / "clients" / "bench" / "vllm_worker.py"
SPECULATIVE: dict[str, dict[str, object] | None] = {
    "plain": None,
    "ngram": {
        "method": "ngram",
        "num_speculative_tokens": 8,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 1,
    },
    "suffix": {"method": "suffix", "num_speculative_tokens": 16},
    "diffuspec": {"model": "diffuspec_client.vllm.Proposer", "num_speculative_tokens": 12},
}
# of model runner V2, where our plug-in takes the place of the n-grams
SPECULATIVE_V2: dict[str, dict[str, object] | None] = {
    "plain": None,
    "diffuspec": {
        "method": "ngram_gpu",
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 1,
    },
}
_MAX_PROMPT_TOKENS = 1600

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass
class Sums:
    """Totals of one system under one load."""

    num_tokens: int = 0
    seconds: float = 0.0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted: int = 0
    answers: list[list[int]] = field(default_factory=list)

    def add(self, answer: dict[str, Any]) -> None:
        self.answers += answer["tokens"]
        self.num_tokens += sum([len(one) for one in answer["tokens"]])
        self.seconds += answer["seconds"]
        counts = answer["counts"]
        self.num_drafts += counts.get("num_drafts", 0)
        self.num_draft_tokens += counts.get("num_draft_tokens", 0)
        self.num_accepted += counts.get("num_accepted_tokens", 0)

    @property
    def acceptance(self) -> float:
        """Tokens per step of a request."""
        return self.num_tokens / max(self.num_tokens - self.num_accepted, 1)

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


def vllm(
    model: Path,
    dtype: str,
    max_sequences: int,
    system: str,
    server: str,
    log: Path,
    python: Path = PYTHON,
    deadline_seconds: float = 0.25,
    is_compiled: bool = True,
    is_v2: bool = False,
    settings: Mapping[str, object] | None = None,
) -> AbstractContextManager[JsonWorker]:
    """Start vLLM with the drafts of one system. Raises ConfigError.

    is_compiled: whether vLLM compiles the model, which takes a minute on one core. is_v2: whether
    its model runner V2 is used, whose kernels are interpreted; plain and diffuspec only. settings:
    further arguments of vLLM's `LLM`; by default its prefix cache is off.
    """
    if not python.exists():
        raise ConfigError(f"{python} is not there: run `make vllm` first")
    processors = sorted(os.sched_getaffinity(0))
    command = ["taskset", "-c", str(processors[0]), str(python), str(WORKER), str(model), dtype]
    speculative = SPECULATIVE_V2 if is_v2 else SPECULATIVE
    command += [str(max_sequences), json.dumps(speculative[system]), json.dumps(settings or {})]
    command += ["--v2", "--eager"] if is_v2 else [] if is_compiled else ["--eager"]
    environment = {
        "DIFFUSPEC_DRAFT_SERVER": server,
        "DIFFUSPEC_DRAFT_DEADLINE_SECONDS": str(deadline_seconds),
        "VLLM_CPU_OMP_THREADS_BIND": str(processors[0]),
    }
    return started("vLLM", command, environment, log)


@contextmanager
def draft_server(
    address: str, log: Path, pair: str = "smollm2", num_draft_tokens: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start the draft server of a pair on the last processor.

    num_draft_tokens: length of every draft; None: chosen by cost.
    """
    processor = str(max(os.sched_getaffinity(0)))
    command = [sys.executable, "-m", "diffuspec", "draft-server", "--pair", pair]
    command += ["--threads", "1", "--listen", address, "--max-model-len", "2048"]
    if num_draft_tokens is not None:
        command += ["--num-draft-tokens", str(num_draft_tokens)]
    with log.open("w") as file:
        process = subprocess.Popen(
            ["taskset", "-c", processor, *command], stdout=subprocess.PIPE, stderr=file, text=True
        )
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise ConfigError(f"the draft server ended: {log.read_text().strip()[-500:]}")
            yield process
        finally:
            process.terminate()
            process.communicate()


def read_prompts(model: Path, questions: Path, limit: int) -> list[list[int]]:
    """Return the chats of a question file as token ids of a model, `limit` of each family."""
    tokenizer = load_tokenizer(model.absolute())
    prompts = []
    for question in load_questions(questions):
        chat = [{"role": "user", "content": question.turns[0]}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        if len(ids) <= _MAX_PROMPT_TOKENS:
            prompts.append((question, [int(one) for one in ids]))
    kept = {one.question_id for one in first_per_family([q for q, _ in prompts], limit)}
    return [ids for question, ids in prompts if question.question_id in kept]


def measure(
    workers: dict[str, JsonWorker],
    prompts: Sequence[Sequence[int]],
    load: int,
    max_tokens: int,
    rounds: int,
) -> dict[str, Sums]:
    """Send all systems the same prompts, `load` at a time, in turns."""
    sums = {name: Sums() for name in workers}
    batches = [prompts[i : i + 2 * load] for i in range(0, len(prompts), 2 * load)]
    if load == 1:
        batches = [[one] for one in prompts]
    batches = [batch for _ in range(rounds) for batch in batches]
    progress = track(batches, f"{load} at a time", console=Console(stderr=True))
    for number, batch in enumerate(progress):
        for name in rotated(workers, number):
            answer = workers[name].ask(prompts=batch, max_tokens=max_tokens, num_at_once=load)
            sums[name].add(answer)
    return sums


def table_of(load: int, sums: dict[str, Sums]) -> TextTable:
    plain = sums["plain"]
    cells = [
        (
            name,
            f"{one.rate:.1f}",
            f"{one.rate / plain.rate:.2f}x",
            f"{one.acceptance:.2f}",
            f"{one.num_draft_tokens / max(one.num_drafts, 1):.1f}",
            str(sum([a != b for a, b in zip(one.answers, plain.answers, strict=True)])),
        )
        for name, one in sums.items()
    ]
    columns = ("system", "tokens/s", "of plain", "tokens/step", "drafted/draft", "other answers")
    number = len(plain.answers)
    return TextTable(f"{load} at a time, {number} answers", columns, tuple(cells))


@contextmanager
def socket_and_logs(logs: Path | None) -> Iterator[tuple[str, Path]]:
    """Yield the address of a Unix socket and the folder for logs; None: one that is deleted."""
    with tempfile.TemporaryDirectory() as folder:
        written = logs or Path(folder)
        written.mkdir(parents=True, exist_ok=True)
        yield f"unix:{folder}/drafts", written


@contextmanager
def _drafts_and_logs(names: Sequence[str], logs: Path | None) -> Iterator[tuple[str, Path]]:
    """Like `socket_and_logs`, with a draft server on the socket if a system needs one."""
    with socket_and_logs(logs) as (address, written), ExitStack() as stack:
        if "diffuspec" in names:
            stack.enter_context(draft_server(address, written / "draft_server.log"))
        yield address, written


@contextmanager
def _engines(
    names: Sequence[str], dtype: str, load: int, server: str, logs: Path
) -> Iterator[dict[str, JsonWorker]]:
    """Start vLLM once for each system. Raises ConfigError."""
    model = smollm2.TARGET.absolute()
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                vllm(model, dtype, load, name, server, logs / f"{name}_{load}.log")
            )
            for name in names
        }


@app.command(cls=Command)
def run(
    questions: Annotated[Path, typer.Option(help="File in Spec-Bench's format.")] = (
        smollm2.QUESTIONS
    ),
    limit: Annotated[int, typer.Option(help="Questions per family.", min=1)] = 3,
    loads: Annotated[
        str, typer.Option(help="Numbers of concurrent requests.", metavar="N,N,...")
    ] = "1,8,32",
    systems: Annotated[str, typer.Option(help=", ".join(SPECULATIVE))] = "plain,ngram,diffuspec",
    max_tokens: Annotated[int, typer.Option(min=1)] = 128,
    rounds: Annotated[int, typer.Option(min=1)] = 1,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    logs: Annotated[Path | None, typer.Option(help="Folder for logs of all processes.")] = None,
    behind_cache: Annotated[
        bool,
        typer.Option(
            "--prefix-hits",
            help="Drafts behind rows found in the cache, loaded by a connector, or preempted.",
        ),
    ] = False,
) -> None:
    """Compare vLLM's decoding of SmolLM2 with our drafts, with its own, and with none."""
    chosen, sizes = {"plain", *systems.split(",")}, parse_numbers("--loads", loads, int)
    if not chosen <= SPECULATIVE.keys():
        raise ConfigError(f"--systems must be among {', '.join(SPECULATIVE)}, got {systems}")
    names = [one for one in SPECULATIVE if one in chosen]
    if behind_cache:
        _study_prefix_hits(names, questions, limit, dtype, max_tokens, logs)
        return
    prompts = read_prompts(smollm2.TARGET, questions, limit)
    with _drafts_and_logs(names, logs) as (address, written):
        for load in sizes:
            with _engines(names, dtype, load, address, written) as workers:
                for worker in workers.values():
                    worker.ask(prompts=prompts[:2], max_tokens=32, num_at_once=load)
                found = measure(workers, prompts, load, max_tokens, rounds)
            print_tables([table_of(load, found)], [], Console())


def _study_prefix_hits(
    names: Sequence[str],
    questions: Path,
    limit: int,
    dtype: str,
    max_tokens: int,
    logs: Path | None,
) -> None:
    """Compare drafts behind computed and restored rows; uncompiled, for vLLM starts many times."""
    model = smollm2.TARGET.absolute()
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    asked = first_per_family(load_questions(questions), limit)
    chats = Chats(load_tokenizer(model), text, asked)
    with _drafts_and_logs(names, logs) as (address, written):

        def start(
            system: str, max_sequences: int, settings: Mapping[str, object]
        ) -> AbstractContextManager[JsonWorker]:
            given = (model, dtype, max_sequences, system, address, written / f"{system}.log")
            return vllm(*given, is_compiled=False, settings=settings)

        for table in prefix_hits(start, names, chats, max_tokens, written / "rows"):
            print_tables([table], [], Console())


if __name__ == "__main__":
    app()
