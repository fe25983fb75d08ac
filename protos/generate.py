"""Compile the protos into diffuspec/v1, or check that what is there is what they compile to.

    python protos/generate.py [--check]

The generator is pinned in pyproject.toml (grpcio-tools, the oldest that we support), because code
that it makes does not run on an older protobuf than its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
PACKAGE = Path("diffuspec/v1")
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def generate(out: Path) -> None:
    """Compile every proto below a directory; gRPC code only for files that have a service."""
    sources = sorted((PROTOS / PACKAGE).glob("*.proto"))
    services = [path for path in sources if "\nservice " in path.read_text(encoding="utf-8")]
    _compile([f"--python_out={out}", f"--pyi_out={out}"], sources)
    _compile([f"--grpc_python_out={out}"], services)


def _compile(options: Sequence[str], sources: Sequence[Path]) -> None:
    if protoc.main(["protoc", f"-I{PROTOS}", *options, *map(str, sources)]):
        raise SystemExit("protoc failed")


def _generated(directory: Path) -> dict[str, str]:
    """Return the contents of all generated files by name."""
    files = sorted(path for path in directory.iterdir() if path.name.endswith(SUFFIXES))
    return {path.name: path.read_text(encoding="utf-8") for path in files}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare contents")
    is_check = parser.parse_args(arguments).check
    target = ROOT / PACKAGE
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = _generated(Path(scratch) / PACKAGE)
    found = _generated(target)
    stale = sorted(
        name for name in fresh.keys() | found.keys() if fresh.get(name) != found.get(name)
    )
    if is_check:
        for name in stale:
            print(f"stale: {PACKAGE / name}; run python protos/generate.py", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (target / name).unlink(missing_ok=True)
        if name in fresh:
            (target / name).write_text(fresh[name], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
