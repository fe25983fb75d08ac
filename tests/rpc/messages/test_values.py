"""What crosses the wire comes back as it went, and what is none of it is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import RequestStatus, ServiceStatus
from diffuspec.core.parameter import declared
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Draft, Lattice, RequestOutput
from diffuspec.rpc.messages import answers as convert_answers, values as convert
from diffuspec.rpc.messages.parameters import parameters_from_proto, parameters_to_proto
from diffuspec.v1 import coordinator_pb2, types_pb2
from tests.rpc.messages import strategies


def again(message):
    """The message after a journey as bytes."""
    return type(message).FromString(message.SerializeToString())


def draft_to_proto(draft: Draft) -> types_pb2.Draft:
    message = types_pb2.Drafts()
    convert.put_drafts(message, [draft])
    return message.drafts[0]


def output_to_proto(output: RequestOutput) -> coordinator_pb2.GenerateResponse:
    message = coordinator_pb2.GenerateResponse()
    convert_answers.put_output(message, output)
    return message


CONFIGURED = SpeculationParams(
    policy="paper",
    num_draft_tokens=5,
    tree_shape="path",
    max_nodes=7,
    drafter_weight=0.25,
    num_outcomes=3,
)

ROUND_TRIPS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sampling": (strategies.samplings, convert.sampling_to_proto, convert.sampling_from_proto),
    "tree": (strategies.trees(), convert.tree_to_proto, convert.tree_from_proto),
    "draft": (strategies.drafts(), draft_to_proto, convert.draft_from_proto),
    "verdict": (strategies.verdicts(), convert.verdict_to_proto, convert.verdict_from_proto),
    "info": (strategies.infos, convert.info_to_proto, convert.info_from_proto),
    "speculation": (
        strategies.speculations,
        lambda value: parameters_to_proto(value, coordinator_pb2.SpeculationParams),
        lambda message: parameters_from_proto(message, CONFIGURED),
    ),
    "output": (
        strategies.outputs,
        output_to_proto,
        convert_answers.request_output_from_proto,
    ),
    "status": (
        strategies.statuses,
        convert_answers.status_to_proto,
        convert_answers.status_from_proto,
    ),
}


@pytest.mark.parametrize("kind", ROUND_TRIPS)
@given(data=st.data())
def test_values_come_back_as_they_went(kind, data):
    values, to_proto, from_proto = ROUND_TRIPS[kind]
    value = data.draw(values)
    assert from_proto(again(to_proto(value))) == value


@given(strategies.lattices())
def test_lattices_come_back_bit_for_bit(lattice: Lattice):
    found = convert.lattice_from_proto(again(convert.lattice_to_proto(lattice)))
    for name in ("token_ids", "logprobs", "num_candidates"):
        sent, received = getattr(lattice, name), getattr(found, name)
        assert received.dtype == sent.dtype and received.shape == sent.shape
        assert received.tobytes() == sent.tobytes()
    assert found.num_tokens_before_eos == lattice.num_tokens_before_eos
    assert found.num_refreshed == lattice.num_refreshed


@given(strategies.prompts)
def test_prompts_come_back_as_they_went(prompt):
    request = coordinator_pb2.GenerateRequest()
    convert_answers.put_prompt(request, prompt)
    found = convert_answers.take_prompt(again(request))
    assert (found.tolist() if isinstance(found, np.ndarray) else found) == prompt


def test_a_prompt_of_an_array_is_a_prompt_of_ids():
    request = coordinator_pb2.GenerateRequest()
    convert_answers.put_prompt(request, np.array([3, 4], np.int32))
    found = convert_answers.take_prompt(again(request))
    assert isinstance(found, np.ndarray) and found.tolist() == [3, 4]
    assert found.dtype == np.int32 and not found.flags.writeable


@given(strategies.drafts(), strategies.verdicts(), strategies.seconds)
def test_the_way_here_is_added_to_the_transport(draft, verdict, seconds):
    found = convert.draft_from_proto(draft_to_proto(draft), seconds)
    assert found == replace(draft, transport_seconds=draft.transport_seconds + seconds)
    sent = convert.verdict_from_proto(convert.verdict_to_proto(verdict), seconds)
    assert sent == replace(verdict, transport_seconds=verdict.transport_seconds + seconds)


def test_what_is_not_set_takes_its_default():
    assert convert.sampling_from_proto(types_pb2.SamplingParams()) == SamplingParams()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"tree_shape": types_pb2.TREE_SHAPE_BEAMS}, {"tree_shape": "beams"}),
        ({"fixed_drafter_weight": 0.0}, {"drafter_weight": 0.0}),
        ({"adaptive_drafter_weight": True}, {"drafter_weight": "adaptive"}),
        ({"adaptive_drafter_weight": False}, {}),
        ({"num_outcomes": 0}, {"num_outcomes": 0}),
        ({"auto_outcomes": True}, {"num_outcomes": "auto"}),
        ({"auto_outcomes": False}, {}),
    ],
    ids=str,
)
def test_what_a_request_leaves_open_is_as_the_service_is_configured(given, expected):
    message = again(coordinator_pb2.SpeculationParams(**given))
    found = parameters_from_proto(message, CONFIGURED)
    assert found == replace(CONFIGURED, **expected)


LATTICE = convert.lattice_to_proto(
    Lattice(
        np.array([[1, 2], [3, -1]], np.int32),
        np.array([[-0.5, -1.5], [-0.1, -np.inf]], np.float32),
        np.array([2, 1], np.int32),
        2,
    )
)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"token_ids": LATTICE.token_ids[:-1]}, r"token_ids of shape \[2, 2\] must be 16 bytes"),
        ({"logprobs": LATTICE.logprobs + b"\0"}, "logprobs .* got 17"),
        ({"num_candidates": b""}, "num_candidates .* must be 8 bytes, got 0"),
        ({"num_positions": 3}, "must be 24 bytes"),
        ({"num_positions": 2**32 - 1, "max_candidates": 2**32 - 1}, "at most 128 positions"),
        ({"num_candidates": np.array([3, 1], "<i4").tobytes()}, "from 1 to 2, got 1 to 3"),
        ({"num_candidates": np.array([2, 0], "<i4").tobytes()}, "from 1 to 2, got 0 to 2"),
        ({"logprobs": np.full(4, np.nan, "<f4").tobytes()}, "NaN"),
        ({"max_candidates": 0, "token_ids": b"", "logprobs": b""}, "from 1 to 0"),
    ],
    ids=str,
)
def test_tables_are_measured_before_they_are_read(change, problem):
    message = again(LATTICE)
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(InvalidRequestError, match=problem):
        convert.lattice_from_proto(message)


@pytest.mark.parametrize(
    "message",
    [
        types_pb2.SamplingParams(top_p=0.0),
        types_pb2.SamplingParams(temperature=float("nan")),
        types_pb2.SamplingParams(max_tokens=0),
        types_pb2.SamplingParams(stop=[""]),
        types_pb2.SamplingParams(logprobs=21),
    ],
)
def test_wrong_sampling_parameters_are_refused(message):
    with pytest.raises(InvalidRequestError):
        convert.sampling_from_proto(message)


@pytest.mark.parametrize(
    "message",
    [
        coordinator_pb2.SpeculationParams(num_draft_tokens=0),
        coordinator_pb2.SpeculationParams(max_nodes=10**6),
        coordinator_pb2.SpeculationParams(fixed_drafter_weight=1.5),
        coordinator_pb2.SpeculationParams(tree_shape=9),  # type: ignore[arg-type]
    ],
)
def test_wrong_speculation_parameters_are_refused(message):
    with pytest.raises(InvalidRequestError):
        parameters_from_proto(message, CONFIGURED)


def test_lists_that_do_not_fit_each_other_are_refused():
    with pytest.raises(InvalidRequestError, match="1 token ids but 0 log-probabilities"):
        convert.logprobs_from_proto(types_pb2.TokenLogprobs(top_token_ids=[1]))
    for alternatives, problem in (
        (types_pb2.Alternatives(row_lengths=[1], rows=[0]), "1 alternatives must be 4 and 8 bytes"),
        (types_pb2.Alternatives(row_lengths=[2**32 - 1]), "got 0 and 0"),
        (types_pb2.Alternatives(logprobs=b"8 bytes."), "must be 0 and 0 bytes, got 0 and 8"),
        (types_pb2.Alternatives(row_lengths=[0], rows=[0, 1]), "in row 1 of 1"),
    ):
        with pytest.raises(InvalidRequestError, match=problem):
            convert.draft_from_proto(types_pb2.Draft(alternatives=alternatives))


def test_a_missing_prompt_is_refused():
    with pytest.raises(InvalidRequestError, match="prompt is missing"):
        convert_answers.take_prompt(coordinator_pb2.GenerateRequest())


def test_numbers_that_no_field_can_hold_are_refused():
    with pytest.raises(InvalidRequestError, match="cannot be sent"):
        convert.sampling_to_proto(SamplingParams(max_tokens=2**64))


def test_a_status_lists_as_many_requests_as_a_message_holds_and_counts_the_rest():
    one = RequestStatus("a" * 128, "waiting", 1.5, "a slot", 3, 0)
    status = ServiceStatus((), requests=(one,) * 1500, num_unlisted_requests=7)
    message = convert_answers.status_to_proto(status)
    assert (len(message.requests), message.num_unlisted_requests) == (1000, 507)
    message = convert_answers.status_to_proto(status, max_message_bytes=65_536)
    assert message.ByteSize() < 65_536
    assert len(message.requests) > 100
    assert len(message.requests) + message.num_unlisted_requests == 1507


# ---- a field for every declared parameter, and no others

PAIRS: list[tuple[Any, Any]] = [
    (SamplingParams, types_pb2.SamplingParams),
    (SpeculationParams, coordinator_pb2.SpeculationParams),
]


@pytest.mark.parametrize(("cls", "message"), PAIRS)
def test_a_message_has_fields_for_the_declared_parameters_alone(cls: Any, message: Any) -> None:
    fields = message.DESCRIPTOR.fields_by_name
    expected: set[str] = set()
    for parameter in declared(cls):
        number = fields.get(parameter.name) or fields[f"fixed_{parameter.name}"]
        words = parameter.words if parameter.kind is not str else ()
        together = number.containing_oneof.fields if words else [number]
        assert len(together) == 1 + len(words)
        expected.update(field.name for field in together)
    assert set(fields) == expected


@pytest.mark.parametrize(("cls", "message"), PAIRS)
def test_fields_that_cannot_be_unset_default_to_zero(cls: Any, message: Any) -> None:
    for parameter in declared(cls):
        field = message.DESCRIPTOR.fields_by_name.get(parameter.name)
        if field is not None and field.enum_type is None and not field.has_presence:
            assert not parameter.default, parameter.name


@pytest.mark.parametrize(("cls", "message"), PAIRS)
def test_an_enum_has_a_value_for_every_word(cls: Any, message: Any) -> None:
    for parameter in declared(cls):
        for word in parameter.words:
            params = cls(**{parameter.name: word})
            assert parameters_from_proto(parameters_to_proto(params, message), cls()) == params


def test_an_unknown_number_of_an_enum_is_refused_with_the_words():
    message = coordinator_pb2.SpeculationParams(policy=9)  # type: ignore[arg-type]
    expected = "policy must be one of paper, cost_aware, fixed, off, got 9"
    with pytest.raises(InvalidRequestError, match=expected):
        parameters_from_proto(message, SpeculationParams())
