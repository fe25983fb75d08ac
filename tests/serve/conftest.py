"""One service over the embedded pair for all tests, with OpenAI's client; and fake ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from diffuspec.engine import Engine
from diffuspec.pairs.tiny import tiny_config
from diffuspec.serve.settings import ServeSettings
from tests.support.browser import Page, open_page
from tests.support.service import ScriptedService, Service, serving, serving_scripted


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    with serving(lambda: Engine.from_config(tiny_config()), ServeSettings()) as service:
        yield service


@pytest.fixture(scope="session")
def client(service: Service) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def scripted() -> Iterator[ScriptedService]:
    with serving_scripted() as service:
        yield service


@pytest.fixture(scope="session")
def browser() -> Iterator[Page]:
    with open_page() as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Page:
    """The page of one browser for all tests, without problems so far."""
    browser.problems.clear()
    return browser
