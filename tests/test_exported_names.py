"""What packages export: sorted, complete, importable, documented."""

from __future__ import annotations

import ast
import importlib
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import diffuspec
from diffuspec.core import types
from diffuspec.engine.engine import Engine

ROOT = Path(__file__).resolve().parents[1]
EXPORTING = ("diffuspec", "diffuspec.pairs.tiny")
MODULES = sorted(
    path
    for package in ("diffuspec", "actors", "deploy")
    for path in (ROOT / package).rglob("*.py")
    if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
)


@pytest.mark.parametrize("package", EXPORTING)
def test_exported_names_are_sorted_and_can_be_imported(package: str):
    module = importlib.import_module(package)
    names: list[str] = list(module.__all__)
    assert names == sorted(names, key=lambda name: (not name.isupper(), name))
    assert all(hasattr(module, name) for name in names)


@pytest.mark.parametrize("package", EXPORTING)
def test_what_is_exported_is_documented(package: str):
    module = importlib.import_module(package)
    for name in module.__all__:
        found = getattr(module, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            text = found.__doc__ or ""
            assert text and not text.startswith(f"{name}("), name  # not dataclass's own


def test_the_names_imported_on_first_use_are_the_exported_ones():
    assert set(diffuspec._MODULES) == set(diffuspec.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        diffuspec.Nothing  # noqa: B018


def test_type_checkers_see_the_exported_names():
    tree = ast.parse(inspect.getsource(diffuspec))
    [block] = [one for one in tree.body if isinstance(one, ast.If)]
    imports = [one for one in block.body if isinstance(one, ast.ImportFrom)]
    assert {alias.name for one in imports for alias in one.names} == set(diffuspec.__all__)


@pytest.mark.parametrize("method", [Engine.generate, Engine.complete, Engine.stream])
def test_the_engine_speaks_of_exported_types_and_of_the_vocabulary_alone(method):
    for hint in typing.get_type_hints(method).values():
        for part in parts(hint):
            if getattr(part, "__module__", "").startswith("diffuspec"):
                assert part.__name__ in diffuspec.__all__ or hasattr(types, part.__name__)


def parts(hint: typing.Any) -> Iterator[typing.Any]:
    yield hint
    for one in typing.get_args(hint):
        yield from parts(one)


def test_every_module_says_what_it_is():
    silent = [path for path in MODULES if not ast.get_docstring(ast.parse(path.read_bytes()))]
    assert silent == []
