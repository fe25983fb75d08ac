"""When a pipeline is lost for good, and when a service may not be open to the network."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve
from ray.serve._private import constants

from actors.pipeline import Pipeline
from actors.service import ingress
from actors.service.ingress import _check_access
from actors.service.replica import PipelineOptions
from actors.service.settings import ServiceConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.validation import validate
from tests.actors.conftest import tiny_pipeline


@pytest.mark.parametrize(
    ("is_removed", "seconds_out", "is_draining", "problem"),
    [
        (False, 0.0, False, "^$"),
        (False, 29.0, False, "^$"),  # it may answer again
        (False, 31.0, False, "^no coordinator for 31 s: no room$"),
        (True, 0.0, False, "placement group"),
        (True, 0.0, True, "^$"),
    ],
)
async def test_a_pipeline_is_lost_without_its_placement_group_or_a_coordinator_in_time(
    is_removed, seconds_out, is_draining, problem
):
    deadlines = {"placement_seconds": 10, "start_seconds": 20}
    pipeline: Any = Pipeline(tiny_pipeline(deadlines=deadlines))
    pipeline._placement = SimpleNamespace(is_lost=lambda: asyncio.sleep(0, is_removed))
    pipeline._coordinator = SimpleNamespace(seconds_out=seconds_out, problem="no room")
    pipeline._is_draining = is_draining
    assert re.search(problem, await pipeline.fatal_problem())


def test_unknown_options_of_a_pipeline_are_refused():
    assert not validate(PipelineOptions, {"accepts_requests": False}).accepts_requests
    with pytest.raises(ConfigError, match="unknown key `accept`"):
        validate(PipelineOptions, {"accept": False})


def listens_at(monkeypatch: pytest.MonkeyPatch, *, host: str, tls: str = "") -> None:
    client = SimpleNamespace(http_config=SimpleNamespace(host=host, ssl_certfile=tls))
    monkeypatch.setattr(serve.context, "_get_global_client", lambda: client)


@pytest.mark.parametrize(
    ("host", "keys", "is_allowed"),
    [
        ("127.0.0.1", None, True),
        ("0.0.0.0", None, False),
        ("10.0.0.1", None, False),
        ("0.0.0.0", "keys.yaml", True),
    ],
)
def test_off_loopback_a_service_needs_keys(monkeypatch, tmp_path, host, keys, is_allowed):
    listens_at(monkeypatch, host=host)
    http = {} if keys is None else {"api_keys": tmp_path / keys}
    config = validate(ServiceConfig, {"pipeline": tiny_pipeline(), "http": http})
    if is_allowed:
        _check_access(config)
    else:
        with pytest.raises(ConfigError, match=r"off loopback the service needs API keys"):
            _check_access(config)


def test_haproxy_is_refused_with_tls(monkeypatch):
    listens_at(monkeypatch, host="127.0.0.1", tls="node.pem")
    config = validate(ServiceConfig, {"pipeline": tiny_pipeline()})
    _check_access(config)
    monkeypatch.setattr(constants, "RAY_SERVE_ENABLE_HA_PROXY", True)
    monkeypatch.setattr(ingress, "_is_on_head", lambda: True)
    with pytest.raises(ConfigError, match="HAProxy speaks no TLS"):
        _check_access(config)


def test_behind_haproxy_an_ingress_on_loopback_is_refused_off_the_head(monkeypatch):
    listens_at(monkeypatch, host="127.0.0.1")
    config = validate(ServiceConfig, {"pipeline": tiny_pipeline()})
    monkeypatch.setattr(constants, "RAY_SERVE_ENABLE_HA_PROXY", True)
    monkeypatch.setattr(ingress, "_is_on_head", lambda: True)
    _check_access(config)
    monkeypatch.setattr(ingress, "_is_on_head", lambda: False)
    with pytest.raises(ConfigError, match=r"http_options\.host is 127\.0\.0\.1, where the head"):
        _check_access(config)
