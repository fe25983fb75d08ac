"""One service over the embedded pair for all tests, with OpenAI's client; and fake ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from httpx2 import AsyncClient
from openai import OpenAI

from diffuspec.engine.engine import Engine
from diffuspec.serve.settings import ServeSettings
from tests.support.browser import CHROMIUM, Page, open_page
from tests.support.engines import short_tiny_config
from tests.support.service import (
    ScriptedService,
    Service,
    fake_engine,
    http_client,
    serving,
    serving_scripted,
)


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    with serving(lambda: Engine.from_config(short_tiny_config()), ServeSettings()) as service:
        yield service


@pytest.fixture(scope="session")
def client(service: Service) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def scripted() -> Iterator[ScriptedService]:
    with serving_scripted() as service:
        yield service


@pytest.fixture
async def http() -> AsyncIterator[AsyncClient]:
    """A client of the application over fake roles, without a server."""
    async with http_client(fake_engine()) as client:
        yield client


@pytest.fixture(scope="session")
def browser() -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH")
    with open_page() as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Page:
    """The page of one browser for all tests, without problems so far."""
    browser.problems.clear()
    return browser
