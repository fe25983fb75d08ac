"""`diffuspec env`: one block for a report of a fault."""

import platform

import pytest
import torch
from typer.testing import CliRunner

from diffuspec.cli.app import app


def said(**variables: str) -> dict[str, str]:
    """Run the command; return what it says, by name."""
    result = CliRunner().invoke(app, ["env"], env=variables)
    assert result.exit_code == 0, result.output
    return dict(line.split(":", 1) for line in result.stdout.splitlines())


def test_it_tells_versions_processor_kernels_and_gpu() -> None:
    facts = {name: value.strip() for name, value in said().items()}
    assert facts["python"].endswith(platform.python_version())
    assert f"torch {torch.__version__}" in facts["packages"] and "ray 2." in facts["packages"]
    assert facts["kernels"] and facts["processor"].endswith("GiB")
    assert torch.cuda.is_available() or facts["gpu"].startswith("none")


def test_it_tells_no_secrets() -> None:
    text = str(said(DIFFUSPEC_TOKEN="secret", HF_TOKEN="secret", OMP_NUM_THREADS="3"))
    assert "OMP_NUM_THREADS=3" in text and "secret" not in text


def test_kernels_that_were_not_compiled_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffuspec.models.kernels.operations.is_available", False)
    assert "not compiled" in said()["kernels"]
