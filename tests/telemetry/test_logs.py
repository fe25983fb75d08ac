"""Log lines as operators and their tools read them."""

import contextvars
import json
import logging

import pytest

from diffuspec.core.errors import ConfigError
from diffuspec.telemetry import context, logs

logger = logging.getLogger("diffuspec.a_module")


def test_json_lines_hold_the_request_the_trace_and_the_error(capsys):
    def one_request() -> None:
        context.request_id.set("abc")
        context.traceparent.set("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
        try:
            raise ValueError("no")
        except ValueError:
            logger.exception("it failed\nat %d", 7)

    logs.configure("json")
    contextvars.Context().run(one_request)
    logger.info("of another request", extra=logs.about("xyz"))
    logger.info("of none")
    first, second, third = map(json.loads, capsys.readouterr().err.splitlines())
    assert first["message"] == "it failed\nat 7" and first["level"] == "error"
    assert first["logger"] == "diffuspec.a_module" and first["time"].endswith("Z")
    assert (first["request_id"], first["trace_id"]) == ("abc", "4bf92f3577b34da6a3ce929d0e0e4736")
    assert first["error"].endswith("ValueError: no")
    assert second["request_id"] == "xyz" and "trace_id" not in second
    assert set(third) == {"time", "level", "logger", "message"}


def test_a_message_is_one_line_of_text(capsys):
    logs.configure("text")
    logger.warning("first\n2026 INFO forged", extra=logs.about("abc"))
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("WARNING diffuspec.a_module [abc] first 2026 INFO forged")


def test_variables_set_the_form_and_the_level(capsys, monkeypatch):
    monkeypatch.setenv("DIFFUSPEC_LOG_FORMAT", "JSON")
    monkeypatch.setenv("DIFFUSPEC_LOG_LEVEL", "warning")
    logs.configure()
    logs.configure()  # replaces, does not add
    logger.info("not shown")
    logger.warning("shown")
    [line] = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "shown"


def test_a_wrong_variable_is_refused(monkeypatch):
    monkeypatch.setenv("DIFFUSPEC_LOG_LEVEL", "loud")
    with pytest.raises(ConfigError, match="DIFFUSPEC_LOG_LEVEL must be one of debug, info"):
        logs.configure()
