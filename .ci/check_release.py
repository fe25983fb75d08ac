"""Check the wheel and the sdist in a directory: what they hold, and that the wheel works.

The wheel is installed into an empty virtual environment, and run there with the dependencies of the
environment that this runs in, without the extras and with each of them.
"""

from __future__ import annotations

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

from wheel_commands import EXTRAS, NOT_OF_USERS, check_commands

ROOT = Path(__file__).parents[1]
LEFT_OUT = "diffuspec/pairs/smollm2/weights/"  # large, so only a checkout has them
TESTING = ("demo",)  # modules of deploy

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


def main() -> None:
    directory = Path(sys.argv[1])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    if unknown := set(project["optional-dependencies"]) - {*EXTRAS, *NOT_OF_USERS}:
        sys.exit(f"the commands of a wheel are not run with the extras {sorted(unknown)}")
    [wheel] = directory.glob("*.whl")
    [sdist] = directory.glob("*.tar.gz")
    committed = output("git", "-C", ROOT, "ls-files", "diffuspec").split("\n")
    library = {name for name in committed if not name.endswith(".md")}
    library = {name for name in library if not name.startswith(LEFT_OUT)}
    beside = {f"deploy/{name}" for name in ("batch.py", "serve.py", "serve.yaml")}
    library |= {f"diffuspec/_ray/{name}" for name in beside}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    check_contents(wheel, names, library)
    if extra := {name for name in names if not name.startswith(("diffuspec/", "diffuspec-"))}:
        sys.exit(f"{wheel} holds {sorted(extra)}, which is not part of the library")
    tools = {name for name in names if name.startswith(LEFT_OUT)}
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
    """Install the wheel; check its version and types, and run its commands."""
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
        check_types(Path(directory), python)
        write_gguf = "from tests.support.gguf_files import write_gguf as write; import pathlib"
        write_gguf += f"; write(pathlib.Path({directory!r}, 'tiny.gguf'))"
        output(sys.executable, "-c", write_gguf, cwd=ROOT)
        check_commands(python, Path(directory), dependencies)


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
