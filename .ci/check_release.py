"""Check the wheel and the sdist in a directory: what they hold, and that the wheel works.

The wheel is installed into an empty virtual environment, and run there with the dependencies of the
environment that this runs in, with Ray and as if there were none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = (  # paths that only a checkout has
    "diffuspec/pairs/smollm2/weights/",
    "diffuspec/pairs/tiny/corpus/",
    "diffuspec/pairs/tiny/train",
    "diffuspec/bench/virtual_time/",
    "diffuspec/bench/studies/",
)
# Studies that a wheel has, as options of `diffuspec bench`.
STUDIES = ("__init__", "ablations", "load", "overlap", "pre_drafts", "sweeps")
TESTING = ("abuse", "bench", "chaos", "demo")  # modules of deploy

# What a program of a user is checked with, and a line in it that is wrong.
TYPED = """
import diffuspec

def answer(engine: diffuspec.Engine) -> list[diffuspec.Completion]:
    return engine.generate(["Hello"], diffuspec.SamplingParams(max_tokens=4))
"""
WRONG = """
def wrong(engine: diffuspec.Engine) -> int:
    return engine.generate(["Hello"])
"""
NO_RAY = """
import sys
sys.modules["ray"] = None
from diffuspec.cli import main
main()
"""


def main() -> None:
    directory = Path(sys.argv[1])
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    [wheel] = directory.glob("*.whl")
    [sdist] = directory.glob("*.tar.gz")
    committed = output("git", "-C", ROOT, "ls-files", "diffuspec").split("\n")
    library = {name for name in committed if not name.endswith(".md")}
    library = {name for name in library if not name.startswith(LEFT_OUT)}
    library |= {f"diffuspec/bench/studies/{name}.py" for name in STUDIES}
    beside = {f"deploy/{name}" for name in ("batch.py", "serve.py", "serve.yaml")}
    library |= {f"diffuspec/_ray/{name}" for name in beside}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    check_contents(wheel, names, library)
    if extra := {name for name in names if not name.startswith(("diffuspec/", "diffuspec-"))}:
        sys.exit(f"{wheel} holds {sorted(extra)}, which is not part of the library")
    tools = {name for name in names if name.startswith(LEFT_OUT)} - library
    tools |= names & {f"diffuspec/_ray/deploy/{name}.py" for name in TESTING}
    if tools:
        sys.exit(f"{wheel} holds {sorted(tools)}, which belongs to the repository")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {one for one in committed if one.endswith(".py")}
    check_contents(sdist, names, sources | beside | {"pyproject.toml", "README.md", "LICENSE"})
    check_installed(wheel, version)
    check_client(directory / "client")
    print(f"{wheel} and {sdist} are complete, and the wheel works")


def output(*command: str | Path, **options: str | Path | dict[str, str]) -> str:
    ran = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
    return str(ran.stdout).strip()


def check_contents(file: Path, names: set[str], needed: set[str]) -> None:
    if missing := needed - names:
        sys.exit(f"{file} lacks {sorted(missing)}")


def check_installed(wheel: Path, version: str) -> None:
    """Install the wheel; ask for its version, and the embedded pair for an answer."""
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory)
        python = Path(directory) / "bin" / "python"
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
        output(*pip, "--no-deps", wheel.absolute())
        dependencies = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}

        def run(*arguments: str) -> str:
            return output(python, *arguments, cwd=directory, env=dependencies)

        place = run("-c", "import diffuspec; print(diffuspec.__file__)")
        if not Path(place).is_relative_to(directory):
            sys.exit(f"{place} was imported instead of {wheel}")
        if (said := run("-m", "diffuspec", "--version")) != f"diffuspec {version}":
            sys.exit(f"{wheel} calls itself {said}, and pyproject.toml {version}")
        question = ("generate", "What is the capital of France?", "--max-tokens", "16", "--quiet")
        print(said, "answers:", run("-m", "diffuspec", *question))
        check_commands(Path(directory), python, dependencies)
        check_types(Path(directory), python)


def check_commands(directory: Path, python: Path, env: dict[str, str]) -> None:
    """Answer a batch without Ray; see what a command says that needs it, and its help with it."""
    (directory / "in.jsonl").write_text('{"prompt": "Once", "max_tokens": 4}\n')
    batch = ("batch", "--input", "in.jsonl", "--output", "out.jsonl")
    without = (python, "-c", NO_RAY)
    output(*without, *batch, "--engine", "process", cwd=directory, env=env)
    [result] = map(json.loads, (directory / "out.jsonl").read_text().splitlines())
    if result["error"] is not None:
        sys.exit(f"a batch without Ray wrote {result}")
    for command in (("ray", "serve"), (*batch, "--retry-failed")):
        ran = subprocess.run((*without, *command), cwd=directory, env=env, capture_output=True)
        if ran.returncode != 2 or b"pip install 'diffuspec[ray]'" not in ran.stderr:
            sys.exit(f"{command} without Ray: {ran.returncode}, {ran.stderr.decode()}")
    output(python, "-m", "diffuspec", "ray", "serve", "--help", cwd=directory, env=env)


def check_client(folder: Path) -> None:
    """Check that the client's wheel is whole, and works without the library."""
    [wheel] = folder.glob("*.whl")
    committed = output("git", "-C", ROOT / "clients", "ls-files", "diffuspec_client").split("\n")
    with zipfile.ZipFile(wheel) as archive:
        check_contents(wheel, set(archive.namelist()), set(committed))
    with tempfile.TemporaryDirectory() as directory:
        output(sys.executable, "-m", "zipfile", "-e", wheel, directory)
        env = {**os.environ, "PYTHONPATH": f"{directory}:{sysconfig.get_path('purelib')}"}
        alone = "import sys; sys.modules['diffuspec'] = None; import diffuspec_client.client"
        output(sys.executable, "-P", "-c", alone, cwd=directory, env=env)


def check_types(directory: Path, python: Path) -> None:
    """Check a user's program against the wheel's types by mypy."""
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", python)
    for text, expected in ((TYPED, 0), (TYPED + WRONG, 1)):
        (directory / "program.py").write_text(text)
        ran = subprocess.run((*mypy, "program.py"), cwd=directory, capture_output=True, text=True)
        if ran.returncode != expected:
            sys.exit(f"mypy ends with {ran.returncode} for{text}{ran.stdout}{ran.stderr}")


if __name__ == "__main__":
    main()
