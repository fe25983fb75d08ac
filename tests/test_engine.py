"""The engine over random checkpoints: forms of prompts, life cycle, and what an answer says."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from diffuspec.core.config import parse_config
from diffuspec.core.errors import (
    ContextLengthError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    VocabularyError,
)
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import FinishReason
from diffuspec.engine import Engine
from diffuspec.text.tokenizer import load_tokenizer
from tests.support.checkpoints import MAX_POSITIONS, byte_tokenizer
from tests.support.fakes import FakeDrafter, FakeVerifier, always_right, decode_plainly, oracle_of

PROMPT = "The quick brown fox"
SHORT = SamplingParams(max_tokens=12, ignore_eos=True)
FOREVER = SamplingParams(max_tokens=400, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "hi"}]


def make_engine(target: Path, drafter: Path | None = None, **sections: object) -> Engine:
    drafting = {} if drafter is None else {"drafter": {"path": drafter, "device": "cpu"}}
    settings = {"path": target, "device": "cpu", "max_sequences": 3}
    return Engine.from_config(parse_config({"target": settings, **drafting, **sections}))


@pytest.fixture(scope="module")
def engine(target_path: Callable[[str], Path], drafter_path: Path) -> Iterator[Engine]:
    with make_engine(target_path("qwen2"), drafter_path) as engine:
        yield engine


def ids(text: str) -> list[int]:
    return byte_tokenizer().encode(text, add_special_tokens=False).ids


# ---- prompts


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


@pytest.mark.parametrize("prompts", ["Hello", [1, 2], [{"role": "user", "content": "Hello"}]])
def test_a_single_prompt_is_not_taken_for_several(engine, prompts):
    with pytest.raises(InvalidRequestError, match=r"put a single one in \[ \]"):
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


def test_messages_need_a_chat_template(engine, monkeypatch):
    monkeypatch.setattr(engine.tokenizer, "chat_template", None)
    with pytest.raises(InvalidRequestError, match="no chat template"):
        engine.encode(MESSAGES)


def test_the_reason_of_a_chat_template_that_refuses_is_passed_on(engine, monkeypatch):
    monkeypatch.setattr(
        engine.tokenizer, "chat_template", "{{ raise_exception('roles must alternate') }}"
    )
    with pytest.raises(InvalidRequestError, match="refused the messages: roles must alternate"):
        engine.encode(MESSAGES)


# ---- answers


def test_an_answer_holds_tokens_text_logprobs_and_statistics(engine):
    [answer] = engine.generate([PROMPT], SamplingParams(max_tokens=12, logprobs=2, ignore_eos=True))
    assert len(answer.token_ids) == 12 and answer.finish_reason is FinishReason.LENGTH
    assert answer.text == byte_tokenizer().decode(list(answer.token_ids))
    assert answer.logprobs is not None and [len(one.top) for one in answer.logprobs] == [2] * 12
    stats = answer.stats
    assert (stats.num_prompt_tokens, stats.num_output_tokens) == (len(ids(PROMPT)), 12)
    assert stats.num_steps == len(answer.steps) and stats.mean_acceptance_length >= 1


def test_without_a_seed_answers_differ_and_each_names_the_seed_to_repeat_it(engine):
    sampled = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    answers = engine.generate([PROMPT] * 3, sampled)
    assert len({answer.token_ids for answer in answers}) == 3
    for answer in answers:
        [again] = engine.generate([PROMPT], replace(sampled, seed=answer.seed))
        assert again.token_ids == answer.token_ids and again.seed == answer.seed
    assert engine.generate([PROMPT], SHORT)[0].seed is None


async def test_the_end_of_a_stream_names_its_seed(engine):
    sampled = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    *first, last = [step async for step in engine.stream(PROMPT, sampled)]
    assert {step.seed for step in first} == {None}
    again = await engine.complete(PROMPT, replace(sampled, seed=last.seed))
    assert [i for step in (*first, last) for i in step.token_ids] == list(again.token_ids)


def test_the_text_of_an_answer_leaves_out_eos(engine):
    token = engine.generate([PROMPT], SHORT)[0].token_ids[5]
    stopped = SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=(token,))
    [answer] = engine.generate([PROMPT], stopped)
    assert answer.finish_reason is FinishReason.STOP and answer.token_ids[-1] == token
    assert answer.text == byte_tokenizer().decode(list(answer.token_ids[:-1]))


def test_many_prompts_are_answered_in_order(engine):
    prompts = [f"number {n}" for n in range(7)]
    together = engine.generate(prompts, SHORT)
    alone = [engine.generate([prompt], SHORT)[0] for prompt in prompts]
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]
    assert engine.generate([], SHORT) == []


def test_more_prompts_than_max_waiting_are_answered(target_path):
    with make_engine(target_path("qwen2"), coordinator={"max_waiting": 0}) as engine:
        assert len(engine.generate(["a"] * 8, SHORT)) == 8


def test_one_bad_prompt_fails_the_call_and_leaves_the_engine_usable(engine):
    with pytest.raises(InvalidRequestError, match="got 999"):
        engine.generate([PROMPT, [999]], FOREVER)
    assert len(engine.generate([PROMPT], SHORT)[0].token_ids) == 12


@pytest.mark.parametrize(("policy", "drafted"), [("off", False), ("fixed", True)])
def test_a_request_chooses_its_drafting_policy(engine, policy, drafted):
    speculation = SpeculationParams(policy=policy, num_draft_tokens=3)
    [answer] = engine.generate([PROMPT], SHORT, speculation)
    assert any(step.num_tree_nodes for step in answer.steps) is drafted


# ---- streams and loops


async def test_a_stream_yields_the_tokens_and_text_of_a_completion(engine):
    outputs = [output async for output in engine.stream(PROMPT, SHORT)]
    answer = await engine.complete(PROMPT, SHORT)
    assert [i for output in outputs for i in output.token_ids] == list(answer.token_ids)
    assert "".join(output.text for output in outputs) == answer.text


@pytest.mark.parametrize("seed", [None, 7], ids=["greedy", "sampled"])
async def test_a_stream_goes_on_after_committed_tokens(engine, seed):
    sampling = replace(SHORT, temperature=float(seed is not None), seed=seed, logprobs=1)
    whole = await engine.complete(PROMPT, sampling)
    committed = list(whole.token_ids[:5])
    stream = engine.stream(PROMPT, sampling, committed_token_ids=committed)
    rest = [step async for step in stream]
    assert [*committed, *(i for step in rest for i in step.token_ids)] == list(whole.token_ids)
    assert whole.text.endswith("".join(step.text for step in rest))
    logprobs = [one.logprob for step in rest for one in step.logprobs]
    assert logprobs == pytest.approx([one.logprob for one in whole.logprobs[5:]], abs=1e-4)


async def test_a_sampled_answer_does_not_go_on_without_its_seed(engine):
    stream = engine.stream(PROMPT, SamplingParams(temperature=1.0), committed_token_ids=[5])
    with pytest.raises(InvalidRequestError, match="seed must be given to resume"):
        await anext(stream)


async def test_closing_a_stream_cancels_its_request_at_once(engine):
    stream = engine.stream(PROMPT, FOREVER)
    await anext(stream)
    coordinator = engine._coordinator
    [request] = coordinator._admission
    await stream.aclose()
    assert request.is_finished
    while list(coordinator._admission):
        await asyncio.sleep(0.001)
    assert request.num_output_tokens < 400


async def test_cancelling_a_completion_cancels_its_request(engine):
    task = asyncio.create_task(engine.complete(PROMPT, FOREVER))
    while engine._coordinator is None or not list(engine._coordinator._admission):
        await asyncio.sleep(0.001)
    [request] = engine._coordinator._admission
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert request.is_finished


def test_an_engine_may_be_used_in_one_event_loop_after_another(engine):
    first = engine.generate([PROMPT], SHORT)[0].token_ids
    assert asyncio.run(engine.complete(PROMPT, SHORT)).token_ids == first
    assert asyncio.run(engine.complete(PROMPT, SHORT)).token_ids == first
    assert engine.generate([PROMPT], SHORT)[0].token_ids == first


def test_an_event_loop_that_ends_with_a_stream_open_leaves_the_engine_usable(engine):
    async def begin() -> None:
        await anext(engine.stream(PROMPT, FOREVER))

    asyncio.run(begin())
    gc.collect()
    assert len(engine.generate([PROMPT], SHORT)[0].token_ids) == 12


def test_threads_that_generate_wait_for_each_other(engine):
    plain = [engine.generate([[n, 7]], SHORT)[0].token_ids for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: engine.generate([[n, 7]], SHORT), range(4)))
    assert [answer[0].token_ids for answer in answers] == plain


async def test_two_loops_at_a_time_are_refused(engine):
    await engine.complete(PROMPT, SHORT)
    with pytest.raises(RuntimeError, match="in use in another event loop"):
        await asyncio.to_thread(asyncio.run, engine.complete(PROMPT, SHORT))


async def test_an_engine_may_be_closed_inside_a_coroutine(target_path):
    with make_engine(target_path("qwen2")) as engine:
        assert len((await engine.complete(PROMPT, SHORT)).token_ids) == 12


async def test_leaving_an_engine_in_a_coroutine_ends_its_tasks_and_threads(target_path):
    def workers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("target")}

    tasks, threads = asyncio.all_tasks(), workers()
    async with make_engine(target_path("qwen2")) as engine:
        assert len((await engine.complete(PROMPT, SHORT)).token_ids) == 12
        open_stream = engine.stream(PROMPT, FOREVER)
        await anext(open_stream)
        assert asyncio.all_tasks() > tasks and workers() > threads
    assert (asyncio.all_tasks(), workers()) == (tasks, threads)
    with pytest.raises(RequestCancelledError):
        await anext(open_stream)


async def test_an_engine_used_without_an_event_loop_may_be_left_in_one(target_path):
    engine = make_engine(target_path("qwen2"))
    await asyncio.to_thread(engine.generate, [PROMPT], SHORT)
    async with engine:
        pass
    assert engine._runner is None


def test_closing_twice_is_fine(target_path):
    engine = make_engine(target_path("qwen2"))
    engine.generate([PROMPT], SHORT)
    engine.close()
    engine.close()


def test_closing_ends_running_requests(target_path):
    engine = make_engine(target_path("qwen2"))
    engine.generate([PROMPT], SHORT)
    runner = engine._runner
    assert runner is not None

    async def begin() -> asyncio.Task[object]:
        task = asyncio.create_task(engine.complete(PROMPT, FOREVER))
        await asyncio.sleep(0.01)
        return task

    task = runner.run(begin())
    engine.close()
    assert task.cancelled() or isinstance(task.exception(), RequestCancelledError)


def test_a_part_that_fails_to_close_leaves_no_other_open(target_path):
    closed = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)
            if self.name != "sound":
                raise OSError(f"{self.name} does not close")

    config, parts = parse_config({"target": {"path": target_path("qwen2")}}), ("first", "sound")
    tokenizer = load_tokenizer(config.target.path)
    engine = Engine(config, FakeVerifier(), None, tokenizer, [Part(name) for name in parts])
    engine.generate([[1, 2, 3]], SHORT)
    with pytest.raises(OSError, match="first does not close"):
        engine.close()
    assert closed == ["first", "sound"]


# ---- cancelling and draining


async def admission(engine: Engine) -> None:
    """Wait until a request runs in this event loop."""
    loop = asyncio.get_running_loop()
    while engine._loop is not loop or not list(engine._coordinator._admission):
        await asyncio.sleep(0.001)


async def test_cancelling_by_id_ends_that_request_with_an_error(engine):
    stream, other = engine.stream(PROMPT, FOREVER, request_id="a"), engine.stream(PROMPT, FOREVER)
    await anext(stream)
    await anext(other)
    assert engine.cancel("a") and not engine.cancel("b")
    with pytest.raises(RequestCancelledError, match="'a' was cancelled"):
        async for _ in stream:
            pass
    assert (await anext(other)).token_ids
    await other.aclose()
    assert not engine.cancel("a")


async def test_a_request_that_waits_can_be_cancelled_too(target_path):
    with make_engine(target_path("qwen2")) as engine:
        running = [engine.stream(PROMPT, FOREVER) for _ in range(3)]  # max_sequences
        for stream in running:
            await anext(stream)
        waiting = asyncio.ensure_future(engine.complete(PROMPT, SHORT, request_id="w"))
        while len(list(engine._coordinator._admission)) < 4:
            await asyncio.sleep(0.001)
        assert engine.cancel("w")
        with pytest.raises(RequestCancelledError):
            await waiting
        await engine.stop()


def test_cancelling_before_any_request_returns_false(target_path):
    with make_engine(target_path("qwen2")) as engine:
        assert not engine.cancel("a")


async def test_stopping_an_engine_that_never_ran_is_fine(target_path):
    with make_engine(target_path("qwen2")) as engine:
        await engine.stop(drain_seconds=60)


async def test_stopping_lets_running_requests_finish_and_refuses_new_ones(engine):
    answer = asyncio.ensure_future(engine.complete(PROMPT, SHORT))
    await admission(engine)
    stopping = asyncio.ensure_future(engine.stop(drain_seconds=60))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="shutting down"):
        await engine.complete(PROMPT, SHORT)
    await stopping
    assert len((await answer).token_ids) == 12
    assert len((await engine.complete(PROMPT, SHORT)).token_ids) == 12  # it can be used again


async def test_stopping_cancels_requests_that_do_not_finish_in_time(engine):
    answer = asyncio.ensure_future(engine.complete(PROMPT, FOREVER))
    await admission(engine)
    await engine.stop(drain_seconds=0.01)
    with pytest.raises(RequestCancelledError):
        await answer


# ---- any roles


def test_a_drafter_with_other_meanings_of_token_ids_is_refused(target_path, drafter_path, tmp_path):
    drafter = shutil.copytree(drafter_path, tmp_path / "drafter")
    tokenizer = json.loads((target_path("qwen2") / "tokenizer.json").read_text())
    (drafter / "tokenizer.json").write_text(json.dumps(tokenizer))
    make_engine(target_path("qwen2"), drafter).close()
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (drafter / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(VocabularyError, match="different meanings to the 258 token ids"):
        make_engine(target_path("qwen2"), drafter)


async def test_an_engine_drives_any_verifier_and_drafter(target_path):
    config = parse_config({"target": {"path": target_path("qwen2")}})
    verifier, closed = FakeVerifier(), []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)

    drafter = FakeDrafter(oracle_of(verifier), always_right)
    tokenizer = load_tokenizer(config.target.path)
    with Engine(config, verifier, drafter, tokenizer, (Part("b"), Part("a"))) as engine:
        assert engine.lattice_model is None
        answer = await engine.complete([1, 2, 3], SHORT)
        await engine.stop()
    assert list(answer.token_ids) == decode_plainly(verifier, [1, 2, 3], SHORT)
    assert answer.stats.num_steps < 12 and closed == ["b", "a"]
