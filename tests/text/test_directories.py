"""Tokenizers and endings of model directories as people have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from diffuspec.core.errors import InvalidRequestError, ModelLoadError, VocabularyError
from diffuspec.text.endings import read_eos_token_ids
from diffuspec.text.prompt import encode_prompt
from diffuspec.text.tokenizer import check_tokenizer, load_tokenizer
from tests.support.chat_models import QWEN, chat_tokenizer

PARTS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}|{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)


def saved(path: Path, **changes: Any) -> Path:
    """Save Qwen's kind of tokenizer with attributes changed."""
    tokenizer = chat_tokenizer(QWEN)
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    tokenizer.save_pretrained(path)
    return path


def texts(path: Path, messages: list[dict[str, Any]]) -> str:
    tokenizer = load_tokenizer(path)
    return str(tokenizer.decode(encode_prompt(messages, tokenizer, None).tolist()))


def test_prompts_are_not_cut_or_filled_up_as_the_saved_tokenizer_says(tmp_path):
    backend = chat_tokenizer(QWEN).backend_tokenizer
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    saved(tmp_path)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).truncation is not None
    tokenizer = load_tokenizer(tmp_path)
    assert len(encode_prompt("abcdefgh", tokenizer, None)) == 8
    assert len(encode_prompt("ab", tokenizer, None)) == 2


@pytest.mark.parametrize(
    ("content", "as_text", "as_parts"),
    [
        ("hello", "hello", "hello|"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb", "a|b|"),
        ("", "", ""),
    ],
)
def test_a_template_gets_contents_in_the_form_that_it_reads(tmp_path, content, as_text, as_parts):
    messages = [{"role": "user", "content": content}]
    assert f"user\n{as_text}<|im_end|>" in texts(saved(tmp_path / "a"), messages)
    parts = saved(tmp_path / "b", chat_template=PARTS)
    assert f"user\n{as_parts}<|im_end|>" in texts(parts, messages)


def test_an_error_within_a_template_does_not_quote_the_chat(tmp_path):
    saved(tmp_path, chat_template="{{ {}[messages[0].content] + 1 }}{{ messages[0].content / 2 }}")
    with pytest.raises(InvalidRequestError) as caught:
        texts(tmp_path, [{"role": "user", "content": "secret"}])
    assert "secret" not in str(caught.value)


def write(path: Path, **files: dict[str, Any]) -> None:
    for name, data in files.items():
        (path / f"{name}.json").write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("generation_config", "config", "eos_token", "found"),
    [
        ({"eos_token_id": [7, 5]}, {"eos_token_id": 6}, "<|endoftext|>", (7, 5, 260, 262)),
        ({}, {"eos_token_id": 6}, "<|im_end|>", (6, 262)),
        ({"eos_token_id": None}, {"vocab_size": 300}, "<|endoftext|>", (260, 262)),
        ({"eos_token_id": 7}, {"vocab_size": 261}, None, (7,)),
    ],
)
def test_answers_end_as_each_part_of_a_directory_says(
    tmp_path, generation_config, config, eos_token, found
):
    path = saved(tmp_path, eos_token=eos_token)
    write(path, generation_config=generation_config, config=config)
    assert read_eos_token_ids(path, load_tokenizer(path)) == found


def test_a_directory_without_an_ending_is_warned_of(tmp_path, caplog):
    path = saved(tmp_path, eos_token=None, chat_template=None)
    assert read_eos_token_ids(path, load_tokenizer(path)) == ()
    assert "names no token that ends an answer" in caplog.text


@pytest.mark.parametrize("file", ["generation_config", "config"])
@pytest.mark.parametrize("value", [-1, "x", 1.0, 10**6, True, [2, -1], {}])
def test_an_ending_that_is_no_token_id_is_refused_with_its_file(tmp_path, file, value):
    path = saved(tmp_path)
    write(path, config={"vocab_size": 268})
    write(path, **{file: {"vocab_size": 268, "eos_token_id": value}})
    with pytest.raises(ModelLoadError, match=rf"{file}.json: eos_token_id must be .* below 268"):
        read_eos_token_ids(path, load_tokenizer(path))


def test_channels_of_one_answer_do_not_end_it(tmp_path):
    channels = QWEN.template.replace("<think>", "<|channel|>")
    path = saved(tmp_path, eos_token="<|endoftext|>", chat_template=channels)
    assert read_eos_token_ids(path, load_tokenizer(path)) == (260,)


def test_added_tokens_that_the_model_lacks_are_warned_of_and_other_tokens_are_refused(
    tmp_path, caplog
):
    tokenizer = chat_tokenizer(QWEN)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(tmp_path)
    assert check_tokenizer(tmp_path, load_tokenizer(tmp_path), 268) == 268
    assert "does not know 1 added tokens of its tokenizer ([PAD])" in caplog.text
    with pytest.raises(VocabularyError, match="knows 269 token ids, the model only 100"):
        check_tokenizer(tmp_path, load_tokenizer(tmp_path), 100)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Qwen/Qwen3-8B", "hf download Qwen/Qwen3-8B --local-dir models/Qwen3-8B"),
        ("/nowhere/model", "does not exist$"),
    ],
)
def test_a_name_of_the_hub_is_told_from_a_directory_that_is_missing(name, words):
    with pytest.raises(ModelLoadError, match=words):
        load_tokenizer(Path(name))


def test_a_pointer_of_git_lfs_is_told_from_the_file(tmp_path):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    (tmp_path / "tokenizer.json").write_text(pointer)
    with pytest.raises(ModelLoadError, match=r"is a pointer of Git LFS.*git lfs pull"):
        load_tokenizer(tmp_path)
