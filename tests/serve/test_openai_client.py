"""OpenAI's own client against the embedded pair."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support.service import MODEL
from tests.support.weather import PARIS_OR_ROME

ASKED: Any = [{"role": "user", "content": "What is the capital of France?"}]
FIXED = {"policy": "fixed", "num_draft_tokens": 8}  # whatever drafts cost on a busy machine


def test_a_chat_is_answered_with_usage_and_acceptance(client: OpenAI):
    reply = client.chat.completions.create(
        model=MODEL, messages=ASKED, temperature=0, extra_body={"speculation": FIXED}
    )
    [choice] = reply.choices
    assert "Paris" in choice.message.content and choice.finish_reason == "stop"
    usage = reply.usage
    details = usage.completion_tokens_details
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert details.accepted_prediction_tokens == details.rejected_prediction_tokens == 0
    speculation = usage.model_extra["speculation"]
    assert 0 < speculation["accepted_tokens"] < usage.completion_tokens
    assert speculation["acceptance_length"] > 1


def test_usage_tells_what_of_the_prompt_was_cached(client: OpenAI):
    asked: Any = [{"role": "user", "content": "What is the largest city of Peru?"}]
    how: Any = {"model": MODEL, "messages": asked, "temperature": 0, "max_tokens": 8}
    usages = [client.chat.completions.create(**how).usage for _ in range(2)]
    fresh, again = (usage.prompt_tokens_details.cached_tokens for usage in usages)
    assert fresh < again == usages[1].prompt_tokens - 1  # the last token's row gives the answer


def test_a_prediction_makes_steps_fewer_and_changes_no_answer(client: OpenAI):
    how: Any = {"model": MODEL, "messages": ASKED, "temperature": 0, "max_tokens": 64}
    body = {"speculation": {"policy": "fixed", "num_draft_tokens": 24}}
    alone = client.chat.completions.create(**how, extra_body=body)
    text = alone.choices[0].message.content
    predicted = client.chat.completions.create(
        **how, extra_body=body, prediction={"type": "content", "content": text}
    )
    assert predicted.choices[0].message.content == text
    steps = [one.usage.model_extra["speculation"]["steps"] for one in (alone, predicted)]
    assert steps[1] < steps[0]
    assert predicted.usage.completion_tokens_details.accepted_prediction_tokens > 0


def test_a_streamed_chat_has_the_same_text(client: OpenAI):
    whole = client.chat.completions.create(model=MODEL, messages=ASKED, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=ASKED,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_a_batch_of_prompts_is_completed_in_order(client: OpenAI):
    reply = client.completions.create(
        model=MODEL, prompt=["One", "Two"], n=2, echo=True, temperature=0, max_tokens=3
    )
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert [choice.text[:3] for choice in reply.choices] == ["One", "One", "Two", "Two"]


def test_prompts_are_scored_as_evaluation_harnesses_ask_for_it(client: OpenAI):
    text = "The capital of France is Paris. The capital of Italy is Rome."
    how: Any = {"model": MODEL, "echo": True, "logprobs": 1, "temperature": 0}
    whole = client.completions.create(prompt=text, max_tokens=1, **how).choices[0]
    scores = whole.logprobs
    assert whole.text.startswith(text) and scores.token_logprobs[0] is None
    assert "".join(scores.tokens[:-1]) == text
    assert all(value < 0 for value in scores.token_logprobs[1:])
    token_ids = client.completions.create(
        model=MODEL, prompt=text, max_tokens=1, extra_body={"return_token_ids": True}
    ).choices[0].model_extra["prompt_token_ids"]  # fmt: skip
    reply = client.completions.create(prompt=[token_ids] * 2, max_tokens=0, **how)
    for choice in reply.choices:
        assert choice.text == text
        assert choice.logprobs.token_logprobs == pytest.approx(scores.token_logprobs[:-1], abs=1e-3)
    assert reply.usage.completion_tokens == 0


def test_an_answer_has_the_form_that_is_asked_for(client: OpenAI):
    reply = client.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        temperature=0,
        max_tokens=32,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": PARIS_OR_ROME},
        },
    )
    assert json.loads(reply.choices[0].message.content or "")["city"] in ("Paris", "Rome")
    chosen = client.completions.create(
        model=MODEL, prompt="x", temperature=1, seed=1, extra_body={"guided_choice": ["yes", "no"]}
    )
    assert chosen.choices[0].text in ("yes", "no")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="x", extra_body={"guided_regex": "("})
    assert caught.value.param == "guided_regex" and "cannot be used" in caught.value.message


def test_a_form_that_takes_too_long_or_ends_its_process_is_refused_by_its_name(client: OpenAI):
    patterns = [{"pattern": f".*a.{{{count}}}b.*"} for count in range(20)]
    grammar = f"start: %json {json.dumps({'allOf': patterns})}"
    deadly = {"const": -(2**63)}
    inner = f"start: a\na: %json {json.dumps(deadly)}"
    for schema, asked in (
        (deadly, "guided_json"),
        (inner, "guided_grammar"),
        (grammar, "guided_grammar"),
    ):
        with pytest.raises(openai.BadRequestError, match="cannot be used") as caught:
            client.completions.create(model=MODEL, prompt="x", extra_body={asked: schema})
        assert caught.value.param == asked


@pytest.mark.parametrize("is_streamed", [False, True])
def test_vllms_own_parameters_are_obeyed(client: OpenAI, is_streamed: bool):
    def ask(**extras: Any) -> tuple[str, list[int], Any]:
        asked = client.chat.completions.create(
            model=MODEL, messages=ASKED, temperature=0, max_tokens=24, stream=is_streamed,
            extra_body={"return_token_ids": True, **extras},
        )  # fmt: skip
        choices = [one.choices[0] for one in asked] if is_streamed else [asked.choices[0]]
        said = [one.delta if is_streamed else one.message for one in choices]
        text = "".join(one.content or "" for one in said)
        token_ids = [i for one in choices for i in one.model_extra.get("token_ids", ())]
        return text, token_ids, choices[-1].model_extra["stop_reason"]

    text, token_ids, reason = ask()
    assert reason is None
    assert ask(stop=text[5:9])[::2] == (text[:5], text[5:9])
    assert ask(stop=text[5:9], include_stop_str_in_output=True)[::2] == (text[:9], text[5:9])
    assert ask(stop_token_ids=token_ids[2:3])[1:] == (token_ids[:3], token_ids[2])
    assert set(ask(allowed_token_ids=token_ids[:4])[1]) <= set(token_ids[:4])
    shown, hidden = (ask(ignore_eos=True, skip_special_tokens=one)[0] for one in (False, True))
    assert shown.startswith(f"{text}<|im_end|>") and "<|im_end|>" not in hidden
    cut = ask(truncate_prompt_tokens=5)
    ids = client.completions.create(
        model=MODEL, prompt=ASKED[0]["content"] * 40, max_tokens=1, temperature=0,
        extra_body={"return_token_ids": True, "truncate_prompt_tokens": 7},
    )  # fmt: skip
    assert ids.usage.prompt_tokens == 7 and cut[0] != text


def test_allowed_tokens_that_the_model_has_not_are_refused_by_name(client: OpenAI):
    for token_ids in ([10**6], [], [1] * 2000):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(
                model=MODEL, prompt="x", extra_body={"allowed_token_ids": token_ids}
            )
        assert caught.value.param == "allowed_token_ids"


def test_an_unknown_model_is_not_found(client: OpenAI):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="another", messages=ASKED)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert MODEL in str(caught.value)


def test_models_are_listed(client: OpenAI):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_chunks_show_what_was_proposed_and_taken(client: OpenAI):
    stream = client.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        temperature=0,
        stream=True,
        extra_body={"speculation": FIXED | {"report_drafts": True}, "return_token_ids": True},
    )
    chunks = [chunk for chunk in stream if chunk.model_extra.get("speculation")]
    for chunk in chunks:
        step, choice = chunk.model_extra["speculation"], chunk.choices[0]
        assert [token["id"] for token in step["tokens"]] == choice.model_extra["token_ids"]
        assert "".join(token["text"] for token in step["tokens"]) == choice.delta.content
    trees = [step["tree"] for chunk in chunks if (step := chunk.model_extra["speculation"])["tree"]]
    assert any(tree["accepted"] for tree in trees)
    assert all(len(tree["texts"]) == len(tree["parents"]) for tree in trees)
