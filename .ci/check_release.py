"""Check the wheel and the sdist in a directory: what they hold, and that the wheel works.

The wheel is installed into an empty virtual environment, and run there with the dependencies of the
environment that this runs in.
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

ROOT = Path(__file__).parents[1]
TOO_LARGE = "diffuspec/pairs/smollm2/weights/"  # in the repository alone


def main() -> None:
    directory = Path(sys.argv[1])
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    [wheel] = directory.glob("*.whl")
    [sdist] = directory.glob("*.tar.gz")
    committed = output("git", "-C", ROOT, "ls-files", "diffuspec").split("\n")
    library = {name for name in committed if not name.endswith(".md")}
    library = {name for name in library if not name.startswith(TOO_LARGE)}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    check_contents(wheel, names, library)
    if extra := {name for name in names if not name.startswith(("diffuspec/", "diffuspec-"))}:
        sys.exit(f"{wheel} holds {sorted(extra)}, which is not part of the library")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    check_contents(sdist, names, library | {"pyproject.toml", "README.md", "LICENSE"})
    check_installed(wheel, version)
    print(f"{wheel} and {sdist} are complete, and the wheel works")


def output(*command: str | Path, **options: str | dict[str, str]) -> str:
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


if __name__ == "__main__":
    main()
