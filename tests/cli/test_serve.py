"""`diffuspec serve`: what is refused before anything is loaded."""

import logging
import socket

import pytest

from diffuspec.cli import options, serve
from diffuspec.cli.parameters import NOTHING_GIVEN
from diffuspec.core.errors import ConfigError
from tests.cli.conftest import error_line


def test_off_loopback_keys_are_demanded(diffuspec):
    result = diffuspec("serve", "--host", "0.0.0.0", "--port", "0")
    assert error_line(result) == "0.0.0.0 can be reached by others: give --api-keys FILE.yaml"


def test_a_warning_of_a_service_is_a_line_of_its_log_and_no_other(diffuspec, monkeypatch):
    def warned(*_: object) -> None:
        logging.getLogger("diffuspec.serve").warning("once")
        raise ConfigError("that is all")

    monkeypatch.setattr(serve.ServiceOptions, "tls", warned)
    warning, error = diffuspec("serve").stderr.splitlines()
    assert warning.endswith("WARNING diffuspec.serve once") and error == "error: that is all"


@pytest.mark.parametrize("text", [None, "no PEM"])
def test_files_that_are_no_certificate_and_key_are_named(diffuspec, tmp_path, text):
    certificate, key = tmp_path / "a.pem", tmp_path / "a.key"
    if text is not None:
        certificate.write_text(text)
        key.write_text(text)
    result = diffuspec("serve", "--tls-certificate", str(certificate), "--tls-key", str(key))
    line = error_line(result)
    assert f"--tls-certificate {certificate} and --tls-key {key} must be" in line


@pytest.mark.parametrize("given", ["max_waiting: 3", "drain_seconds: -1"])
def test_what_is_wrong_in_the_section_of_the_service_is_named_with_it(diffuspec, tmp_path, given):
    file = tmp_path / "serve.yaml"
    file.write_text(f"serve: {{{given}}}\n")
    assert error_line(diffuspec("serve", "--config", str(file))).startswith("serve")


def test_a_file_of_the_service_alone_leaves_the_models_to_the_options(diffuspec, tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("serve: {playground: false}\n")
    result = diffuspec("serve", "--config", str(file), "--target", "nowhere", "--port", "0")
    assert result.exit_code == 2
    assert result.stderr.endswith("error: target.path: model directory nowhere does not exist\n")


def test_a_wrong_source_of_sampling_defaults_is_refused_before_models_are_loaded(diffuspec):
    line = error_line(diffuspec("serve", "--generation-config", "nowhere", "--port", "0"))
    assert line.startswith("generation_config must be auto, vllm or a directory")


def test_a_service_is_strict_by_an_option_or_its_file():
    assert serve.ServiceOptions(strict=True).settings({}).strict
    assert serve.ServiceOptions().settings({"serve": {"strict": True}}).strict
    assert not serve.ServiceOptions().settings({}).strict


def test_all_that_can_be_checked_is_told_at_once_before_models_are_loaded(diffuspec, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = tmp_path / "serve.yaml"
        file.write_text(
            "preset: tiny\ndrafter: {path: nowhere}\nsearch: {ngram: mine.bin}\n"
            "serve: {tool_call_parser: unheard}\n"
        )
        words = ("--config", str(file), "--port", str(port), "--tls-key", "k.pem")
        result = diffuspec("serve", *words)
    assert result.exit_code == 2
    line = result.stderr.splitlines()[-1]
    wrong = ["--tls-certificate and --tls-key belong", "unheard", str(port)]
    wrong += ["drafter.path: model directory nowhere", "search.ngram: n-gram model mine.bin"]
    assert all(text in line for text in wrong), line


def test_a_chat_template_of_a_file_replaces_that_of_the_target(tmp_path):
    file = tmp_path / "a.jinja"
    service = serve.ServiceOptions(chat_template=file)
    config = service.engine(options.NO_OPTIONS, NOTHING_GIVEN, {})
    assert config.target.chat_template == file
