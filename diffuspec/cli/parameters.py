"""Command-line options generated from declared parameters, or from the fields of a dataclass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias

import typer

from diffuspec.core.parameter import Parameter, declared, spell

Decorator: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]
Given: TypeAlias = Mapping[str, Any]  # parameters set on the command line, by name

NOTHING_GIVEN: Given = MappingProxyType({})

_PLACES = {int: "N", float: "X", str: "TEXT"}  # the value's placeholder in the help
_MAX_SHOWN = 2**31  # a longer range adds nothing to the type


def takes_parameters(argument: str, cls: type, panel: str) -> Decorator:
    """Decorate a command: replace an argument by one option for each parameter of a class.

    The argument receives an unchecked mapping of the options that were set (`Given`).
    """
    parameters = [one for one in declared(cls) if one.option is not None]
    options = [_option(parameter, panel) for parameter in parameters]
    return _takes(argument, options, lambda values: _given(parameters, values))


def takes_fields(argument: str, cls: type) -> Decorator:
    """Decorate a command: replace an argument by one option for each field of a dataclass.

    The argument receives the dataclass. Fields are annotated like typer's options.
    """
    options = list(inspect.signature(cls, eval_str=True).parameters.values())
    return _takes(
        argument, options, lambda values: cls(**{one.name: values.pop(one.name) for one in options})
    )


def _takes(
    argument: str,
    options: Sequence[inspect.Parameter],
    read: Callable[[dict[str, Any]], Any],
) -> Decorator:
    """Replace an argument by options. It receives the result of `read` for all values."""

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(run)
        def command(**values: Any) -> None:
            values[argument] = read(values)
            run(**values)

        signature = inspect.signature(run, eval_str=True)
        arguments = list(signature.parameters.values())
        place = list(signature.parameters).index(argument)
        arguments[place : place + 1] = options
        command.__dict__["__signature__"] = signature.replace(parameters=arguments)
        return command

    return decorate


def _option(parameter: Parameter, panel: str) -> inspect.Parameter:
    is_list = parameter.num_items is not None
    info: Any = typer.Option(
        f"--no-{parameter.option}" if parameter.default is True else f"--{parameter.option}",
        help=_help(parameter),
        metavar=_metavar(parameter),
        rich_help_panel=panel,
    )
    kind: Any = str if parameter.is_mapping else parameter.kind
    if parameter.words:
        kind = Literal[parameter.words] if kind is str else str
    return inspect.Parameter(
        parameter.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=None,
        annotation=Annotated[(list[kind] if is_list else kind) | None, info],
    )


def _given(parameters: list[Parameter], values: dict[str, Any]) -> Given:
    """Pop the parameters that were set from all values of a command."""
    taken = [(parameter, values.pop(parameter.name)) for parameter in parameters]
    return {
        parameter.name: _read(parameter, value) for parameter, value in taken if value is not None
    }


def _read(parameter: Parameter, value: Any) -> Any:
    if parameter.kind is bool:  # a switch inverts the default
        return not parameter.default
    return _mapping(value) if parameter.is_mapping else _number_or_word(parameter, value)


def _mapping(entries: list[str]) -> dict[str, Any]:
    """Return KEY=NUMBER entries as a mapping; values that are no numbers are refused later."""
    given: dict[str, Any] = {}
    for entry in entries:
        key, _, number = entry.partition("=")
        try:
            given[key] = float(number)
        except ValueError:
            given[key] = number
    return given


def _number_or_word(parameter: Parameter, value: Any) -> Any:
    """Return a text as a number if possible, otherwise unchanged; it is checked later."""
    if not parameter.words or value in parameter.words:
        return value
    try:
        return parameter.kind(value)
    except ValueError:
        return value


def _help(parameter: Parameter) -> str:
    what = parameter.help
    texts = [f"Do not {what[0].lower()}{what[1:]}" if parameter.default is True else what]
    highest: Any = parameter.bounds.le
    if highest is not None and highest < _MAX_SHOWN:
        texts.append(f"{spell(parameter.bounds).capitalize()}.")
    if parameter.num_items is not None:
        texts.append("Repeatable.")
    default = parameter.default
    if isinstance(default, int | float | str) and parameter.kind is not bool:
        texts.append(f"Default: {f'{default:g}' if isinstance(default, float) else default}.")
    return " ".join(texts)


def _metavar(parameter: Parameter) -> str | None:
    if parameter.kind is bool:
        return None
    if parameter.is_mapping:
        return "TOKEN_ID=X"
    if parameter.kind is str and parameter.words:
        return "|".join(parameter.words)
    return "|".join((_PLACES[parameter.kind], *parameter.words))
