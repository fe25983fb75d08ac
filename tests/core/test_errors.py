"""Errors can be sent, whatever their messages quote."""

from __future__ import annotations

from diffuspec.core.errors import InvalidRequestError


def test_lone_surrogates_of_a_clients_text_are_escaped():
    message = str(InvalidRequestError("#/properties/\ud800 is ü"))
    assert message == "#/properties/\\ud800 is ü"
    message.encode()
