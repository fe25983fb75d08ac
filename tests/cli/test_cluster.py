"""Commands on Ray: their options are their own, and without Ray the extra is named."""

import os
import subprocess
import sys

import pytest

from tests.cli.conftest import error_line


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have imports of Ray fail, and import again what has imported it."""
    for name in [*sys.modules]:
        if name.split(".")[0] in ("actors", "deploy", "ray"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.mark.parametrize("command", ["ray serve", "ray draft-pool"])
def test_commands_on_ray_name_the_extra_that_they_need(diffuspec, no_ray, command):
    result = diffuspec(*command.split())
    assert f"diffuspec {command} needs Ray: pip install 'diffuspec[ray]'" in error_line(result)


def test_a_batch_is_found_from_any_folder_where_an_installation_follows_a_checkout(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = "from diffuspec.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program, "batch", "--help"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "--input" in ended.stdout


@pytest.mark.parametrize("more", ["", "--address auto", "--engine data"])
def test_a_batch_needs_ray_only_where_it_runs_on_it(diffuspec, no_ray, tmp_path, more):
    (tmp_path / "in.jsonl").write_text('{"prompt": "Once"}\n')
    files = ("--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl")
    result = diffuspec("batch", *files, *more.split())
    extra = "data" if "data" in more else "ray"  # which has Ray, too
    assert f"pip install 'diffuspec[{extra}]'" in error_line(result)
    refused = diffuspec("batch", *files, "--address", "http://127.0.0.1:1", "--patience", "0")
    assert "pip install" not in refused.stderr and refused.exit_code in (1, 2)


def test_options_are_those_of_the_command_itself(diffuspec):
    assert "--retry-failed" in diffuspec("batch", "--help").stdout
    assert "--port must be" in error_line(diffuspec("ray", "serve", "--port", "0"))
