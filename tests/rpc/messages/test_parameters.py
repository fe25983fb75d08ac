"""The messages have a field for every declared parameter, and no others."""

from typing import Any

import pytest

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.parameter import declared
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.rpc.messages.parameters import parameters_from_proto, parameters_to_proto
from diffuspec.v1 import coordinator_pb2, types_pb2

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


def test_an_unknown_number_of_an_enum_is_refused_with_the_words() -> None:
    message = coordinator_pb2.SpeculationParams(policy=9)  # type: ignore[arg-type]
    expected = "policy must be one of paper, cost_aware, fixed, off, got 9"
    with pytest.raises(InvalidRequestError, match=expected):
        parameters_from_proto(message, SpeculationParams())
