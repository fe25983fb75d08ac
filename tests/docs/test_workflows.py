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
            assert command[0] in ("git", "gh") or command[:2] == ["sudo", "apt-get"], command


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


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "newsfragments").mkdir()
    (tmp_path / "newsfragments" / "README.md").write_text("how")
    return tmp_path


def test_the_notes_of_a_release_are_its_part_of_the_changelog(release_notes, checkout, capsys):
    release_notes.main("v1.2.0", checkout)
    assert capsys.readouterr().out == "- this\n"
    with pytest.raises(SystemExit, match=r"the tag is v0, .* 1.2.0"):
        release_notes.main("v0", checkout)


def test_a_version_has_one_part_of_the_changelog(release_notes):
    with pytest.raises(SystemExit, match=r"no parts \[1.3.0\]"):
        release_notes.notes("1.3.0", CHANGELOG)
    with pytest.raises(SystemExit, match=r"2 parts \[1.2.0\]"):
        release_notes.notes("1.2.0", CHANGELOG + "\n## [1.2.0]\n\nagain\n")


def test_a_release_leaves_no_fragment_out(release_notes, checkout):
    (checkout / "newsfragments" / "+top-k.fixed.md").write_text("`top_k: 0` works.\n")
    with pytest.raises(SystemExit, match=r"has \+top-k.fixed.md: run `make changelog`"):
        release_notes.main("v1.2.0", checkout)


def test_each_fragment_of_the_changelog_is_one_line_of_a_known_type():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    types = "|".join(kind["directory"] for kind in settings["type"])
    for path in (ROOT / settings["directory"]).iterdir():
        if path.name != "README.md":
            assert re.fullmatch(rf"\+[a-z0-9-]+\.({types})\.md", path.name), path.name
            assert re.fullmatch(r"\S.*\n?", path.read_text(encoding="utf-8")), path.name
