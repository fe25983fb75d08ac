"""Every command of docs/deployment.md is run by `make cluster`, or it is said why not."""

import re

import pytest

from benchmarks.cluster.documents import NOT_RUN, WAYS, commands, way_of
from benchmarks.cluster.machines import need
from diffuspec.core.errors import ConfigError


def test_every_command_is_run_or_has_a_reason_why_not():
    for command in commands():
        reasons = [why for start, why in NOT_RUN.items() if command.startswith(start)]
        assert (way_of(command) is None) == bool(reasons), command


def test_no_way_and_no_reason_is_left_over():
    found = commands()
    used = [way_of(command) for command in found]
    assert all(way in used for way in WAYS)
    for start in NOT_RUN:
        assert any(command.startswith(start) for command in found), start


def test_what_a_way_fills_in_stands_in_its_command():
    for command in commands():
        if way := way_of(command):
            assert all(word in command for word in way.given), command


def test_a_program_that_is_missing_is_named_with_its_package():
    need({"sh": "dash"})
    message = "no-such-program is missing: apt-get install its-package"
    with pytest.raises(ConfigError, match=re.escape(message)):
        need({"no-such-program": "its-package"})
