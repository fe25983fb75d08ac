"""The wheel holds what it imports, and the release check runs every command and every extra."""

import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.support.commands import all_commands

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
LARGE = "diffuspec/pairs/smollm2/weights/"  # the only files of the library that no wheel holds


@pytest.fixture(scope="module")
def wheel_commands():
    sys.path.insert(0, str(ROOT / ".ci"))
    try:
        import wheel_commands
    finally:
        del sys.path[0]
    return wheel_commands


def committed_files() -> list[str]:
    listed = ("git", "ls-files", "diffuspec")
    ran = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    return ran.stdout.split()


def test_a_wheel_holds_every_file_of_the_library_but_large_weights():
    data = SETTINGS["tool"]["setuptools"]
    assert data["packages"]["find"]["include"] == ["diffuspec*"]
    packages = {
        str(path.parent.relative_to(ROOT)).replace("/", ".")
        for path in (ROOT / "diffuspec").rglob("__init__.py")
    }
    globs = [
        f"{package.replace('.', '/')}/{pattern}"
        for package, patterns in data["package-data"].items()
        for pattern in patterns
    ]
    for name in committed_files():
        package = str(Path(name).parent).replace("/", ".")
        is_module = name.endswith((".py", ".pyi")) and package in packages
        is_held = is_module or any(fnmatch(name, pattern.replace("**/", "")) for pattern in globs)
        assert is_held or name.endswith(".md") or name.startswith(LARGE), name


def test_the_release_check_runs_every_command_and_every_extra(wheel_commands):
    rows = wheel_commands.rows("DIR")
    rows += [row.asked_by for row in rows if getattr(row, "asked_by", None)]
    assert {row.command for row in rows} == all_commands().keys()
    extras = set(SETTINGS["project"]["optional-dependencies"])
    assert extras == {*wheel_commands.EXTRAS, *wheel_commands.NOT_OF_USERS}
