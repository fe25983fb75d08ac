"""The page at /: what is served, and what it does in a browser; and the one at /docs in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from httpx2 import AsyncClient
from openai import OpenAI

from diffuspec.serve.openai.bodies import ChatBody
from diffuspec.serve.openai.schema import body_schema
from diffuspec.serve.settings import ServeSettings
from tests.support.browser import Page
from tests.support.service import MODEL, Service, fake_engine, http_client

PAGE = files("diffuspec.serve").joinpath("playground")
SCRIPTS = sorted(file.name for file in PAGE.iterdir() if file.name.endswith(".js"))
STORY = "Tell me a short story about an owl named Rex and a ring in a forest."


async def test_the_page_and_all_that_it_names_are_served(http: AsyncClient):
    page = await http.get("/")
    parts = re.findall(r'(?:src|href)="(playground/[^"]+)"', page.text)
    imports = [f"playground/{name}" for script in SCRIPTS for name in _imports(script)]
    for part in {*parts, *imports}:
        assert (await http.get(f"/{part}")).status_code == 200, part
    assert len(parts) == 3 and imports
    assert page.headers["content-type"] == "text/html; charset=utf-8"


async def test_the_page_may_load_and_reach_nothing_elsewhere(http: AsyncClient):
    policy = (await http.get("/")).headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    for file in PAGE.iterdir():
        addresses = re.findall(r"https?://[^\"' )]+", file.read_text())
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, file.name


async def test_a_browser_that_has_the_page_is_told_so(http: AsyncClient):
    tag = (await http.get("/")).headers["etag"]
    assert (await http.get("/", headers={"if-none-match": tag})).status_code == 304


async def test_other_files_are_not_served(http: AsyncClient):
    assert (await http.get("/playground/backend.py")).status_code == 404
    assert (await http.get("/playground/..%2Fapp.py")).status_code == 404


async def test_the_page_can_be_switched_off():
    async with http_client(fake_engine(), ServeSettings(playground=False)) as client:
        assert (await client.get("/")).status_code == 404


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on PATH")
@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_valid(script: str):
    command = ["node", "--check", "--input-type=module"]
    source = PAGE.joinpath(script).read_bytes()
    assert subprocess.run(command, input=source).returncode == 0


@pytest.mark.process
def test_a_browser_shows_the_same_tokens_with_and_without_speculation(
    service: Service, client: OpenAI, page: Page
):
    _run(page, service)
    assert "same tokens: yes" in page.evaluate("document.querySelector('#verdict').innerText")
    shown = page.evaluate(
        "[...document.querySelectorAll('#drafted .token')].map(one => one.innerText).join('')"
    )
    _open_a_tree(page)
    assert page.problems == []
    messages: Any = [{"role": "user", "content": STORY}]
    plain = {"speculation": "off"}
    reply = client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, max_tokens=128, extra_body=plain
    )
    assert shown.removesuffix("◦") == reply.choices[0].message.content


@pytest.mark.process
def test_what_the_form_leaves_open_is_the_service_s_own(service: Service, page: Page):
    _open(page, service)
    page.evaluate("""window.bodies = []; const sent = window.fetch;
        window.fetch = (...call) => { bodies.push(call[1]?.body); return sent(...call); }""")
    for fields, expected in (
        ({}, {}),
        ({"max-nodes": "8", "drafter-weight": "0"}, {"max_nodes": 8, "drafter_weight": 0}),
    ):
        for name, given in fields.items():
            page.evaluate(f"document.getElementById('{name}').value = '{given}'")
        page.evaluate("document.querySelector('#compare').checked = false")
        page.evaluate("document.querySelector('#run').click()")
        page.wait_for("document.querySelector('#status').innerText.startsWith('Done')")
        page.evaluate("document.querySelector('#status').innerText = ''")
        speculation = json.loads(page.evaluate("bodies.splice(0)[0]"))["speculation"]
        assert speculation == {**expected, "report_drafts": True}
    assert page.problems == []


@pytest.fixture
def narrow(page: Page) -> Iterator[Page]:
    with _sized(page, 360, 640, mobile=True):
        yield page


@pytest.mark.process
def test_a_phone_has_all_links_and_no_advice_about_keys(service: Service, narrow: Page):
    narrow.call("Emulation.setEmulatedMedia", features=[{"name": "hover", "value": "none"}])
    _open(narrow, service)
    hidden = "[...document.querySelectorAll('.keys')].map((one) => one.checkVisibility())"
    links = "[...document.querySelectorAll('nav a')].map((one) => one.checkVisibility())"
    assert narrow.evaluate(links) == [True, True]
    assert not any(narrow.evaluate(hidden))
    narrow.call("Emulation.setEmulatedMedia", features=[])


@pytest.mark.process
def test_a_phone_shows_the_prompt_and_run_and_folds_the_settings(service: Service, narrow: Page):
    _open(narrow, service)
    assert not narrow.evaluate("document.querySelector('#settings').open")
    bottom = narrow.evaluate("document.querySelector('#run').getBoundingClientRect().bottom")
    assert bottom < 640


@pytest.mark.process
def test_the_prompt_has_the_focus_and_an_empty_one_is_told(service: Service, page: Page):
    _open(page, service)
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.evaluate("document.querySelector('#prompt').value = ' '")
    page.evaluate("document.querySelector('#run').click()")
    assert page.evaluate("document.querySelector('#error').innerText").startswith("The prompt is")
    assert page.evaluate("document.querySelector('#status').innerText") == ""


@pytest.mark.process
def test_only_a_gain_is_green(service: Service, page: Page):
    _run(page, service)
    shown = page.evaluate("document.querySelector('#verdict b').innerText")
    is_green = page.evaluate("document.querySelector('#verdict b').className === 'faster'")
    assert is_green == (float(shown.removesuffix("x")) > 1)


@pytest.mark.process
def test_the_legend_comes_with_the_first_answer(service: Service, page: Page):
    is_shown = "document.querySelector('#legend').checkVisibility()"
    _open(page, service)
    assert not page.evaluate(is_shown)
    _run(page, service)
    assert page.evaluate(is_shown)


@pytest.mark.process
def test_the_fields_of_a_line_are_level(service: Service, page: Page):
    with _sized(page, 1280, 800, mobile=False):
        _open(page, service)
        tops = """[...document.querySelectorAll(".row")].map((row) =>
          [...row.querySelectorAll("input, select")].map(
            (one) => one.getBoundingClientRect().top))"""
        for line in page.evaluate(tops):
            assert max(line) - min(line) < 1


@pytest.mark.process
def test_tokens_per_second_are_those_of_the_time_line(service: Service, page: Page):
    _run(page, service)
    figures = """[...document.querySelectorAll("#drafted dl div")].map((one) =>
      [one.querySelector("dt").innerText, Number(one.querySelector("dd").innerText)])"""
    found = dict(page.evaluate(figures))
    end = page.evaluate("document.querySelector('#drafted .timeline').lastChild.textContent")
    seconds = float(end.removesuffix(" ms")) / 1000
    assert found["tokens"] / seconds == pytest.approx(found["tokens/s"], rel=0.02, abs=1)


@contextmanager
def _sized(page: Page, width: int, height: int, *, mobile: bool) -> Iterator[None]:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    page.call("Emulation.setDeviceMetricsOverride", **size)
    yield
    page.call("Emulation.clearDeviceMetricsOverride")


@pytest.mark.process
def test_in_a_narrow_window_nothing_is_cut_off_or_shrunk(service: Service, narrow: Page):
    _run(narrow, service)
    assert narrow.evaluate("document.documentElement.scrollWidth") == 360
    scale = narrow.evaluate("document.querySelector('.timeline').getScreenCTM().a")
    assert scale == pytest.approx(1, abs=0.01)
    missing = narrow.evaluate(_MISSING_WIDTHS)
    assert len(missing) == 2 and max(missing) <= 0


@pytest.mark.process
def test_the_first_time_line_is_drawn_again_when_the_second_answer_takes_half_of_its_place(
    service: Service, page: Page
):
    with _sized(page, 1280, 800, mobile=False):
        _run(page, service)
        page.wait_for(
            "[...document.querySelectorAll('.timeline')]"
            ".every((one) => Math.abs(one.getScreenCTM().a - 1) < 0.01)"
        )
        widths = "[...document.querySelectorAll('.timeline')].map((one) => one.clientWidth)"
        first, second = page.evaluate(widths)
    assert first == second < 640


# How much wider each list of options would be if it were as wide as its longest one.
_MISSING_WIDTHS = """[...document.querySelectorAll("select")].map((list) => {
  const shown = list.offsetWidth;
  list.style.width = "max-content";
  const whole = list.offsetWidth;
  list.style.width = "";
  return whole - shown;
})"""


def _open(page: Page, service: Service) -> None:
    page.open(service.url)
    page.wait_for(f"document.querySelector('#model')?.textContent === '{MODEL}'")


def _run(page: Page, service: Service) -> None:
    _open(page, service)
    assert page.evaluate("document.querySelector('#prompt').value") == STORY
    page.evaluate(  # a length of its own: whether drafts pay is measured otherwise
        "const policy = document.querySelector('#policy'); policy.value = 'fixed';"
        "policy.dispatchEvent(new Event('change', {bubbles: true}));"
        "document.querySelector('#run').click()"
    )
    page.wait_for("!document.querySelector('#verdict').hidden")


def _open_a_tree(page: Page) -> None:
    """Go to a drafted token by keyboard, and open the tree of its step."""
    page.evaluate("document.querySelector('#drafted .accepted').focus()")
    page.press("Enter")
    page.wait_for("document.querySelector('#step').open")
    boxes = page.evaluate("document.querySelectorAll('#step-tree .accepted rect').length")
    assert boxes > 0
    assert page.evaluate("document.querySelector('#step-summary').innerText").startswith(
        f"{boxes} accepted of a tree"
    )


def _imports(script: str) -> list[str]:
    return re.findall(r'from "\./([^"]+)"', PAGE.joinpath(script).read_text())


@pytest.mark.process
def test_a_browser_shows_the_endpoints_at_docs(service: Service, page: Page):
    page.open(f"{service.url}/docs")
    page.wait_for("document.querySelectorAll('.opblock-summary-path').length > 5")
    paths = page.evaluate(
        "[...document.querySelectorAll('.opblock-summary-path')].map(one => one.innerText).join()"
    )
    assert "completions" in paths
    assert page.problems == []


async def test_the_page_loads_only_what_the_service_has_itself(http: AsyncClient):
    page = await http.get("/docs")
    parts = re.findall(r'(?:src|href)="(docs/[^"]+)"', page.text)
    for part in parts:
        assert (await http.get(f"/{part}")).status_code == 200, part
    assert (await http.get("/docs/core.py")).status_code == 404
    policy = (await http.get(f"/{parts[0]}")).headers["content-security-policy"]
    assert len(parts) == 3 and "http" not in page.text
    assert policy == page.headers["content-security-policy"]
    assert "script-src 'self';" in policy and "http" not in policy


@pytest.mark.parametrize(
    "extra",
    [{"stop": "."}, {"stop": [".", "!"]}, {"bad_words": "no"}, {"top_k": -1}, {"user": "a"}],
    ids=str,
)
async def test_the_schema_has_what_clients_of_openai_and_vllm_send(extra: dict[str, object]):
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **extra}
    async with fake_engine() as engine, http_client(engine) as client:
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    jsonschema.validate(body, body_schema(ChatBody) | {"additionalProperties": False})
