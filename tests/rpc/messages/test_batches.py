"""Prefixes travel as changes; what is read at the other end is what was meant."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.core.errors import InvalidRequestError, StalePrefixError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams
from diffuspec.core.states import StateRows, StatesWanted
from diffuspec.core.types import DraftRequest, DraftTree, VerifyRequest
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.messages.batches import BatchReader, encode_draft_rows, encode_verify_rows
from diffuspec.rpc.messages.bounds import Bounds
from diffuspec.rpc.messages.prefixes import PrefixStore
from diffuspec.v1 import drafter_pb2, verifier_pb2
from diffuspec.v1.types_pb2 import DraftRow, PrefixDelta
from tests.rpc.messages import strategies

SAMPLING = SamplingParams(seed=5)


def tokens(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def request(*prefix: int, request_id: str = "a", sampling=SAMPLING) -> DraftRequest:
    return DraftRequest(request_id, tokens(*prefix), 4, "path", 4, 1.0, sampling)


WIDE = TargetInfo(vocab_size=2**31, max_model_len=2**20, max_sequences=8, eos_token_ids=(0,))


class Pipe:
    """Both ends of a stream."""

    def __init__(self, limits: RpcLimits = DEFAULT_LIMITS, target: TargetInfo = WIDE) -> None:
        self.sent = PrefixStore(DEFAULT_LIMITS.max_prefixes, DEFAULT_LIMITS.max_prefix_tokens)
        self.held = PrefixStore(limits.max_prefixes, limits.max_prefix_tokens)
        self.reader = BatchReader(self.held, Bounds(target, limits.max_id_length), scope="7/")
        self.message = drafter_pb2.DraftRequest()

    def draft(self, *requests: DraftRequest) -> list[DraftRequest]:
        self.message = drafter_pb2.DraftRequest()
        encode_draft_rows(self.message, requests, self.sent)
        self.message = drafter_pb2.DraftRequest.FromString(self.message.SerializeToString())
        return self.reader.draft_requests(self.message)

    def verify(self, *requests: VerifyRequest) -> list[VerifyRequest]:
        message = verifier_pb2.VerifyRequest()
        encode_verify_rows(message, requests, self.sent)
        message = verifier_pb2.VerifyRequest.FromString(message.SerializeToString())
        return self.reader.verify_requests(message)

    @property
    def num_tokens_sent(self) -> int:
        deltas = sum(len(delta.token_ids) for delta in self.message.prefixes)
        return deltas + sum(len(row.token_ids) for row in self.message.rows)


def assert_same(found, sent):
    assert len(found) == len(sent)
    for one, other in zip(found, sent, strict=True):
        assert one.request_id == "7/" + other.request_id
        assert one.prefix.dtype == np.int32
        np.testing.assert_array_equal(one.prefix, other.prefix)
        same = replace(one, request_id=other.request_id, prefix=other.prefix)
        for name in type(one).__dataclass_fields__:
            mine, theirs = getattr(same, name), getattr(other, name)
            assert mine is theirs or np.all(mine == theirs)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("send", "requests"),
    [
        (Pipe.draft, strategies.draft_requests),
        (Pipe.verify, strategies.verify_requests()),
    ],
)
@settings(max_examples=25)
@given(data=st.data())
def test_batches_arrive_as_they_were_sent(send, requests, data):
    pipe = Pipe()
    for batch in data.draw(st.lists(st.lists(requests, max_size=4), max_size=5)):
        assert_same(send(pipe, *batch), batch)


@settings(max_examples=25)
@given(st.lists(st.lists(strategies.draft_requests, max_size=3), max_size=6))
def test_a_forgetful_receiver_gets_all_with_one_resend(batches):
    pipe = Pipe(RpcLimits(max_prefixes=1, max_prefix_tokens=100))
    for batch in batches:
        try:
            found = pipe.draft(*batch)
        except StalePrefixError:
            for one in batch:
                pipe.sent.forget(one.request_id)
            found = pipe.draft(*batch)
        assert_same(found, batch)
        assert len(pipe.held) <= 1


def test_only_what_is_new_is_sent():
    pipe = Pipe()
    assert_same(pipe.draft(request(1, 2, 3)), [request(1, 2, 3)])
    assert pipe.num_tokens_sent == 3
    assert pipe.message.prefixes[0].HasField("sampling")
    assert_same(pipe.draft(request(1, 2, 3, 4)), [request(1, 2, 3, 4)])
    assert pipe.num_tokens_sent == 1
    assert not pipe.message.prefixes[0].HasField("sampling")
    pipe.draft(request(1, 2, 3, 4))
    assert pipe.num_tokens_sent == 0


def test_a_prediction_is_sent_once():
    pipe, prediction = Pipe(), np.array([7, 8], np.int32)
    batch = [replace(request(1, 2), prediction=prediction)]
    assert_same(pipe.draft(*batch), batch)
    [later] = pipe.draft(replace(request(1, 2, 3), prediction=prediction))
    assert later.prediction.tolist() == [7, 8] and not pipe.message.prefixes[0].prediction
    assert_same(pipe.draft(request(1, 2, 3)), [request(1, 2, 3)])  # another request of that name


def test_hypotheses_share_their_prefix():
    pipe = Pipe()
    committed = list(range(40))
    batch = [request(*committed, 7), request(*committed, 8, 9), request(*committed)]
    assert_same(pipe.draft(*batch), batch)
    assert len(pipe.message.prefixes) == 1
    assert pipe.num_tokens_sent == 40 + 1 + 2
    [later] = pipe.draft(request(*committed, 8, 9, 5))
    assert later.prefix.tolist() == [*committed, 8, 9, 5]
    assert pipe.num_tokens_sent == 3


def test_a_prefix_that_turns_out_otherwise_is_cut_where_it_differs():
    pipe = Pipe()
    pipe.draft(request(1, 2, 3, 4))
    assert_same(pipe.draft(request(1, 2, 9)), [request(1, 2, 9)])
    assert pipe.num_tokens_sent == 1


def test_rows_of_one_request_may_differ_in_sampling():
    pipe = Pipe()
    other = SamplingParams(temperature=1.0, seed=1)
    batch = [request(1, 2), request(1, 2, 3, sampling=other), request(1)]
    assert_same(pipe.draft(*batch), batch)
    assert_same(pipe.draft(request(1)), [request(1)])


def test_what_was_read_is_not_changed_by_what_is_read_later():
    pipe = Pipe()
    [first] = pipe.draft(request(1, 2, 3))
    pipe.draft(request(1, 9, 9))
    assert first.prefix.tolist() == [1, 2, 3]


def delta(**changes: Any) -> PrefixDelta:
    message = PrefixDelta(request_id="a", token_ids=[1, 2])
    message.sampling.SetInParent()
    for name, value in changes.items():
        setattr(message, name, value)
    return message


ROW: dict[str, Any] = {"num_draft_tokens": 4, "max_nodes": 4, "tree_shape": 1}
ROW |= {"drafter_weight": 0.5}


@pytest.mark.parametrize("row", [{}, {"token_ids": [2**32 - 1]}])
def test_token_ids_have_31_bits_in_any_vocabulary(row):
    wide = PrefixDelta(request_id="a", token_ids=[1 if row else 2**31])
    wide.sampling.SetInParent()
    message = drafter_pb2.DraftRequest(prefixes=[wide], rows=[DraftRow(**(ROW | row))])
    with pytest.raises(InvalidRequestError, match="token ids must be from 0 to 2147483647"):
        Pipe().reader.draft_requests(message)


@pytest.mark.parametrize(
    "change",
    [
        {"request_id": "unknown", "base_length": 1},
        {"base_length": 3},
        {"base_length": 2, "base_hash": 1},
        {"base_length": 1, "base_hash": 0},
    ],
    ids=str,
)
def test_a_base_that_is_not_held_is_stale(change):
    pipe = Pipe()
    pipe.draft(request(1, 2))
    message = drafter_pb2.DraftRequest(prefixes=[delta(**change)], rows=[DraftRow(**ROW)])
    with pytest.raises(StalePrefixError):
        pipe.reader.draft_requests(message)
    message.prefixes[0].ClearField("base_length")
    assert pipe.reader.draft_requests(message)


def test_sampling_parameters_that_were_never_sent_are_stale():
    unset = PrefixDelta(request_id="a", token_ids=[1])
    message = drafter_pb2.DraftRequest(prefixes=[unset], rows=[DraftRow(**ROW)])
    with pytest.raises(StalePrefixError, match="no sampling parameters"):
        Pipe().reader.draft_requests(message)


def test_the_oldest_prefixes_are_forgotten_first():
    pipe = Pipe(RpcLimits(max_prefixes=2))
    for name in "abac":
        pipe.draft(request(1, request_id=name))
    assert pipe.held.request_ids() == ["a", "c"]
    assert pipe.reader.take_forgotten() == ["b"]
    assert pipe.reader.take_forgotten() == []


def test_remembered_tokens_are_bounded():
    pipe = Pipe(RpcLimits(max_prefix_tokens=5))
    pipe.draft(request(1, 2, 3))
    pipe.draft(request(1, 2, 3, request_id="b"))
    assert pipe.held.request_ids() == ["b"]
    assert pipe.held.num_tokens == 3
    [long] = pipe.draft(request(*range(9), request_id="c"))
    assert len(long.prefix) == 9
    assert pipe.held.request_ids() == []


def test_hidden_states_cross_the_wire_as_they_are_and_no_others_are_taken() -> None:
    rows = StateRows(3, (2, 4), bytes(range(16)))
    pipe, wanted = Pipe(), StatesWanted((1, 8), 7)
    [found] = pipe.draft(replace(request(1, 2, 3), states=rows))
    assert found.states is not None
    assert (found.states.first, found.states.dims, found.states.data) == (3, (2, 4), rows.data)
    tree = DraftTree((), ())
    [asked] = pipe.verify(VerifyRequest("a", tokens(1, 2), 1, tree, SAMPLING, wanted))
    assert asked.states_wanted == wanted
    with pytest.raises(InvalidRequestError, match=r"shape \[9, 4\] must be 72 bytes"):
        pipe.draft(replace(request(1), states=StateRows(0, (9, 4), bytes(16))))
