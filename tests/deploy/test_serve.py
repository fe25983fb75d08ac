"""The service on Ray Serve: through its proxy, with two pipelines, while replicas are killed."""

import asyncio
import http.client
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anthropic
import openai
import psutil
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from ray.cluster_utils import Cluster

from actors.service.directory import Member
from benchmarks import chaos
from diffuspec.core.params import SamplingParams, StructuredOutput
from diffuspec.engine.engine import Engine
from tests.actors.conftest import tiny_pipeline
from tests.serve.test_lossless import MORE, SAMPLINGS, question
from tests.support.serve_app import (
    ServeApp,
    kill,
    num_groups,
    processes,
    replica_process,
    role_processes,
    serve_app,
    status_of,
)

pytestmark = [
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]

MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]
STORIES = [
    [{"role": "user", "content": f"Tell me a short story about {one} and a ring in a forest."}]
    for one in ("an owl named Rex", "a fox named Ada", "a bear named Tom", "a cat named Eva")
]
LONG_TOKENS = 96
SAMPLED = SamplingParams(max_tokens=LONG_TOKENS, ignore_eos=True, temperature=1.0, seed=1694)
LONG: Any = {"max_tokens": LONG_TOKENS, "temperature": 1.0, "seed": 1694}
LONG |= {"extra_body": {"ignore_eos": True}}
ENGINE = {
    "target": {"device": "cpu", "max_sequences": 4, "max_model_len": 512},
    "drafter": {"kind": "pld"},
    "drafters": {"answers": {"kind": "samd"}},
    "coordinator": {"profile_seconds": 0},
    "speculation": {"policy": "off"},
}
PLACEMENT = {"coordinator": {"num_cpus": 0.1}, "verifier": {"num_cpus": 0.1}}
DEADLINES = {"start_seconds": 120, "drain_seconds": 20}
CONFIG = tiny_pipeline(ENGINE, placement=PLACEMENT, deadlines=DEADLINES)
PIPELINE = {"engine": {"preset": "tiny", **ENGINE}, "placement": PLACEMENT, "deadlines": DEADLINES}
FORMS = {
    "guided_regex": StructuredOutput(regex=(REGEX := "(yes|no), (because|for) [a-z ]{10,40}")),
    "response_format": StructuredOutput(json_object=True),
}
SEVERAL: list[dict[str, Any]] = [
    {"temperature": 0.9, "seed": 4, "n": 3, "guided_regex": REGEX},
    {"temperature": 0, "presence_penalty": 0.5, "response_format": {"type": "json_object"}},
]
NUM_TOKENS = 24


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(cluster: Cluster) -> AsyncIterator[ServeApp]:
    with serve_app({"pipeline": PIPELINE, "model_name": "tiny"}) as app:
        app.deploy(2, waits=True)
        await app.pipelines(2)
        yield app


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(app: ServeApp) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0) as client:
        while True:  # the ingress learns of pipelines a moment later
            try:
                await client.models.list()
                break
            except openai.APIStatusError:
                await asyncio.sleep(0.1)
        yield client


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    """Plain decoding in one process."""
    with Engine.from_config(CONFIG.engine) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(plain: Engine) -> Callable[[Any], str]:
    answers = plain.generate([MESSAGES, *STORIES], SAMPLED)
    texts = [answer.text for answer in answers]
    return lambda messages: texts[[MESSAGES, *STORIES].index(messages)]


async def stream(client: AsyncOpenAI, messages: Any, **options: Any) -> AsyncGenerator[str]:
    """Yield what each event adds to a long answer."""
    found: Any = await client.chat.completions.create(
        model="tiny", messages=messages, stream=True, **LONG, **options
    )
    async for chunk in found:
        yield chunk.choices[0].delta.content or ""


async def begun(client: AsyncOpenAI, messages: Any) -> tuple[str, AsyncGenerator[str]]:
    """Return the beginning of a long answer, and the rest of it."""
    rest = stream(client, messages)
    text = ""
    while not text:
        text = await anext(rest)
    return text, rest


async def read(begin: str, rest: AsyncGenerator[str]) -> str:
    return "".join([begin, *[text async for text in rest]])


async def answering(app: ServeApp) -> list[Member]:
    """Return the pipelines that have requests."""
    found = await app.pipelines()
    states = await asyncio.gather(*(status_of(one, CONFIG) for one in found))
    return [one for one, status in zip(found, states, strict=True) if status.requests]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.05)


async def test_answers_of_all_apis_are_those_of_the_library(app, client, expected):
    whole: Any = await client.chat.completions.create(model="tiny", messages=MESSAGES, **LONG)
    streamed = await read(*await begun(client, MESSAGES))
    assert whole.choices[0].message.content == streamed == expected(MESSAGES)
    sampling = {"temperature": 1.0, "seed": 1694, "ignore_eos": True}
    answer = await client.responses.create(
        model="tiny", input=MESSAGES, max_output_tokens=LONG_TOKENS, extra_body=sampling
    )
    assert answer.output_text == expected(MESSAGES)
    async with AsyncAnthropic(base_url=app.url, api_key="none", max_retries=0) as other:
        asked = {"messages": MESSAGES, "max_tokens": LONG_TOKENS, "extra_body": sampling}
        async with other.messages.stream(model="tiny", **asked) as stream:
            assert await stream.get_final_text() == expected(MESSAGES)
        with pytest.raises(anthropic.NotFoundError):
            await other.messages.count_tokens(model="another", messages=MESSAGES)


async def test_a_request_names_its_drafter(client, expected):
    async def ask(drafter: str) -> Any:
        speculation = {"policy": "fixed", "num_draft_tokens": 4, "drafter": drafter}
        body = {"ignore_eos": True, "speculation": speculation}
        how = {**LONG, "extra_body": body}
        return await client.chat.completions.create(model="tiny", messages=MESSAGES, **how)

    for drafter in ("pld", "answers"):
        answer = await ask(drafter)
        assert answer.choices[0].message.content == expected(MESSAGES)
        assert answer.usage.model_extra["speculation"]["draft_tokens"] > 0
    with pytest.raises(openai.BadRequestError, match="one of pld, answers, got 'other'"):
        await ask("other")


async def test_answers_have_the_tokens_of_plain_decoding(client, plain):
    """The suite of tests/serve over this application, all of it at a time, and more."""
    drafts: Any = {"speculation": {"policy": "fixed", "drafter": "answers"}}
    cases = [
        (number, {**sampling, **more}, is_streamed)
        for number, sampling in enumerate([*SAMPLINGS.values(), *SEVERAL])
        for more in (drafts, MORE)
        for is_streamed in (True, False)
    ]
    found = await asyncio.gather(*(token_ids_of(client, *case) for case in cases))
    for (number, body, _), answers in zip(cases, found, strict=True):
        params = SamplingParams(max_tokens=NUM_TOKENS, **as_in_the_library(body))
        how = {"sampling": params, "n": body.get("n", 1)}
        expected = await asyncio.to_thread(plain.generate, [question(20 * number)], **how)
        assert answers == [list(answer.token_ids) for answer in expected], body


def as_in_the_library(body: dict[str, Any]) -> dict[str, Any]:
    """Return what a body says about sampling, in the words of SamplingParams."""
    given = {key: value for key, value in body.items() if key not in ("speculation", "n", *FORMS)}
    for name in FORMS.keys() & body.keys():
        given["structured_output"] = FORMS[name]
    return given


async def token_ids_of(
    client: AsyncOpenAI, number: int, body: dict[str, Any], is_streamed: bool
) -> list[list[int]]:
    """Ask a question of the suite; return the token ids of each choice."""
    found: Any = await client.chat.completions.create(
        model="tiny",
        messages=question(20 * number),
        max_tokens=NUM_TOKENS,
        stream=is_streamed,
        extra_body={"return_token_ids": True, **body},
    )
    token_ids: list[list[int]] = [[] for _ in range(body.get("n", 1))]
    for part in [chunk async for chunk in found] if is_streamed else [found]:
        for choice in part.choices:
            token_ids[choice.index] += getattr(choice, "token_ids", ())
    return token_ids


def request(app: ServeApp, method: str, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
    """Send a request by hand; return status and JSON, {} if it is none."""
    connection = http.client.HTTPConnection(app.url.removeprefix("http://"), timeout=60)
    try:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"content-type": "application/json", **names})
        answer = connection.getresponse()
        text = answer.read()
        is_json = answer.headers["content-type"] == "application/json"
        return answer.status, json.loads(text) if is_json else {}
    finally:
        connection.close()


async def test_what_serve_would_do_by_itself_is_done_as_openai_does(app, client):
    body = json.dumps({"model": "tiny", "messages": MESSAGES, "max_tokens": 60}).encode()
    path, ask = "/v1/chat/completions", asyncio.to_thread
    soon = {"x_request_timeout_seconds": "0.001"}
    assert (await ask(request, app, "POST", path, body, **soon))[0] == 200
    status, answer = await ask(request, app, "POST", path, b"{" + b" " * 2**20)
    assert status == 413 and answer["error"]["code"] == "body_too_large"
    status, answer = await ask(request, app, "GET", "/none", b"")
    assert status == 404 and answer["error"]["code"] == "not_found"


async def test_a_client_that_leaves_frees_its_place_whatever_its_headers_say(app, client):
    headers = {"x-request-disconnect-disabled": "?1", "x-request-timeout-seconds": "0"}
    rest = stream(client, STORIES[0], extra_headers=headers)
    await anext(rest)
    assert len(await answering(app)) == 1
    await rest.aclose()
    await until(lambda: none_answers(app))


async def none_answers(app: ServeApp) -> bool:
    return not await answering(app)


async def test_an_answer_goes_on_when_its_pipeline_s_replica_is_killed(app, client, expected):
    before, roles = await app.pipelines(2), role_processes()
    assert num_groups() == 4 and len(roles) == 4
    begin, rest = await begun(client, STORIES[0])
    [member] = await answering(app)
    kill(replica_process("Pipeline", member.name))
    assert await read(begin, rest) == expected(STORIES[0])
    after = await app.pipelines(2, without=member.name)
    assert len({one.name for one in before} & {one.name for one in after}) == 1
    await until(lambda: is_gone(roles - role_processes(), 2))
    assert num_groups() == 4 and len(role_processes()) == 4


async def is_gone(gone: set[Any], number: int) -> bool:
    return len(gone) == number and not any(one.is_running() for one in gone)


async def test_a_killed_ingress_ends_its_streams_and_openai_s_retries_outlast_its_loss(
    app, client, expected
):
    _, rest = await begun(client, STORIES[0])
    [ingress] = processes("ray::ServeReplica:diffuspec:Ingress")
    kill(ingress)
    with pytest.raises(openai.APIError):
        await read("", rest)
    assert await asked_until_answered(client) == expected(MESSAGES)
    await until(lambda: none_answers(app))


async def asked_until_answered(client: AsyncOpenAI) -> str | None:
    """Return a long answer, as the client gets it by asking again."""
    patient = client.with_options(max_retries=60)
    answer = await patient.chat.completions.create(model="tiny", messages=MESSAGES, **LONG)
    content: str | None = answer.choices[0].message.content
    return content


async def answers_again(client: AsyncOpenAI) -> bool:
    try:
        await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=4)
    except openai.APIError:
        return False
    return True


async def test_the_study_of_kills_tells_how_long_a_service_was_not_whole(app, client, monkeypatch):
    """Here processes are below this one, not below their raylet: see tests/support/forked.py."""
    monkeypatch.setattr(chaos, "raylet_of", lambda port: psutil.Process())
    kinds = [chaos.Kind.DIRECTORY]
    recoveries, load = await chaos.study(app.url, kinds, 2, 1, max_tokens=24, seed=0)
    [recovery] = recoveries
    assert recovery.fault == "directory" and recovery.ended > recovery.began
    assert load.answers.num_whole and not load.answers.wrong and not load.answers.broken


async def test_a_service_that_accepts_no_requests_finishes_those_that_it_has(app, client, expected):
    begin, rest = await begun(client, STORIES[1])
    app.deploy(2, accepts_requests=False)
    while await answers_again(client):
        await asyncio.sleep(0.1)
    asking = asyncio.create_task(asked_until_answered(client))
    assert await read(begin, rest) == expected(STORIES[1])
    app.deploy(2)
    assert await asking == expected(MESSAGES)


async def test_scaling_down_under_load_loses_no_stream(app, client, expected):
    streams = [await begun(client, one) for one in STORIES]
    app.deploy(1)
    texts = await asyncio.gather(*(read(*one) for one in streams))
    assert texts == [expected(one) for one in STORIES]
    await app.pipelines(1)
    await until(one_pipeline_stays)


async def one_pipeline_stays() -> bool:
    return num_groups() == 2 and len(role_processes()) == 2


async def test_a_rolling_update_under_load_loses_no_stream(app, client, expected):
    [old] = await app.pipelines(1)
    streams = [await begun(client, one) for one in STORIES]
    app.deploy(1, patience_seconds=301.0)  # other arguments: all replicas are replaced
    texts = await asyncio.gather(*(read(*one) for one in streams))
    assert texts == [expected(one) for one in STORIES]
    await app.pipelines(1, without=old.name)
    await until(lambda: answers_again(client))
