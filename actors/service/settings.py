"""Configuration of the service: the application's `args` in a Ray Serve file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from actors.settings import PipelineConfig, Seconds, load_pipeline, parse_pipeline
from diffuspec.core.errors import ConfigError
from diffuspec.core.validation import Section, validate
from diffuspec.serve.settings import ServeSettings

ModelName = Annotated[str, Field(min_length=1, max_length=128)]


class ServiceConfig(Section):
    """The application's arguments."""

    pipeline: PipelineConfig = Field(
        description="For each pipeline, the path of its file, or the sections of the file "
        "themselves."
    )
    http: ServeSettings = Field(ServeSettings(), description="Limits of the HTTP service.")
    model_name: ModelName = Field(
        "diffuspec", description="The name of the model that clients see."
    )
    patience_seconds: Seconds = Field(
        120,
        description="Seconds that a running request waits for another pipeline when it loses its "
        "own.",
    )


def parse_service(data: Mapping[str, Any], root: Path) -> ServiceConfig:
    """Validate plain data. Relative paths of pipeline and key files start at `root`.

    Raises ConfigError.
    """
    if "pipeline" not in data:
        raise ConfigError("pipeline is missing: give the path of its file, or its sections")
    given = data["pipeline"]
    if not isinstance(given, str | dict):
        raise ConfigError(f"pipeline must be the path of a file or a mapping, got {given!r:.80}")
    pipeline = load_pipeline(root / given) if isinstance(given, str) else parse_pipeline(given)
    config = validate(ServiceConfig, {**data, "pipeline": pipeline})
    if config.http.audit_rate:
        audited = pipeline.model_copy(update={"audit_rate": config.http.audit_rate})
        config = config.model_copy(update={"pipeline": audited})
    if config.http.api_keys is None:
        return config
    http = config.http.model_copy(update={"api_keys": root / config.http.api_keys})
    return config.model_copy(update={"http": http})
