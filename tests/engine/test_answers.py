"""The engine over random checkpoints: what an answer says, streams, and the life cycle."""

import asyncio
import gc
import json
import os
import select
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from diffuspec.core.errors import InvalidRequestError, RequestCancelledError, VocabularyError
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import FinishReason
from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config
from diffuspec.text.tokenizer import load_tokenizer
from tests.support.checkpoints import byte_tokenizer
from tests.support.engines import FOREVER, PROMPT, SHORT, ids, make_engine
from tests.support.fakes import FakeDrafter, FakeVerifier, always_right, decode_plainly, oracle_of

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


def test_prompts_may_have_parameters_of_their_own(engine):
    long = SamplingParams(max_tokens=12, ignore_eos=True)
    one, other = engine.generate([PROMPT, PROMPT], [long, replace(long, max_tokens=5)])
    assert len(one.token_ids) == 12 and other.token_ids == one.token_ids[:5]
    with pytest.raises(InvalidRequestError, match="sampling has 1 elements for 2 prompts"):
        engine.generate([PROMPT, PROMPT], [long])


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


def test_a_sampled_answer_does_not_go_on_without_its_seed(engine):
    with pytest.raises(InvalidRequestError, match="seed must be given to resume"):
        engine.stream(PROMPT, SamplingParams(temperature=1.0), committed_token_ids=[5])


async def test_closing_a_stream_cancels_its_request_at_once(engine):
    stream = engine.stream(PROMPT, FOREVER)
    await anext(stream)
    [request] = engine.requests()
    await stream.aclose()
    assert request.num_output_tokens < 400
    while engine.requests():
        await asyncio.sleep(0.001)


async def test_cancelling_a_completion_cancels_its_request(engine):
    task = asyncio.create_task(engine.complete(PROMPT, FOREVER))
    while not engine.requests():
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while engine.requests():
        await asyncio.sleep(0.001)


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


async def test_prompts_are_answered_where_a_loop_runs_as_in_a_notebook(target_path):
    with make_engine(target_path("qwen2")) as engine:
        answers = [engine.generate([PROMPT], SHORT) for _ in range(2)]
        with pytest.raises(InvalidRequestError, match="empty"):
            engine.generate([""], SHORT)
        answers.append([await engine.complete(PROMPT, SHORT)])
        assert len({answer.token_ids for [answer] in answers}) == 1
        with pytest.raises(RuntimeError, match=r"await engine\.complete"):
            engine.generate([PROMPT], SHORT)  # the loop that runs is the engine's now


async def test_an_engine_may_be_closed_inside_a_coroutine_and_twice_and_says_so(target_path):
    with make_engine(target_path("qwen2")) as engine:
        assert len((await engine.complete(PROMPT, SHORT)).token_ids) == 12
    engine.close()
    with pytest.raises(RuntimeError, match="this engine is closed"):
        engine.generate([PROMPT], SHORT)
    with pytest.raises(RuntimeError, match="this engine is closed"):
        await engine.complete(PROMPT, SHORT)
    with pytest.raises(RuntimeError, match="this engine is closed"):
        await anext(engine.stream(PROMPT, SHORT))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_process_forked_from_an_engines_is_told_to_open_another_one(engine):
    assert len(engine.generate([PROMPT], SHORT)) == 1
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            with engine:
                engine.generate([PROMPT], SHORT)
        except RuntimeError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], 30)
    said = os.read(read, 4096).decode() if ready else "it hangs"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read)
    assert said.startswith(f"this engine was opened in process {os.getpid()}, whose threads")
    assert f"({child}) does not have: open another one here" in said
    assert len(engine.generate([PROMPT], SHORT)) == 1  # the child's `with` has closed nothing here


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
    with pytest.raises(RuntimeError, match="this engine is closed"):
        engine.generate([PROMPT], SHORT)


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
    sections = {"target": {"path": target_path("qwen2")}, "speculation": {"policy": "fixed"}}
    config, verifier, closed = parse_config(sections), FakeVerifier(), []

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
