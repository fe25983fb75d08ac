"""`diffuspec ray serve`: the service on a new Ray cluster on this machine.

For a running cluster use Serve's own command: `serve deploy deploy/serve.yaml`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import BaseModel, ValidationError
from ray import serve
from ray.serve._private.api import serve_start
from ray.serve.schema import ApplicationStatus, HTTPOptionsSchema, ServeDeploySchema

from actors.service.settings import ServiceConfig, parse_service
from actors.settings import PipelineConfig
from deploy.addresses import check_listenable
from deploy.app import ROOT
from deploy.cluster_watch import ended_within
from deploy.haproxy import haproxy
from deploy.local_ray import ray_cluster
from deploy.proxy import CALLBACK, CALLBACK_VARIABLE
from diffuspec.cli.command import Command
from diffuspec.core.addresses import MAX_PORT
from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import ConfigError, WorkerError
from diffuspec.core.validation import read_yaml

_FILE = Path(__file__).with_name("serve.yaml")
_POLL_SECONDS = 0.2
_DELETE_SECONDS = 90.0  # Serve itself gives up after 60 s, unless its controller does not answer
_FAILED = (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_Config = Annotated[
    Path,
    typer.Option(
        metavar="FILE.yaml",
        help="A Ray Serve configuration with one application. Default: deploy/serve.yaml, "
        "the embedded pair.",
        show_default=False,
    ),
]
_Port = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        min=1,
        max=MAX_PORT,
        help="Port of the service. Default: the port in the file.",
    ),
]


@app.command(cls=Command)
def run(config: _Config = _FILE, port: _Port = None) -> None:
    """Serve OpenAI's API on a Ray cluster of its own until Ctrl-C or SIGTERM.

    Prints how to call it once it answers, and leaves nothing behind.
    """
    schema = read_serve_file(config)
    if port is not None:
        schema.http_options.port = port
    http = schema.http_options
    if len(schema.applications) != 1:
        raise ConfigError(f"{config} must have one application, got {len(schema.applications)}")
    service = parse_service(schema.applications[0].args, ROOT)
    check_listenable("http_options", http.host, http.port)
    os.environ[CALLBACK_VARIABLE] = CALLBACK
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        haproxy(http.ssl_certfile is not None, service.http) as directories,
        ray_cluster("local", service.pipeline, directories=directories),
        _serving(schema),
    ):
        url = url_of(http)
        _wait_until_ready(schema.applications[0].name, url)
        typer.echo(_instructions(url, service))
        _wait_for_a_signal()
        typer.echo("stopping", err=True)


@contextlib.contextmanager
def _serving(schema: ServeDeploySchema) -> Iterator[None]:
    """Let Serve run the applications of a file, like `serve run FILE`."""
    client: Any = serve_start(
        http_options=schema.http_options.model_dump(), proxy_location=schema.proxy_location
    )
    try:
        client.deploy_apps(schema)
        yield
    finally:
        with (
            contextlib.suppress(TimeoutError),
            ended_within(_DELETE_SECONDS, "the end of the application"),
        ):
            serve.delete(schema.applications[0].name)


def _wait_until_ready(name: str, url: str) -> None:
    """Return once an application answers requests. Raises WorkerError when Serve gives up."""
    while not answers(f"{url}/ready"):
        found = serve.status().applications.get(name)
        if found is not None and found.status in _FAILED:
            reasons = [found.message, *(one.message for one in found.deployments.values())]
            raise WorkerError("the application does not start: " + " ".join(filter(None, reasons)))
        time.sleep(_POLL_SECONDS)


def url_of(http: HTTPOptionsSchema) -> str:
    """Return the URL at which Serve's application is reached on this machine."""
    return f"{'http' if http.ssl_certfile is None else 'https'}://{http.host}:{http.port}"


def answers(url: str) -> bool:
    """Return whether a URL of this machine answers, whatever name its certificate has.

    No proxy of the environment is used.
    """
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=unchecked)
    )
    try:
        with opener.open(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _instructions(url: str, service: ServiceConfig) -> str:
    has_keys = service.http.api_keys is not None
    key, header = ("KEY", " -H 'authorization: Bearer KEY'") if has_keys else ("none", "")
    question = '[{"role": "user", "content": "What is the capital of France?"}]'
    return (
        f"serving {service.model_name} on {url}\n\n"
        f"curl {url}/v1/chat/completions -H 'content-type: application/json'{header} \\\n"
        f'  -d \'{{"messages": {question}, "temperature": 0, "max_tokens": 64}}\'\n\n'
        f'python -c \'from openai import OpenAI; print(OpenAI(base_url="{url}/v1", '
        f'api_key="{key}").chat.completions.create(model="{service.model_name}", '
        f"messages={question}, temperature=0, max_tokens=64).choices[0].message.content)'\n\n"
        "Ctrl-C stops it."
    )


def _wait_for_a_signal() -> None:
    ended = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: ended.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    ended.wait()
    for number, handler in before.items():  # the other handler would end the process at once
        signal.signal(number, handler)


def read_serve_file(path: Path) -> ServeDeploySchema:
    """Read a file like deploy/serve.yaml. Raises ConfigError for keys that Serve would ignore."""
    data = read_yaml(path)
    if "applications" not in data and (other := _other_kind(data)):
        raise ConfigError(
            f"{path} is not a file of Ray Serve, such as deploy/serve.yaml, but {other}"
        )
    if unknown := [*unknown_keys(ServeDeploySchema, data)]:
        raise ConfigError(f"{path}: Ray Serve has no key {', '.join(unknown)}")
    try:
        return ServeDeploySchema.model_validate(data)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(f"{path}: {'; '.join(problems)}") from error


def _other_kind(data: Mapping[str, Any]) -> str:
    """Return which other kind of file the data is, and its command; "" if it is unknown."""
    if data.keys() <= PipelineConfig.model_fields.keys() and "engine" in data:
        return "a pipeline's: name it as `pipeline` in the args of an application"
    if data.keys() & {"preset", "target", "drafter", "serve", *EngineConfig.model_fields}:
        return "an engine's, for `diffuspec serve --config`"
    return ""


def unknown_keys(kind: Any, data: object, where: str = "") -> Iterator[str]:
    """Yield the keys of data, as a.b.c, for which a pydantic model has no field."""
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
    """Yield a type, or the member types of a union or a container."""
    if get_args(kind):
        for one in get_args(kind):
            yield from _types(one)
    elif isinstance(kind, type):
        yield kind


if __name__ == "__main__":
    app()
