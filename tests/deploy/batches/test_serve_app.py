"""The address of the application that Ray Serve runs."""

from types import SimpleNamespace
from typing import Any

import pytest

from deploy.batches.serve_app import url_of
from diffuspec.core.errors import ConfigError

HERE: dict[str, Any] = {"host": "127.0.0.1", "port": 8000, "ssl_certfile": None}
APP = {"route_prefix": "/", "status": "RUNNING"}


def listening(**options: Any) -> Any:
    return SimpleNamespace(**(HERE | options))


def details(**apps: Any) -> dict[str, Any]:
    proxies = {
        "a": {"node_ip": "10.0.0.3", "status": "HEALTHY"},
        "b": {"node_ip": "10.0.0.2", "status": "UNHEALTHY"},
    }
    return {"proxies": proxies, "applications": apps}


@pytest.mark.parametrize(
    ("http", "prefix", "url"),
    [
        (listening(), "/", "http://127.0.0.1:8000"),
        (listening(host="0.0.0.0"), "/", "http://10.0.0.3:8000"),
        (listening(host="::1", ssl_certfile="c"), "/", "https://[::1]:8000"),
        (listening(host="10.1.1.1", port=9000), "/llm", "http://10.1.1.1:9000/llm"),
    ],
)
def test_the_one_running_application_has_a_url(http, prefix, url):
    starting = {"route_prefix": "/b", "status": "DEPLOYING"}
    found = details(a={**APP, "route_prefix": prefix}, b=starting)
    assert url_of(http, found) == url


def test_no_application_or_several_are_refused_by_name():
    with pytest.raises(ConfigError, match="found none; give its URL"):
        url_of(listening(), details(a={**APP, "status": "DEPLOYING"}))
    with pytest.raises(ConfigError, match="found a at /, b at /b"):
        url_of(listening(), details(a=APP, b={**APP, "route_prefix": "/b"}))


def test_a_cluster_without_a_healthy_proxy_is_refused():
    found = details(a=APP) | {"proxies": {}}
    with pytest.raises(ConfigError, match="no proxy of Ray Serve is healthy"):
        url_of(listening(host="0.0.0.0"), found)
