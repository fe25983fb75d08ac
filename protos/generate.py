"""Compile the protos into diffuspec/v1, or check that what is there is what they compile to.

The client of the draft service is a distribution of its own and has a copy of that service's
messages. Both copies may be loaded in one process as long as they are the same.

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
CLIENT = Path("clients/diffuspec_client")
CLIENT_FILES = ("draft_service_pb2.py", "draft_service_pb2.pyi")
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
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = _generated(Path(scratch) / PACKAGE)
    for_client = {name: fresh[name] for name in CLIENT_FILES}
    stale = [
        path
        for folder, files in ((PACKAGE, fresh), (CLIENT, for_client))
        for path in _update(folder, files, is_check=is_check)
    ]
    if is_check:
        for path in stale:
            print(f"stale: {path}; run python protos/generate.py", file=sys.stderr)
        return 1 if stale else 0
    return 0


def _update(folder: Path, fresh: dict[str, str], *, is_check: bool) -> list[Path]:
    """Write the files of a folder that are not as they are compiled; return their paths."""
    found = _generated(ROOT / folder)
    stale = sorted(
        name for name in fresh.keys() | found.keys() if fresh.get(name) != found.get(name)
    )
    for name in stale if not is_check else ():
        path = ROOT / folder / name
        path.unlink(missing_ok=True)
        if name in fresh:
            path.write_text(fresh[name], encoding="utf-8")
    return [folder / name for name in stale]


if __name__ == "__main__":
    sys.exit(main())
