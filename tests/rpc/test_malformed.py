"""Bytes that are no message, and messages that make no sense: an error, and the server goes on."""

import contextlib
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError, Message

from diffuspec.core.config import EngineConfig
from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import DraftRequest, DraftTree, Lattice, VerifyRequest
from diffuspec.drafters.diffuspec import DiffuSpecDrafter
from diffuspec.drafters.path_search import make_path_search
from diffuspec.models.diffusion import DiffusionDrafter
from diffuspec.models.target import CausalTarget
from diffuspec.pairs.tiny import DRAFTER, TARGET, tiny_config
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.messages import values as convert
from diffuspec.rpc.messages.batches import encode_draft_rows, encode_verify_rows
from diffuspec.rpc.messages.parameters import parameters_to_proto
from diffuspec.rpc.messages.prefixes import PrefixStore
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.coordinator import CoordinatorServicer
from diffuspec.rpc.server.servicers import (
    DrafterServicer,
    PathScorerServicer,
    RoleServicer,
    VerifierServicer,
)
from diffuspec.v1 import coordinator_pb2, drafter_pb2, path_scorer_pb2, verifier_pb2
from tests.rpc.client.test_coordinator import FakeFrontend
from tests.support.serving import serving

NUM_MUTATIONS = 60
NAMED = ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "INTERNAL DrafterError", "INTERNAL NgramError")

SAMPLING = SamplingParams(temperature=0.8, seed=5, max_tokens=3, stop=("x",), logprobs=1)
PREFIX = np.array([5, 6, 7, 8], np.int32)
DRAFT = DraftRequest("a", PREFIX, 4, "beams", 6, 0.5, SAMPLING, 2)
VERIFY = VerifyRequest("a", PREFIX, 2, DraftTree((9, 10, 11), (-1, 0, 0)), SAMPLING)
LATTICE = Lattice(
    np.array([[9, 10], [11, -1]], np.int32),
    np.array([[-0.5, -1.5], [-0.1, -np.inf]], np.float32),
    np.array([2, 1], np.int32),
    2,
)


def store() -> PrefixStore:
    return PrefixStore(100, 10_000)


def drafting(kind: type[Message]) -> Message:
    message = kind(step_id=3, released_request_ids=["b"])
    encode_draft_rows(message, [DRAFT, DRAFT], store())  # type: ignore[arg-type]
    if isinstance(message, path_scorer_pb2.SearchRequest):
        message.lattices.extend([convert.lattice_to_proto(LATTICE)] * 2)
    return message


def verifying() -> Message:
    message = verifier_pb2.VerifyRequest(step_id=3)
    encode_verify_rows(message, [VERIFY], store())
    return message


def generating() -> Message:
    message = coordinator_pb2.GenerateRequest(request_id="a")
    message.chat.messages.add(role="user", content="hello")
    message.sampling.CopyFrom(convert.sampling_to_proto(SAMPLING))
    speculation = parameters_to_proto(SpeculationParams(), coordinator_pb2.SpeculationParams)
    message.speculation.CopyFrom(speculation)
    return message


MESSAGES = {
    "DrafterService/Draft": drafting(drafter_pb2.DraftRequest),
    "PathScorerService/Search": drafting(path_scorer_pb2.SearchRequest),
    "VerifierService/Verify": verifying(),
    "VerifierService/GetInfo": verifier_pb2.GetInfoRequest(),
    "CoordinatorService/Generate": generating(),
    "CoordinatorService/Cancel": coordinator_pb2.CancelRequest(request_id="a"),
    "CoordinatorService/GetStatus": coordinator_pb2.GetStatusRequest(),
}
STREAMS = {
    "DrafterService/Draft": drafter_pb2.DraftResponse,
    "PathScorerService/Search": path_scorer_pb2.SearchResponse,
    "VerifierService/Verify": verifier_pb2.VerifyResponse,
}


@pytest.fixture(scope="module")
def servicers() -> Iterator[list[RoleServicer]]:
    """The embedded pair: real roles meet what others made of their messages."""
    config: EngineConfig = tiny_config(
        target={"path": TARGET, "device": "cpu"}, drafter={"path": DRAFTER, "device": "cpu"}
    )
    target = CausalTarget.load(config.target)
    assert isinstance(config.drafter, DiffuSpecConfig)
    model = DiffusionDrafter.load(config.drafter, target.info)
    search = make_path_search(config.search, target.info, None)
    yield [
        DrafterServicer(DiffuSpecDrafter(model, search), target.info),
        PathScorerServicer(search, target.info),
        VerifierServicer(target),
        CoordinatorServicer(FakeFrontend()),
    ]
    target.close()
    model.close()


def mutations(message: Message, rng: random.Random) -> Iterator[bytes]:
    """Truncated, spoilt, and made up."""
    whole = message.SerializeToString()
    yield whole
    yield b"\xff"
    for _ in range(NUM_MUTATIONS):
        kind = rng.randrange(3)
        if kind == 0:
            yield whole[: rng.randrange(len(whole) + 1)]
        elif kind == 1 and whole:
            spoilt = bytearray(whole)
            for _ in range(rng.choice([1, 1, 3])):
                spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
            yield bytes(spoilt)
        else:
            yield rng.randbytes(rng.randrange(40))


def is_message(kind: type[Message], data: bytes) -> bool:
    try:
        kind.FromString(data)
    except DecodeError:
        return False
    return True


class RawClient:
    """Sends bytes as they are, and tells how the call ended and what errors were in the stream."""

    def __init__(self, channel: grpc.aio.Channel, security: Security) -> None:
        self._channel = channel
        self._metadata = security.metadata

    def open(self, method: str) -> Any:
        stub: Any = self._channel.stream_stream(f"/diffuspec.v1.{method}")
        return stub(metadata=self._metadata, timeout=20)

    async def send(self, method: str, data: bytes) -> tuple[grpc.StatusCode, list[str]]:
        call = self.open(method)
        errors: list[str] = []
        try:
            await call.write(data)
            await call.done_writing()
            while (response := await call.read()) is not grpc.aio.EOF:
                errors += self._error(method, response)
        except grpc.aio.AioRpcError as error:
            return error.code(), errors
        return await call.code(), errors

    def _error(self, method: str, response: bytes) -> list[str]:
        if method not in STREAMS:
            return []
        message: Any = STREAMS[method].FromString(response)
        if message.WhichOneof("result") != "error":
            return []
        code = next(code for code in grpc.StatusCode if code.value[0] == message.error.code)
        return [f"{code.name} {message.error.reason}"]


@contextlib.asynccontextmanager
async def client_of(
    servicers: Sequence[RoleServicer], security: Security, limits: RpcLimits = DEFAULT_LIMITS
) -> AsyncIterator[RawClient]:
    async with serving(*servicers, security=security, limits=limits) as wire:
        channel = wire.channel()
        yield RawClient(channel, security)


@pytest.mark.no_cover
@pytest.mark.parametrize("method", MESSAGES)
async def test_no_bytes_bring_a_server_down(method, servicers, security):
    rng = random.Random(method)
    message = MESSAGES[method]
    async with client_of(servicers, security) as client:
        for data in mutations(message, rng):
            code, errors = await client.send(method, data)
            if not is_message(type(message), data):
                assert code == grpc.StatusCode.INVALID_ARGUMENT, data
            else:
                assert code in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT), data
            for error in errors:
                assert error.startswith(NAMED), (data, error)
        code, errors = await client.send(method, message.SerializeToString())
        assert (code, errors) == (grpc.StatusCode.OK, [])


def releasing(*request_ids: str) -> bytes:
    return drafter_pb2.DraftRequest(released_request_ids=request_ids).SerializeToString()


@pytest.mark.parametrize(
    ("method", "data", "complaint"),
    [
        *[(method, b"\xff\xff", "no message of this method") for method in STREAMS],
        ("DrafterService/Draft", releasing(*["r"] * 65), "at most 64 requests, got 65"),
        ("DrafterService/Draft", releasing("r" * 33), "from 0 to 32, got 33"),
    ],
)
async def test_nonsense_and_more_than_a_stream_holds_end_it_with_invalid_argument(
    servicers, security, method, data, complaint
):
    limits = RpcLimits(max_prefixes=64, max_id_length=32)
    async with client_of(servicers, security, limits) as client:
        call = client.open(method)
        await call.write(data)
        with pytest.raises(grpc.aio.AioRpcError, match=complaint) as caught:
            await call.read()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_the_id_of_a_prefix_is_bounded(servicers, security):
    message = drafter_pb2.DraftRequest(step_id=1)
    encode_draft_rows(message, [replace(DRAFT, request_id="r" * 33)], store())
    async with client_of(servicers, security, RpcLimits(max_id_length=32)) as client:
        _, errors = await client.send("DrafterService/Draft", message.SerializeToString())
        assert errors == ["INVALID_ARGUMENT InvalidRequestError"]


def spoilt_search() -> list[tuple[str, Message]]:
    found = []
    for ids, logprobs in (([[10**6, 10]], [[-0.5, -1.5]]), ([[9, 10]], [[np.inf, 0.5]])):
        message: Any = drafting(path_scorer_pb2.SearchRequest)
        del message.lattices[:]
        counts = np.array([2], np.int32)
        one = Lattice(np.array(ids, np.int32), np.array(logprobs, np.float32), counts, 1)
        message.lattices.extend([convert.lattice_to_proto(one)] * 2)
        found.append(("PathScorerService/Search", message))
    return found


def spoilt_draft() -> list[tuple[str, Message]]:
    wide: Any = drafting(drafter_pb2.DraftRequest)
    long: Any = drafting(drafter_pb2.DraftRequest)
    for _ in range(1001):
        wide.rows.add().CopyFrom(wide.rows[0])
    long.prefixes[0].token_ids.extend([5] * 10**6)
    return [("DrafterService/Draft", wide), ("DrafterService/Draft", long)]


def spoilt_verify() -> list[tuple[str, Message]]:
    found = []
    for num_prompt_tokens in (0, 9, 2**32 - 1):
        message: Any = verifying()
        message.rows[0].num_prompt_tokens = num_prompt_tokens
        found.append(("VerifierService/Verify", message))
    return found


async def test_what_is_beyond_a_role_is_refused_before_work_and_leaves_it_healthy(
    servicers, security
):
    async with client_of(servicers, security) as client:
        for method, message in (*spoilt_search(), *spoilt_draft(), *spoilt_verify()):
            _, errors = await client.send(method, message.SerializeToString())
            assert errors == ["INVALID_ARGUMENT InvalidRequestError"], method
        assert all(servicer.is_healthy() for servicer in servicers)
