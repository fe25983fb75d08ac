"""What a service finds out of a model directory: forms of calls and reasoning, sampling."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diffuspec.core.errors import ConfigError, ModelLoadError
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.conventions import Conventions, read_conventions, reasoning_of, tools_of
from diffuspec.serve.openai.parsing import parse
from diffuspec.serve.settings import ServeSettings
from tests.support.chat_models import QWEN, chat_tokenizer

TOKENIZER = chat_tokenizer(QWEN)
MODEL = ServedModel("a-model", 0, 512, 258)
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def conventions(path: Path, saved: object = None, **settings: Any) -> Conventions:
    if saved is not None:
        (path / "generation_config.json").write_text(json.dumps(saved))
    return read_conventions(path, TOKENIZER, ServeSettings(**settings))


def test_forms_are_those_of_the_template_unless_the_settings_name_others(tmp_path):
    found = conventions(tmp_path)
    assert (found.tools, found.reasoning) == ("hermes", "qwen3")
    found = conventions(tmp_path, tool_call_parser="gpt-oss", reasoning_parser="none")
    assert (found.tools, found.reasoning) == ("openai", "none")


@pytest.mark.parametrize("name", ["tool_call_parser", "reasoning_parser"])
def test_a_form_that_there_is_not_is_refused_with_those_that_there_are(tmp_path, name):
    with pytest.raises(ConfigError, match=f"{name} must be .*none, got 'jamba'"):
        conventions(tmp_path, **{name: "jamba"})


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("<tool_call>\n<function=x>", "qwen3_coder", "none"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral", "none"),
        ("<|python_tag|> ipython", "llama3_json", "none"),
        ("[func_name1(params_name1=params_value1)]", "pythonic", "none"),
        ("<|start|>assistant<|channel|>analysis", "openai", "openai_gptoss"),
        ("<｜Assistant｜> content.split('</think>')", "hermes", "deepseek_r1"),
        ("<｜tool▁calls▁begin｜>", "none", "none"),
        ("", "hermes", "none"),
    ],
)
def test_a_form_is_told_by_the_marks_of_the_template(template, tools, reasoning):
    assert (tools_of(template), reasoning_of(template)) == (tools, reasoning)


SAVED = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": True, "max_new_tokens": 40}


@pytest.mark.parametrize(
    ("source", "body", "expected"),
    [
        ("auto", {}, (0.6, 20, 0.95, 40)),
        ("auto", {"temperature": 0, "top_k": -1, "max_tokens": 9}, (0.0, 0, 0.95, 9)),
        ("vllm", {}, (1.0, 0, 1.0, 512)),
    ],
)
def test_parameters_that_a_body_leaves_out_are_those_of_the_directory(
    tmp_path, source, body, expected
):
    model = replace(MODEL, conventions=conventions(tmp_path, SAVED, generation_config=source))
    sampling = parse("/v1/chat/completions", CHAT | body, model).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.max_tokens) == expected
    text = parse("/v1/completions", {"prompt": "x", "max_tokens": 9}, model).sampling
    assert (text.temperature, text.max_tokens) == (1.0 if source == "vllm" else 0.6, 9)


def test_defaults_may_come_from_another_directory(tmp_path):
    (tmp_path / "other").mkdir()
    conventions(tmp_path / "other", {"temperature": 0.3})
    found = conventions(tmp_path, SAVED, generation_config=str(tmp_path / "other"))
    assert found.sampling == {"temperature": 0.3}
    with pytest.raises(ConfigError, match="generation_config must be auto, vllm or a directory"):
        conventions(tmp_path, generation_config="nowhere")


@pytest.mark.parametrize("saved", [[1], {"temperature": -1}, {"top_k": "x"}, {"max_new_tokens": 0}])
def test_defaults_that_are_wrong_are_refused_with_their_file(tmp_path, saved):
    with pytest.raises(ModelLoadError, match=r"generation_config\.json"):
        conventions(tmp_path, saved)
