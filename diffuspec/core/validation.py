"""Validates plain data as sections of a configuration, with errors in plain English."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import ErrorDetails

from diffuspec.core.errors import ConfigError

FilePath: TypeAlias = Annotated[Path, Field(strict=False)]  # may be given as a string

_TEXTS = {  # messages by the type of pydantic's error
    "missing": "is missing",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "path_type": "must be a path",
    "dict_type": "must be a mapping",
    "model_type": "must be a section with keys of its own",
    "dataclass_type": "must be a section with keys of its own",
    "literal_error": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than_equal": "must be at most {le}",
}
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument", "invalid_key")
_MAX_YAML_BYTES = 2**20
_MAX_YAML_VALUES = 100_000
_SIMILAR = 0.65  # least ratio of difflib for suggesting a name


class Section(BaseModel):
    """A part of a configuration: frozen, strictly typed (true is not 1), without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FromMapping:
    """Annotates a dataclass that a section accepts as a mapping; its fields stay strict."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema = handler(source)
        cast(dict[str, Any], handler.resolve_ref_schema(schema))["strict"] = False
        return schema


S = TypeVar("S", bound=Section)


def validate(kind: type[S], data: object, read_apart: Sequence[str] = ()) -> S:
    """Return a section made from plain data. Raises ConfigError naming everything that is wrong.

    read_apart: keys that are valid in the file and not in the data, such as engine.preset; for
    the message about an unknown key.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, kind, read_apart)) from error


def explain(error: ValidationError, kind: type[Section], read_apart: Sequence[str] = ()) -> str:
    """Return one line with each wrong key of a section, its valid values and the given value."""
    said: dict[str, str] = {}  # messages by key; a union gives one error for each of its types
    found: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        where, known = _locate(kind, problem["loc"])
        if problem["type"] in _UNKNOWN_KEY:
            said[where] = _unknown_key(where, [*_beside(where, read_apart), *known])
        elif problem["type"] == "value_error":
            said[where] = f"{where}: {problem['ctx']['error']}".removeprefix(": ")
        elif problem["type"] == "union_tag_invalid":
            right, tag = problem["ctx"]["expected_tags"], problem["ctx"]["tag"]
            said[where] = f"{where}.kind must be {' or '.join(right.rsplit(', ', 1))}, got {tag!r}"
        else:
            text, begun = _text(problem), said.get(where)
            said[where] = f"{begun}, or {text[8:]}" if begun else f"{where or 'it'} {text}"
            if problem["type"] != "missing":
                found[where] = f", got {problem['input']!r:.80}"
    return "; ".join(text + found.get(where, "") for where, text in said.items())


def _text(problem: ErrorDetails) -> str:
    text = _TEXTS.get(problem["type"])
    if text is None:
        return problem["msg"].replace("Input should be", "must be")
    return text.format(**{name: _plain(limit) for name, limit in problem.get("ctx", {}).items()})


def _plain(limit: object) -> object:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _unknown_key(where: str, known: Sequence[str]) -> str:
    section, _, key = where.rpartition(".")
    nearest = difflib.get_close_matches(key, known, cutoff=_SIMILAR) or known
    right = ", ".join(f"`{one}`" for one in nearest)
    hint = f"did you mean {right}?" if nearest is not known else f"known are {right}"
    return f"{section}: unknown key `{key}`; {hint}".removeprefix(": ")


def _beside(where: str, keys: Sequence[str]) -> list[str]:
    """Return the names of those keys that stand in the same section as `where`."""
    found = [key.rpartition(".") for key in keys]
    return [name for section, _, name in found if section == where.rpartition(".")[0]]


def _locate(kind: type, loc: Sequence[str | int]) -> tuple[str, list[str]]:
    """Return the key of pydantic's error, as a.b.c, and the known keys at the same level.

    Tags of unions and types of their members, which are parts of pydantic's `loc`, are left out.
    """
    names: list[str] = []
    known: dict[str, Any] = {}
    here: list[Any] = [kind]  # possible types of the value at this location
    for part in map(str, loc):
        known = {name: hint for one in here for name, hint in _fields(one).items()}
        tagged = [one for one in here if _tag(one) == part]
        if part in known:
            here = _alternatives(known[part])
        elif len(here) > 1 and tagged:
            here = tagged
            continue
        elif get_origin(here[0]) is dict:
            here = _alternatives(get_args(here[0])[1])
        elif not known:
            continue
        names.append(part)
    return ".".join(names), list(known)


def _fields(kind: Any) -> dict[str, Any]:
    """Return the fields of a section, or of a dataclass that is one, with their types."""
    names = getattr(kind, "model_fields", None) or getattr(kind, "__dataclass_fields__", {})
    hints = get_type_hints(kind) if names else {}
    return {name: hints[name] for name in names}


def _tag(kind: Any) -> object:
    """Return the `kind` of a section; None for a section or type without one."""
    field = getattr(kind, "model_fields", {}).get("kind")
    return field.default if field is not None else None


def _alternatives(hint: Any) -> list[Any]:
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return [part for part in parts if part is not type(None)]


def read_yaml(
    path: Path, what: str = "configuration", *, may_be_empty: bool = False
) -> dict[str, object]:
    """Read a YAML file that holds one mapping. Raises ConfigError, which calls the file `what`."""
    try:
        if path.exists() and not path.is_file():  # a pipe may have no end
            raise ConfigError(f"cannot read {what} {path}: it is not a file")
        with path.open("rb") as file:
            content = file.read(_MAX_YAML_BYTES + 1)
        if len(content) > _MAX_YAML_BYTES:
            raise ConfigError(f"{what} {path} has more than {_MAX_YAML_BYTES} bytes")
        data = yaml.load(content.decode("utf-8"), _Loader)
    except RecursionError as error:
        raise ConfigError(f"{what} {path} is nested too deeply") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {what} {path}: {_reason(error)}") from error
    if data is None and may_be_empty:
        return {}
    if data is None:
        raise ConfigError(f"{what} {path} is empty; it must have named sections")
    if not isinstance(data, dict):
        raise ConfigError(f"{what} {path} must be a mapping with named sections")
    return data


def _reason(error: Exception) -> object:
    """Return why a file cannot be read, for YAML with the line."""
    if isinstance(error, OSError):
        return error.strerror
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"not YAML in line {error.problem_mark.line + 1}: {error.problem}"
    return error


_BOOL, _STRING = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:str"


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys of a mapping; reads 1e-3 as a number, as YAML 1.2 does.

    Aliases may stand for _MAX_YAML_VALUES values in all. A node must not contain its own alias.

    The value of a key `policy` may be off without quotes, which YAML 1.1 takes for false.
    """

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None and _num_values(node, {}) > _MAX_YAML_VALUES:
            raise yaml.YAMLError(f"its aliases stand for more than {_MAX_YAML_VALUES} values")
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, value in node.value:
            if key.value == "policy" and value.tag == _BOOL:
                value.tag, value.value = _STRING, value.value.lower()
            line, name = key.start_mark.line + 1, str(key.value)
            if name in lines:
                raise yaml.YAMLError(
                    f"key `{name}` in line {line} is already in line {lines[name]}"
                )
            lines[name] = line
        return node


def _num_values(node: Any, known: dict[int, float]) -> float:
    """Return the number of values in a node, with those that its aliases stand for."""
    if id(node) not in known:
        known[id(node)] = math.inf  # the result for a node that contains its own alias
        parts: Sequence[Any] = ()
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_num_values(part, known) for part in parts)
    return known[id(node)]


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
