"""Files for Prometheus and Grafana: their names are the code's, the real Prometheus agrees."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from deploy.grafana import make_dashboard
from diffuspec.core.errors import VerifierError
from diffuspec.serve.http.observer import HttpSeries
from diffuspec.serve.settings import ServeSettings
from diffuspec.telemetry.metrics import Metrics
from tests.support.checkpoints import NUM_IDS
from tests.support.fakes import FAKE_TARGET, FakeVerifier
from tests.support.ports import free_port
from tests.support.service import fake_engine, serving

HERE = make_dashboard.PATH.parent
POISON = 7  # a prompt that begins with it fails

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus and promtool are not installed",
)


def queries() -> list[str]:
    panels = make_dashboard.dashboard()["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def names_in_code() -> set[str]:
    names = set()
    for series in (*Metrics().table.series, *HttpSeries().table.series):
        suffixes = ("_bucket", "_count", "_sum") if series.kind == "histogram" else ("",)
        names |= {series.name + suffix for suffix in suffixes}
    return names


def test_the_dashboard_is_the_one_that_its_panels_make():
    assert make_dashboard.PATH.read_text() == make_dashboard.text()


def test_panels_have_a_text_and_do_not_overlap():
    places: set[tuple[int, int]] = set()
    for panel in make_dashboard.dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] // 8, y) for y in range(place["y"], place["y"] + place["h"])}
        assert places.isdisjoint(cells), panel["title"]
        places |= cells
        assert panel["type"] == "row" or panel["description"].endswith(".")


@pytest.mark.parametrize("name", ["dashboard.json", "rules.yml", "rules_test.yml"])
def test_every_series_named_in_a_file_exists(name):
    named = set(re.findall(r"\bdiffuspec_[a-z0-9_]+", (HERE / name).read_text()))
    assert named and named <= names_in_code()


def test_every_series_of_the_code_is_in_the_dashboard():
    shown = " ".join(queries())
    shown_elsewhere = {"diffuspec_active_seconds_total", "diffuspec_role_busy_seconds_total"}
    stems = {re.sub(r"_(bucket|count|sum)$", "", name) for name in names_in_code()}
    assert {stem for stem in stems if stem not in shown} <= shown_elsewhere


@needs_prometheus
@pytest.mark.parametrize(
    "check",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
    ],
)
def test_promtool_accepts_the_files_and_the_alerts_fire_when_they_should(check):
    done = subprocess.run(["promtool", *check], cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class _Poisoned(FakeVerifier):
    async def verify(self, requests):
        if any(request.prefix[0] == POISON for request in requests):
            raise VerifierError("this prompt fails")
        await asyncio.sleep(0.001)
        return await super().verify(requests)


@contextmanager
def prometheus(target: str, tmp_path: Path) -> Iterator[str]:
    """Run the real Prometheus with our configuration, but twice a second; yield its URL."""
    config = yaml.safe_load((HERE / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config["rule_files"] = [str(HERE / "rules.yml")]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


async def load(client: httpx2.AsyncClient, end: asyncio.Event) -> None:
    """Ask for answers, streamed and not, and for what fails and what is refused."""
    asked: dict[str, Any] = {"max_tokens": 64, "temperature": 0, "ignore_eos": True}
    bodies = [
        asked | {"prompt": "hello", "stream": True},
        asked | {"prompt": "a longer one"},
        asked | {"prompt": [POISON]},
        asked | {"prompt": 1},
    ]
    while not end.is_set():
        await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))


async def until_all_answer(client: httpx2.AsyncClient, url: str) -> None:
    """Wait until every query of the dashboard has data."""
    left = {
        query.replace("$job", "diffuspec")
        .replace("$pipeline", ".*")
        .replace("$__rate_interval", "10s")
        for query in queries()
    }
    async with asyncio.timeout(60):
        while left:
            await asyncio.sleep(0.5)
            for query in sorted(left):
                try:
                    answer = await client.get(f"{url}/api/v1/query", params={"query": query})
                except httpx2.TransportError:  # it is starting
                    break
                data = json.loads(answer.text)
                assert data["status"] == "success", data
                if data["data"]["result"]:
                    left.discard(query)


@needs_prometheus
@pytest.mark.process
async def test_prometheus_answers_every_query_of_the_dashboard_against_a_service_at_work(tmp_path):
    def engine():
        made = fake_engine(_Poisoned(replace(FAKE_TARGET, vocab_size=NUM_IDS)))
        coordinator = made.config.coordinator.model_copy(update={"overlap": True})
        made.config = made.config.model_copy(update={"coordinator": coordinator})
        return made

    with serving(engine, ServeSettings()) as service:
        address = service.url.removeprefix("http://")
        async with httpx2.AsyncClient(base_url=service.url, timeout=30) as client:
            end = asyncio.Event()
            asking = asyncio.create_task(load(client, end))
            with prometheus(address, tmp_path) as url:
                await until_all_answer(client, url)
                rules = json.loads((await client.get(f"{url}/api/v1/rules")).text)
            end.set()
            await asking
    health = {
        rule["name"]: rule["health"] for group in rules["data"]["groups"] for rule in group["rules"]
    }
    assert len(health) == 10 and set(health.values()) <= {"ok", "unknown"}, health
