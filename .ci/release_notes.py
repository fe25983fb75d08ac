"""Print what the changelog says of a release: release_notes.py v1.2.3.

The tag must be the version of pyproject.toml, and the changelog must have a part of that version.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(tag: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if tag != f"v{version}":
        sys.exit(f"the tag is {tag}, and the version of pyproject.toml {version}")
    print(notes(version, (ROOT / "CHANGELOG.md").read_text()))


def notes(version: str, changelog: str) -> str:
    """Return the part of a version. Ends the process if there is none."""
    parts = re.split(r"^## ", changelog, flags=re.MULTILINE)
    for part in parts:
        heading, _, text = part.partition("\n")
        if heading.startswith(f"[{version}]"):
            return text.strip()
    sys.exit(f"CHANGELOG.md has no part [{version}]")


if __name__ == "__main__":
    main(*sys.argv[1:])
