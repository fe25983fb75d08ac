"""Proxies of the environment: never for loopback, and named where they fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.batches.http import HttpService
from deploy.batches.proxies import proxy_of
from deploy.serve import answers
from diffuspec.core.errors import ConfigError
from diffuspec.serve.settings import ServeSettings
from tests.support.service import MODEL, Service, fake_engine, serving

NOWHERE = "127.0.0.1:1"  # nothing listens there
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving(fake_engine, ServeSettings()) as service:
        yield service


def batch_service(address: str) -> HttpService:
    return HttpService(address, None, concurrency=1, timeout_seconds=5)


@pytest.mark.parametrize(
    ("url", "variables", "expected"),
    [
        ("http://example.com", {}, None),
        ("http://example.com", {"http_proxy": "http://p:1"}, "http://p:1"),
        ("http://example.com", {"HTTP_PROXY": "p:1"}, "http://p:1"),
        ("https://example.com", {"http_proxy": "http://p:1"}, None),
        ("https://example.com", {"ALL_PROXY": "socks://p:1"}, "socks://p:1"),
        ("http://example.com:8000", {"all_proxy": "p:1", "no_proxy": "example.com"}, None),
        ("http://127.0.0.1:8000", {"http_proxy": "p:1"}, None),
        ("http://localhost", {"http_proxy": "p:1"}, None),
        ("https://[::1]:8000", {"ALL_PROXY": "p:1"}, None),
        ("http://[", {"ALL_PROXY": "p:1"}, None),
    ],
)
def test_the_environment_names_a_proxy_for_other_machines_alone(
    monkeypatch: pytest.MonkeyPatch, url: str, variables: dict[str, str], expected: str | None
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_of(url) == expected


@pytest.mark.parametrize("proxy", [f"http://{NOWHERE}", f"socks://{NOWHERE}"])
async def test_a_service_on_loopback_is_reached_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch, service: Service, proxy: str
):
    for name in ("http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy)
    assert answers(f"{service.url}/ready")
    async with batch_service(service.url) as batch:
        assert batch.model == MODEL


async def test_a_proxy_that_fails_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", f"http://me:secret@{NOWHERE}")
    with pytest.raises(ConfigError, match=f"by the proxy http://{NOWHERE} of the env") as failure:
        async with batch_service("http://example.invalid"):
            pass
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize("scheme", ["socks", "socks5", "ftp"])
def test_a_proxy_of_another_kind_is_refused_with_a_way_without_it(
    monkeypatch: pytest.MonkeyPatch, scheme: str
):
    monkeypatch.setenv("ALL_PROXY", f"{scheme}://{NOWHERE}")
    wanted = rf"by the proxy {scheme}://{NOWHERE} .* http:// or https://; NO_PROXY=HOST"
    with pytest.raises(ConfigError, match=wanted):
        batch_service("http://example.invalid")
