"""The committed code is what the protos say, and runs on the protobuf that is installed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from diffuspec.v1 import (
    coordinator_pb2,
    draft_service_pb2,
    drafter_pb2,
    path_scorer_pb2,
    types_pb2,
    verifier_pb2,
)

ROOT = Path(__file__).resolve().parents[2]
FILES = (coordinator_pb2, draft_service_pb2, drafter_pb2, path_scorer_pb2, types_pb2, verifier_pb2)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)


def test_the_generated_code_is_fresh():
    pytest.importorskip("grpc_tools")
    done = run("protos/generate.py", "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_stale_code_is_named(tmp_path):
    pytest.importorskip("grpc_tools")
    for name in ("protos", "diffuspec/v1", "clients/diffuspec_client"):
        for path in (ROOT / name).rglob("*.p*"):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    generate = str(tmp_path / "protos/generate.py")
    stub = tmp_path / "diffuspec/v1/types_pb2.pyi"
    fresh = stub.read_text()
    stub.write_text(fresh + "\n")
    left_over = tmp_path / "diffuspec/v1/gone_pb2.py"
    left_over.touch()
    done = run(generate, "--check")
    assert done.returncode == 1
    assert "types_pb2.pyi" in done.stderr and "gone_pb2.py" in done.stderr
    assert run(generate).returncode == 0
    assert stub.read_text() == fresh and not left_over.exists()


def test_the_generated_code_imports_without_warnings():
    modules = ", ".join(f"{file.__name__}" for file in FILES)
    grpc_modules = ", ".join(f"{f.__name__}_grpc" for f in FILES if f.DESCRIPTOR.services_by_name)
    done = run("-W", "error", "-c", f"import {modules}, {grpc_modules}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.__name__)
def test_every_name_in_the_protos_is_explained(file):
    """What `buf lint` checks with its COMMENTS, where buf is not at hand."""
    source = (ROOT / "protos" / file.DESCRIPTOR.name).read_text()
    lines = source.splitlines()
    for number, line in enumerate(lines):
        if re.match(
            r"\s*(service|rpc|message|enum|oneof|(optional |repeated )?\w+ \w+ = \d)", line
        ):
            assert lines[number - 1].strip().startswith("//"), f"{number + 1}: {line}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.__name__)
def test_zero_means_nothing_in_any_enum(file):
    for enum in file.DESCRIPTOR.enum_types_by_name.values():
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper()
        assert enum.values_by_number[0].name == f"{prefix}_UNSPECIFIED"
        assert all(value.name.startswith(prefix) for value in enum.values)
