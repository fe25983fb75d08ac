"""The image: everything that its file names is there, and it does not run as root."""

import json
import re
import shlex
from fnmatch import fnmatch
from pathlib import Path

import pytest
import typer.main

from deploy.proxy import CALLBACK, CALLBACK_VARIABLE
from diffuspec.cli.app import app

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
IGNORED = DOCKERFILE.with_name("Dockerfile.dockerignore")
KNOWN = {
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "USER",
    "WORKDIR",
}  # fmt: skip


def instructions() -> list[tuple[str, str]]:
    """Return the instructions in order, comments left out and lines joined."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [
        (found[1], found[2].strip())
        for found in re.finditer(r"^([A-Z]+) (.*)$", whole, re.MULTILINE)
    ]


def all_of(name: str) -> list[str]:
    return [text for kind, text in instructions() if kind == name]


def test_every_line_is_an_instruction():
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == len(instructions())
    assert {kind for kind, _ in instructions()} <= KNOWN


def sent(path: str) -> bool:
    """Return whether a path at the top of the checkout is in the build's context."""
    is_in = True
    for rule in IGNORED.read_text().split("\n"):
        if rule and not rule.startswith("#") and fnmatch(path, rule.removeprefix("!")):
            is_in = rule.startswith("!")
    return is_in


@pytest.mark.parametrize("copy", [one for one in all_of("COPY") if not one.startswith("--from")])
def test_what_is_copied_is_there_and_in_the_context(copy: str):
    *sources, _ = shlex.split(copy)
    for source in sources:
        assert (ROOT / source).exists() and sent(source), source


def test_the_context_has_no_more_than_the_image_needs():
    copied = {one for text in all_of("COPY") for one in text.split()[:-1]}
    names = [path.name for path in ROOT.iterdir()]
    assert {name for name in names if sent(name)} <= copied


def test_all_stages_have_a_python_that_we_support():
    [version] = [text for text in all_of("ARG") if text.startswith("PYTHON_VERSION=")]
    classifiers = (ROOT / "pyproject.toml").read_text()
    assert f"Python :: {version.partition('=')[2]}" in classifiers
    assert all(text.startswith("python:${PYTHON_VERSION}-slim") for text in all_of("FROM"))


def test_what_readme_says_is_needed_to_compile_is_there_where_the_image_is_built():
    needed = re.search(r"sudo apt install ([^`]*)`", (ROOT / "README.md").read_text())
    assert needed is not None
    # what the images of Python have already, and what only a checkout needs
    of_images = {"make", "python3-dev", "python3-venv"}
    stages = [number for number, (kind, _) in enumerate(instructions()) if kind == "FROM"]
    build = " ".join(text for kind, text in instructions()[: stages[1]] if kind == "RUN")
    assert {*needed[1].split()} - of_images <= {*build.split()}


def test_the_image_does_not_run_as_root():
    [user] = all_of("USER")
    assert re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", user)
    kinds = [kind for kind, _ in instructions()]
    assert kinds.index("USER") < kinds.index("CMD")
    assert "RUN" not in kinds[kinds.index("USER") :]


def test_the_environment_is_that_of_a_cluster_s_nodes():
    environment = dict(one.split("=", 1) for one in shlex.split(all_of("ENV")[-1]))
    assert environment["PYTHONPATH"] == "/app"
    assert environment[CALLBACK_VARIABLE] == CALLBACK
    node = (ROOT / "deploy" / "cluster" / "node.env").read_text()
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness", "MALLOC_ARENA_MAX"):
        assert f"export {name}={environment[name]}" in node


def test_the_default_command_is_ours_and_its_health_is_checked():
    [command] = all_of("CMD")
    name, subcommand, *options = json.loads(command)
    group: typer.core.TyperGroup = typer.main.get_command(app)  # type: ignore[assignment]
    assert name == "diffuspec"
    known = {option for one in group.commands[subcommand].params for option in one.opts}
    assert set(options[::2]) <= known
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert given["--host"] == "0.0.0.0" and "--api-keys" in given
    [health] = all_of("HEALTHCHECK")
    [port] = all_of("EXPOSE")
    assert given["--port"] == port and f"http://127.0.0.1:{port}/health" in health
    installed = " ".join(all_of("RUN"))
    [entrypoint] = all_of("ENTRYPOINT")
    for program in ("wget", json.loads(entrypoint)[0]):
        assert f" {program} " in installed
