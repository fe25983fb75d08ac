"""Hooks of mkdocs: pages and files of the site that are not in docs/.

The README is the first page. A file that a page links to outside of docs/ becomes part of the site:
documents as pages, all else below files/.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
TOP = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
README = "README.md"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(?=[#)])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to."""
    wanted = {README, *TOP}
    for document in (*files.documentation_pages(), *TOP, README):
        path = Path(document.abs_src_path) if isinstance(document, File) else ROOT / document
        for link in _LINK.findall(path.read_text(encoding="utf-8")):
            wanted.add(str((path.parent / link).resolve().relative_to(ROOT)))
    for name in sorted(wanted):
        if not name.startswith("docs/") and (ROOT / name).is_file():
            source = str(ROOT / name)
            files.append(File.generated(config, _place(name), abs_src_path=source))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where files are in the site."""
    here = Path(page.file.abs_src_path or "")

    def moved(found: re.Match[str]) -> str:
        target = (here.parent / found[1]).resolve()
        if not target.is_relative_to(ROOT):
            return found[1]
        place = _place(str(target.relative_to(ROOT)))
        return posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".")

    return _LINK.sub(moved, markdown)


def _place(name: str) -> str:
    """Return where a file of the repository is in the site."""
    if name == README:
        return "index.md"
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return name if name in TOP else f"files/{name}"
