"""`generate` of transformers with drafts of a server: its own answers, whatever the server does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from diffuspec.bench.questions import first_per_family, load_questions
from diffuspec.pairs.tiny import QUESTIONS, TARGET
from diffuspec_client import Settings
from diffuspec_client.draft_service_pb2 import RowDraft, StepDrafts
from diffuspec_client.transformers import (
    LocalDrafts,
    RemoteDrafts,
    has_dynamic_cache,
    missing_hooks,
)
from tests.clients.conftest import StartServer, kill
from tests.support.draft_streams import Scripted

NUM_TOKENS = 32


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TARGET)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> list[Any]:
    questions = first_per_family(load_questions(QUESTIONS), 1)[:4]
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": one.turns[0]}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        for one in questions
    ]


@pytest.fixture
def connect(tmp_path: Path, tokenizer: Any) -> Iterator[Callable[..., RemoteDrafts]]:
    made: list[RemoteDrafts] = []

    def new(**given: Any) -> RemoteDrafts:
        settings = Settings(server=f"unix:{tmp_path / 'd'}", deadline_seconds=5.0)
        made.append(RemoteDrafts(tokenizer, settings, **given))
        return made[-1]

    yield new
    for one in made:
        one.close()


def plain(model: Any, inputs: Any, **options: Any) -> list[int]:
    options = {"do_sample": False, "max_new_tokens": NUM_TOKENS, **options}
    return model.generate(**inputs, **options)[0].tolist()


@pytest.fixture(scope="module")
def answers(model: Any, prompts: list[Any]) -> list[list[int]]:
    """What the model says by itself."""
    return [plain(model, one) for one in prompts]


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Callable[..., Scripted]]:
    """Serve drafts that a function makes of the tokens of a request."""
    servers: list[Scripted] = []

    def start(draft: Callable[[list[int]], list[int]]) -> Scripted:
        servers.append(Scripted(f"unix:{tmp_path / 'd'}", answers_by(draft)))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def answers_by(draft: Callable[[list[int]], list[int]]) -> Callable[[Any], StepDrafts]:
    held: dict[str, list[int]] = {}

    def answer(step: Any) -> StepDrafts:
        found = StepDrafts(step_id=step.step_id)
        for row in step.rows:
            tokens = [*held.get(row.request_id, [])[: row.base_length], *row.token_ids]
            held[row.request_id] = tokens
            token_ids = draft(tokens)[: row.max_draft_tokens]
            found.rows.append(RowDraft(token_ids=token_ids, confidences=[0.0] * len(token_ids)))
        return found

    return answer


@pytest.fixture
def calls(model: Any) -> Iterator[list[int]]:
    """How many tokens each call of the model has read."""
    sizes: list[int] = []

    def note(_: Any, __: Any, given: dict[str, Any]) -> None:
        sizes.append(given["input_ids"].shape[1])

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    yield sizes
    hook.remove()


def num_new_tokens(prompts: list[Any], answers: list[list[int]]) -> int:
    """Return how often the model is called for answers without drafts."""
    return sum(len(one) for one in answers) - sum(one["input_ids"].shape[1] for one in prompts)


def test_this_release_of_transformers_has_what_is_needed():
    assert missing_hooks() == []
    assert missing_hooks(object) == ["_assisted_decoding", "_get_candidate_generator", "_sample"]


@pytest.mark.parametrize("name", ["past_key_values", "cache"])  # the latter from 5.24 on
def test_the_cache_is_found_by_its_name_in_each_release(name: str):
    assert has_dynamic_cache({"use_cache": True, name: DynamicCache()})
    assert not has_dynamic_cache({"use_cache": True, name: None})


def test_right_drafts_save_calls_and_wrong_ones_change_nothing(
    model: Any,
    prompts: list[Any],
    answers: list[list[int]],
    connect: Any,
    scripted: Any,
    calls: list[int],
):

    def true_then_wrong(tokens: list[int]) -> list[int]:
        answer = next(one for one in answers if one[: len(tokens)] == tokens)
        return [*answer[len(tokens) :][:3], 7, 7]

    server = scripted(true_then_wrong)
    drafts = connect(max_draft_tokens=5)
    assert [plain(model, one, custom_generate=drafts) for one in prompts] == answers
    assert max(calls[1:6]) == 6  # a draft of five tokens, and the one before it
    assert len(calls) < 0.5 * num_new_tokens(prompts, answers)
    steps = [one.step for one in server.requests if one.WhichOneof("message") == "step"]
    assert {name for step in steps for name in step.ended_request_ids} == {"r1", "r2", "r3"}
    assert all(row.max_tokens_left <= NUM_TOKENS for step in steps for row in step.rows)


def test_tokens_that_the_model_lacks_are_left_out(
    model: Any, prompts: list[Any], answers: list[list[int]], connect: Any, scripted: Any
):
    scripted(lambda tokens: [2**31] if len(tokens) % 2 else [4095, 4096])
    assert plain(model, prompts[0], custom_generate=connect()) == answers[0]


def test_what_cannot_be_drafted_for_is_decoded_as_ever_with_one_warning(
    model: Any,
    tokenizer: Any,
    prompts: list[Any],
    connect: Any,
    scripted: Any,
    caplog: pytest.LogCaptureFixture,
):
    server = scripted(lambda _: [1])
    drafts = connect()
    for option in (
        {"num_beams": 2},
        {"num_return_sequences": 2, "num_beams": 2},
        {"stop_strings": ["the", "a"], "tokenizer": tokenizer},
        {"use_cache": False},
        {"cache_implementation": "static"},
    ):
        options: Any = {"do_sample": False, "max_new_tokens": 16, **option}
        answer = plain(model, prompts[0], **options)
        assert drafts.generate(model, prompts[0], **options)[0].tolist() == answer, option
    assert caplog.text.count("decoding goes on without drafts") == 1
    assert all(one.WhichOneof("message") == "hello" for one in server.requests)


def test_a_streamer_gets_each_token_once(
    model: Any, prompts: list[Any], answers: list[list[int]], connect: Any, scripted: Any
):
    class Streamer:
        def __init__(self) -> None:
            self.tokens: list[int] = []
            self.num_ends = 0

        def put(self, value: torch.Tensor) -> None:
            self.tokens += value.flatten().tolist()

        def end(self) -> None:
            self.num_ends += 1

    scripted(lambda tokens: answers[0][len(tokens) :])
    streamer = Streamer()
    connect().generate(model, prompts[0], streamer, do_sample=False, max_new_tokens=NUM_TOKENS)
    assert (streamer.tokens, streamer.num_ends) == (answers[0], 1)


def test_a_drafter_in_this_process_saves_calls_and_changes_nothing(
    model: Any, tokenizer: Any, prompts: list[Any], answers: list[list[int]], calls: list[int]
):
    server = {"preset": "tiny", "num_draft_tokens": 4, "profile_seconds": 0.2}
    drafts = LocalDrafts(tokenizer, server)
    assert [plain(model, one, custom_generate=drafts) for one in prompts] == answers
    assert max(calls[1:]) > 1 and len(calls) < num_new_tokens(prompts, answers)
    drafts.close()
    assert plain(model, prompts[0], custom_generate=drafts) == answers[0]


@pytest.mark.process
def test_answers_are_those_of_generate_while_a_server_drafts_and_after_it_was_killed(
    model: Any,
    prompts: list[Any],
    answers: list[list[int]],
    connect: Any,
    draft_server: StartServer,
):
    server, drafts = draft_server(), connect()
    drafted: list[int] = []
    ask = drafts.draft

    def draft(row: Any) -> list[int]:
        drafted.append(len(found := ask(row)))
        if len(drafted) == num_until_killed:
            kill(server)
        return found

    drafts.draft = draft
    num_until_killed = 0
    assert [plain(model, one, custom_generate=drafts) for one in prompts] == answers
    assert any(drafted)
    num_until_killed = len(drafted) + 3
    assert [plain(model, one, custom_generate=drafts) for one in prompts] == answers
    assert len(drafted) > num_until_killed
    assert not any(drafted[num_until_killed + 1 :])
