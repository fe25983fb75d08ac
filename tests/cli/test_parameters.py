"""Declared parameters become options of a command, and come back as those that were set."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
import typer
from annotated_types import Interval
from typer.testing import CliRunner

from diffuspec.cli import generate
from diffuspec.cli.parameters import NOTHING_GIVEN, Given, takes_parameters
from diffuspec.core.parameter import declare, declared
from diffuspec.core.params import SamplingParams, SpeculationParams, StructuredOutput


@dataclass(frozen=True, slots=True)
class Params:
    size: Annotated[int, Interval(ge=1, le=9)] | Literal["auto"] = declare("auto", "How large.")
    shape: Literal["round", "square"] = declare("round", "Which shape.", option="form")
    weights: tuple[int, ...] = declare((), "How heavy.", option="weight")
    prices: Mapping[int, float] = declare({}, "What each one costs.", option="price")
    is_new: bool = declare(False, "Never used before.")
    secret: int = declare(0, "Nothing for a command line.", option=None)


@pytest.fixture
def run() -> Callable[[str], Any]:
    """Run a command with options of Params; return what it was given, or the failed result."""
    seen: list[Given] = []

    @takes_parameters("params", Params, "Panel")
    def command(name: str = "", params: Given = NOTHING_GIVEN) -> None:
        seen.append(params)

    app = typer.Typer(add_completion=False)
    app.command()(command)

    def run(arguments: str) -> Any:
        result = CliRunner().invoke(app, arguments.split())
        return seen[-1] if result.exit_code == 0 and seen else result

    return run


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", {}),
        ("--size 0", {"size": 0}),
        ("--size auto", {"size": "auto"}),
        ("--size much", {"size": "much"}),  # for the class to refuse
        ("--form square --is-new", {"shape": "square", "is_new": True}),
        ("--weight 3 --weight 0", {"weights": [3, 0]}),
        ("--price 7=-1.5 --price 8=2", {"prices": {"7": -1.5, "8": 2.0}}),
        ("--price 7 --price 8=x", {"prices": {"7": "", "8": "x"}}),  # for the class to refuse
    ],
)
def test_a_command_gets_the_parameters_that_were_set(run, arguments, expected):
    assert run(arguments) == expected


def test_help_says_range_default_and_choices(run):
    text = " ".join(run("--help").stdout.replace("│", " ").split())
    assert "N|auto How large. From 1 to 9. Default: auto." in text
    assert "round|square Which shape. Default: round." in text
    assert (
        "How heavy. Repeatable." in text
        and "TOKEN_ID=X What each one costs." in text
        and "secret" not in text
    )


@pytest.mark.parametrize("arguments", ["--form oval", "--weight x", "--secret 1"])
def test_what_no_parameter_can_be_is_refused(run, arguments):
    assert run(arguments).exit_code == 2


def test_generate_has_an_option_for_every_parameter_that_declares_one():
    taken = inspect.signature(generate.run).parameters
    for parameter in (
        *declared(SamplingParams),
        *declared(StructuredOutput),
        *declared(SpeculationParams),
    ):
        if parameter.name != "drafter":  # a model directory there
            assert (parameter.name in taken) == (parameter.option is not None)
