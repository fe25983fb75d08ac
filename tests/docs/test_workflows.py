"""What continuous integration runs are targets of the Makefile, on the versions that we name."""

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CHANGELOG = """# Changelog

## [Unreleased]

new

## [1.2.0] - 2026-01-02

- this

## [1.1.0]

old
"""


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    return [step for job in jobs for step in job.get("steps", ())]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_the_steps_of_workflows_are_targets_of_the_makefile(path):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = [step["run"].split() for step in steps(path) if "run" in step]
    for command in commands:
        if command[0] == "make":
            assert command[1] in targets
        else:
            assert command[0] in ("git", "gh"), command


def test_checks_run_on_each_version_of_python_that_the_package_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = re.findall(r"Python :: (3\.\d+)'", str(project["project"]["classifiers"]))
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())["jobs"]
    for job in ("check", "test"):
        assert jobs[job]["strategy"]["matrix"]["python"] == named
    wheels = project["tool"]["cibuildwheel"]["build"]
    assert wheels == [f"cp{version.replace('.', '')}-manylinux_*" for version in named]


def test_a_report_of_a_fault_needs_what_diffuspec_env_prints():
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "fault.yml").read_text())
    [field] = [field for field in form["body"] if field.get("id") == "env"]
    assert "diffuspec env" in field["attributes"]["description"]
    assert field["validations"]["required"]


@pytest.fixture
def release_notes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notes", ROOT / ".ci" / "release_notes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_changelog_has_a_part_of_the_version_to_be_released(release_notes, capsys):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    release_notes.main(f"v{version}")
    assert "### Added" in capsys.readouterr().out


def test_the_notes_of_a_release_are_its_part_of_the_changelog(release_notes):
    assert release_notes.notes("1.2.0", CHANGELOG) == "- this"
    with pytest.raises(SystemExit, match=r"no part \[1.3.0\]"):
        release_notes.notes("1.3.0", CHANGELOG)
    with pytest.raises(SystemExit, match="the tag is v0"):
        release_notes.main("v0")
