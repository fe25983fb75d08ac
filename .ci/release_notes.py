"""Print what the changelog says of a release: release_notes.py v1.2.3.

The tag must be the version of pyproject.toml, the changelog must have one part of that version, and
all fragments must be gathered in it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(tag: str, root: Path = ROOT) -> None:
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    if tag != f"v{version}":
        sys.exit(f"the tag is {tag}, and the version of pyproject.toml {version}")
    if fragments := sorted(path.name for path in (root / "newsfragments").glob("+*")):
        sys.exit(f"newsfragments/ has {', '.join(fragments)}: run `make changelog` first")
    print(notes(version, (root / "CHANGELOG.md").read_text()))


def notes(version: str, changelog: str) -> str:
    """Return the part of a version. Ends the process if there is none, or more than one."""
    parts = re.split(r"^## ", changelog, flags=re.MULTILINE)
    texts = [part.partition("\n")[2] for part in parts if part.startswith(f"[{version}]")]
    if len(texts) != 1:
        sys.exit(f"CHANGELOG.md has {len(texts) or 'no'} parts [{version}], and one is needed")
    return texts[0].strip()


if __name__ == "__main__":
    main(*sys.argv[1:])
