"""What needs a GPU, within eight minutes: its tests, then `diffuspec bench --sizes`.

    python3 .ci/gpu.py [--out DIR]              # in a checkout
    python3 .ci/gpu.py --pack DIR [--for 3.12]  # a folder of at most 64 MiB to carry elsewhere
    python3 DIR/gpu.py [--out DIR]              # there: without network and virtual environment

The packed folder has the sources, the weights of the embedded pair, and wheels of what is usually
missing or too old beside torch and Triton. Each part has its own limit of seconds, and its output
is in a file of --out while it runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAX_SECONDS = 470
LEFT_OUT = ("diffuspec/pairs/smollm2/weights/", "docs/", "benchmarks/", "recipes/")
TESTS = (
    "tests/models/kernels/triton",
    "tests/models/attention/test_triton.py",
    "tests/models/layers/test_layers_on_gpu.py",
    "tests/models/test_graphs.py",
    "tests/models/loading/test_quantized_on_gpu.py",
    "tests/lossless/test_on_gpu.py",
    "tests/lossless/test_quantized_on_gpu.py",
)
# Of these only what runs on a GPU.
TESTS_OF_DEVICES = ("tests/models/attention/test_cpu.py", "tests/models/layers/test_linear.py")
# Not numpy, tokenizers, safetensors, accelerate and huggingface-hub: they come with transformers,
# an older one of which is usually there.
WHEELS = (
    "transformers",
    "pydantic",
    "pydantic-core",
    "annotated-types",
    "typing-inspection",
    "typing-extensions",
    "llguidance",
    "regex",
    "protobuf",
    "typer",
    "rich",
    "shellingham",
    "click",
    "markdown-it-py",
    "mdurl",
    "pygments",
    "jinja2",
    "uvloop",
    "markupsafe",
    "pyyaml",
    "psutil",
    "prometheus-client",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "pluggy",
    "iniconfig",
    "packaging",
    "hypothesis",
    "sortedcontainers",
    "coverage",
    "annotated-doc",
    "gguf",
    "compressed-tensors",
    "loguru",
)
PYTEST = ("-m", "pytest", "-q", "-rfEs", "--color=no", "--continue-on-collection-errors")
PLATFORMS = ("manylinux2014_x86_64", *(f"manylinux_2_{n}_x86_64" for n in range(17, 40)))
LARGE_GPU = 120_000  # MiB: Qwen2.5-32B and Dream-7B with their caches fit


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--for", dest="version", default="3.12", help="Python of the other machine")
    options = parser.parse_args()
    if options.pack is not None:
        return pack(options.pack, options.version)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        return Run(options.out.resolve(), *unpacked(Path(scratch))).all_parts()


def pack(folder: Path, version: str) -> int:
    """Write the folder to carry."""
    root = HERE.parent
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(
        ["git", "ls-files"], cwd=root, check=True, capture_output=True, text=True
    )
    with tarfile.open(folder / "src.tar.gz", "w:gz") as archive:
        for name in listed.stdout.splitlines():
            if not name.startswith(LEFT_OUT):
                archive.add(root / name, name)
    shutil.copy(__file__, folder / "gpu.py")
    pins = dict(
        line.split("==") for line in (root / "constraints.txt").read_text().split() if "==" in line
    )
    for name in WHEELS:
        pinned = pins.get(name) or pins.get(name.replace("-", "_"))
        _download(f"{name}=={pinned}" if pinned else name, wheels, version)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder} has {size / 2**20:.1f} MiB; there: python3 {folder.name}/gpu.py --out DIR")
    return int(size > 64 * 2**20)


def _download(what: str, wheels: Path, version: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--python-version", version, "--dest", str(wheels)]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([*command, what], check=True)


def unpacked(scratch: Path) -> tuple[Path, list[Path]]:
    """Return the root of the sources, and folders for the path of imports."""
    if not (HERE / "src.tar.gz").is_file():
        return HERE.parent, [HERE.parent]
    with tarfile.open(HERE / "src.tar.gz") as archive:
        archive.extractall(scratch / "src", filter="data")
    for wheel in sorted((HERE / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch / "site")
    return scratch / "src", [scratch / "site", scratch / "src"]


class Run:
    """The parts, one after another."""

    def __init__(self, out: Path, root: Path, imports: list[Path]) -> None:
        self._out, self._root = out, root
        self._ends = time.monotonic() + MAX_SECONDS
        offline = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
        path = os.pathsep.join(map(str, imports))
        self._environment = {**os.environ, **offline, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        if gpu_megabytes():
            self._environment["TRITON_INTERPRET"] = "0"  # whatever tests/conftest.py finds

    def all_parts(self) -> int:
        megabytes = gpu_megabytes()
        print(f"the GPU has {megabytes} MiB" if megabytes else "there is no GPU", flush=True)
        self._part("environment", 40, "-m", "diffuspec", "env")
        codes = [self._part("tests", 200, *PYTEST, *TESTS)]
        codes.append(self._part("devices", 60, *PYTEST, "-k", "cuda", *TESTS_OF_DEVICES))
        large = megabytes > LARGE_GPU
        pair = ("Qwen2.5-32B", "Dream-7B") if large else ("Qwen2.5-7B", "Fast_dLLM_v2_1.5B")
        if megabytes:
            sizes = "--sizes", pair[0], "--drafter-sizes", pair[1], "--profile"
            folder = str(self._out / "sizes")
            codes.append(
                self._part("sizes", 260, "-m", "diffuspec", "bench", *sizes, "--out", folder)
            )
        else:
            print("sizes: skipped, there is no GPU", flush=True)
        return int(any(codes))

    def _part(self, name: str, seconds: float, *arguments: str) -> int:
        """Run a part; return 0 if it succeeds."""
        left = self._ends - time.monotonic()
        if left < seconds / 4:
            print(f"{name}: skipped, {left:.0f} s are left", flush=True)
            return 1
        started, file = time.monotonic(), self._out / f"{name}.txt"
        with file.open("wb") as output:
            try:
                code = subprocess.run(
                    [sys.executable, *arguments],
                    cwd=self._root,
                    env=self._environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=min(seconds, left),
                ).returncode
            except subprocess.TimeoutExpired:
                code = 124
        lines = file.read_text(errors="replace").splitlines()
        print(f"\n== {name}: {code} after {time.monotonic() - started:.0f} s, {file}")
        print(*lines[-60:], sep="\n", flush=True)
        return code


def gpu_megabytes() -> int:
    """Return the memory of the first GPU in MiB; 0: there is none."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
        return int(found.stdout.split()[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0


if __name__ == "__main__":
    sys.exit(main())
