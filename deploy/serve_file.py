"""Files of Ray Serve, read strictly: Serve itself ignores keys that it does not know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from ray.serve.schema import ServeDeploySchema

from actors.settings import PipelineConfig
from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.validation import read_yaml


def read_serve_file(path: Path) -> ServeDeploySchema:
    """Read a file as deploy/serve.yaml. Raises ConfigError for keys that Serve would ignore."""
    data = read_yaml(path)
    if "applications" not in data and (other := _other_kind(data)):
        raise ConfigError(f"{path} is no file of Ray Serve, as deploy/serve.yaml, but {other}")
    if unknown := [*unknown_keys(ServeDeploySchema, data)]:
        raise ConfigError(f"{path}: Serve has no key {', '.join(unknown)}")
    try:
        return ServeDeploySchema.model_validate(data)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(f"{path}: {'; '.join(problems)}") from error


def _other_kind(data: Mapping[str, Any]) -> str:
    """Return what other file of ours data is, and who reads it; "" if it is none."""
    if data.keys() <= PipelineConfig.model_fields.keys() and "engine" in data:
        return "a pipeline's: name it as `pipeline` in the args of an application"
    if data.keys() & {"preset", "target", "drafter", "serve", *EngineConfig.model_fields}:
        return "an engine's, for `diffuspec serve --config`"
    return ""


def unknown_keys(kind: Any, data: object, where: str = "") -> Iterator[str]:
    """Yield the keys of data, as a.b.c, that a model of pydantic has no field for."""
    models = [one for one in _types(kind) if issubclass(one, BaseModel)]
    if isinstance(data, list):
        for item in data:
            yield from unknown_keys(kind, item, where)
    elif isinstance(data, dict) and models:
        fields = models[0].model_fields
        for key, value in data.items():
            if key in fields:
                yield from unknown_keys(fields[key].annotation, value, f"{where}{key}.")
            else:
                yield f"{where}{key}"


def _types(kind: Any) -> Iterator[type]:
    """Yield a type, or the types that a union or a container of them is made of."""
    if get_args(kind):
        for one in get_args(kind):
            yield from _types(one)
    elif isinstance(kind, type):
        yield kind
