"""`diffuspec ray serve`: the service on a Ray cluster of its own, on this machine.

For a cluster that runs already use Serve's own command: `serve deploy deploy/serve.yaml`.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from ray import serve
from ray.serve._private.api import serve_start
from ray.serve.schema import ApplicationStatus, HTTPOptionsSchema, ServeDeploySchema

from actors.service.settings import ServiceConfig, parse_service
from deploy.addresses import check_listenable
from deploy.app import ROOT
from deploy.deadline import ended_within
from deploy.haproxy import haproxy
from deploy.local_ray import ray_cluster
from deploy.proxy import CALLBACK, CALLBACK_VARIABLE
from deploy.serve_file import read_serve_file
from diffuspec.cli.command import Command
from diffuspec.core.errors import ConfigError, WorkerError

_FILE = Path(__file__).with_name("serve.yaml")
_POLL_SECONDS = 0.2
_DELETE_SECONDS = 90.0  # Serve itself gives up after 60, unless its controller does not answer
_FAILED = (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_Config = Annotated[
    Path,
    typer.Option(
        metavar="FILE.yaml",
        help="A file of Serve with one application. Default: deploy/serve.yaml, the embedded pair.",
        show_default=False,
    ),
]
_Port = Annotated[
    int | None,
    typer.Option(metavar="PORT", min=1, max=65535, help="Default: the port of the file."),
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
        haproxy(http.ssl_certfile is not None, service.http) as litter,
        ray_cluster("local", service.pipeline, litter=litter),
        _serving(schema),
    ):
        url = url_of(http)
        _wait_until_ready(schema.applications[0].name, url)
        typer.echo(_instructions(url, service))
        _wait_for_a_signal()
        typer.echo("stopping", err=True)


@contextlib.contextmanager
def _serving(schema: ServeDeploySchema) -> Iterator[None]:
    """Have Serve run the applications of a file, as `serve run FILE` does."""
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
    """Return where an application of Serve is reached on this machine."""
    return f"{'http' if http.ssl_certfile is None else 'https'}://{http.host}:{http.port}"


def answers(url: str) -> bool:
    """Whether a URL of our own answers, whatever name its certificate has."""
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=5, context=unchecked):
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
        f"  -d '{{\"messages\": {question}}}'\n\n"
        f'python -c \'from openai import OpenAI; print(OpenAI(base_url="{url}/v1", '
        f'api_key="{key}").chat.completions.create(model="{service.model_name}", '
        f"messages={question}).choices[0].message.content)'\n\n"
        "Ctrl-C stops it."
    )


def _wait_for_a_signal() -> None:
    ended = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: ended.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    ended.wait()
    for number, handler in before.items():  # another one ends the process at once
        signal.signal(number, handler)


if __name__ == "__main__":
    app()
