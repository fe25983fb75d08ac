"""The engine's prompts: their forms, and those that are refused."""

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from diffuspec.core.errors import ContextLengthError, InvalidRequestError
from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config
from tests.support.checkpoints import MAX_POSITIONS
from tests.support.engines import MESSAGES, PROMPT, SHORT, ids, make_engine


def test_a_prompt_is_text_messages_or_token_ids(engine):
    rendered = "<|start|>user:hi<|start|>assistant:"
    assert engine.encode("aé").tolist() == ids("aé")
    assert engine.encode(MESSAGES).tolist() == ids(rendered)
    for prompt in ([5, 6], (5, 6), np.array([5, 6]), np.array([5, 6], np.uint8)):
        encoded = engine.encode(prompt)
        assert encoded.tolist() == [5, 6] and encoded.dtype == np.int32


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([1.5, 2.0], "list of token ids"),
        (["a", "b"], "list of token ids"),
        ([True], "list of token ids"),
        ([[1, 2], [3, 4]], "list of token ids"),
        ([[1, 2], [3]], "must be flat"),
        ([1, {"role": "user"}], "list of token ids"),
        ([None], "list of token ids"),
        (b"ab", "list of token ids"),
        ([2**31], "must fit 32 bits, got 2147483648"),
        ([2**70], "list of token ids"),
        ("\ud800", "valid Unicode"),
        ([{"role": "user"}], "text `content`, got keys"),
        ([{"role": 1, "content": "a"}], "text `role`"),
        ([{"role": "user", "content": ["a"]}], "text `content`"),
        ("x" * (MAX_POSITIONS * 16 + 1), "8193 characters cannot fit"),
    ],
)
def test_a_prompt_of_another_form_is_refused(engine, prompt, message):
    with pytest.raises(InvalidRequestError, match=message):
        engine.generate([prompt], SHORT)


@pytest.mark.parametrize(
    "prompts",
    ["Hello", b"a", [1, 2], np.array([1, 2]), {"role": "user"}, [{"role": "user", "content": "a"}]],
)
def test_a_single_prompt_is_not_taken_for_several(engine, prompts):
    with pytest.raises(InvalidRequestError, match=r"put a single one in \[ \]"):
        engine.generate(prompts, SHORT)


def test_prompts_may_come_from_a_generator(engine):
    prompts = [PROMPT, "Once upon"]
    answers = [engine.generate(some, SHORT) for some in (prompts, (one for one in prompts))]
    assert [one.token_ids for one in answers[0]] == [one.token_ids for one in answers[1]]
    assert len(answers[1]) == 2


async def test_what_yields_no_prompts_is_refused(engine):
    async def later():
        yield PROMPT

    for prompts in (later(), None, 5):
        with pytest.raises(InvalidRequestError, match=r"^prompts must be a list"):
            engine.generate(prompts, SHORT)


def test_a_text_begins_with_bos_where_the_tokenizer_adds_one(engine):
    inner = engine.tokenizer.backend_tokenizer
    before = inner.post_processor
    inner.post_processor = TemplateProcessing("<s> $A", special_tokens=[("<s>", 7)])
    try:
        text, chat = engine.encode("ab"), engine.encode([{"role": "user", "content": "ab"}])
    finally:
        inner.post_processor = before
    assert text.tolist() == [7, *engine.encode("ab").tolist()]
    assert chat[0] != 7, "a template writes what it wants itself"


@pytest.mark.parametrize("prompt", ["", [], np.array([], np.int32)])
def test_an_empty_prompt_is_refused(engine, prompt):
    with pytest.raises(InvalidRequestError, match="the prompt is empty"):
        engine.generate([prompt], SHORT)


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ([-1], InvalidRequestError, "from 0 to 257, got -1"),
        ([258], InvalidRequestError, "from 0 to 257, got 258"),
        ([1] * 501, ContextLengthError, "501 prompt tokens and max_tokens 12 do not fit"),
    ],
)
def test_prompts_that_the_target_cannot_read_are_refused(engine, prompt, error, message):
    with pytest.raises(error, match=message):
        engine.generate([prompt], SHORT)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "no chat template"),
        (
            "{{ raise_exception('roles must alternate') }}",
            "refused the messages: roles must alternate",
        ),
    ],
)
def test_messages_need_a_chat_template_that_takes_them(engine, monkeypatch, template, reason):
    monkeypatch.setattr(engine.tokenizer, "chat_template", template)
    with pytest.raises(InvalidRequestError, match=reason):
        engine.encode(MESSAGES)


def test_a_long_prompt_that_is_cached_is_not_read_again(target_path):
    question, long = "Once upon a time ", [n % 50 + 3 for n in range(150)]
    with make_engine(target_path("qwen2"), coordinator={"prefill_chunk_tokens": 32}) as engine:
        [first] = engine.generate([long], SHORT)
        longer = [*long, *first.token_ids, *ids(question)]
        [again] = engine.generate([longer], SHORT)
    assert first.stats.num_cached_tokens == 0
    assert again.stats.num_cached_tokens == len(long) + len(first.token_ids) - 1


def test_prompts_are_kept_as_long_as_there_is_room(target_path):
    one, other = list(range(10, 30)), list(range(40, 60))
    with make_engine(target_path("qwen2")) as engine:
        store = engine.runners[0].cache.store
    page = store.shape.num_bytes(64, store.dtype)
    for num_pages, cached in ((4, 0), (6, 19)):
        target = {
            "path": target_path("qwen2"),
            "device": "cpu",
            "max_sequences": 1,
            "max_tree_nodes": 32,
            "cache_memory": num_pages * page,
        }
        with Engine.from_config(parse_config({"target": target})) as engine:
            prompts = (one, other, list(range(60, 100)) * 4, one)
            answers = [engine.generate([prompt], SHORT)[0] for prompt in prompts]
        assert [answer.stats.num_cached_tokens for answer in answers] == [0, 0, 0, cached]
        assert answers[3].token_ids == answers[0].token_ids
