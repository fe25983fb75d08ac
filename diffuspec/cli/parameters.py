"""Options of a command made of declared parameters, or of the fields of a dataclass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias

import typer

from diffuspec.core.parameter import Parameter, declared, spell

Decorator: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]
Given: TypeAlias = Mapping[str, Any]  # parameters that were set on the command line, by name

NOTHING_GIVEN: Given = MappingProxyType({})

_PLACES = {int: "N", float: "X", str: "TEXT"}  # the value's place in the help
_MAX_SHOWN = 2**31  # a longer range says no more than the type


def takes_parameters(argument: str, cls: type, panel: str) -> Decorator:
    """Decorate a command: one option for each parameter of a class, in place of an argument.

    The argument itself gets a mapping of those that were set (`Given`), unchecked.
    """
    parameters = [one for one in declared(cls) if one.option is not None]
    options = [_option(parameter, panel) for parameter in parameters]
    return _takes(argument, options, lambda values: _given(parameters, values))


def takes_fields(argument: str, cls: type) -> Decorator:
    """Decorate a command: one option for each field of a dataclass, in place of an argument.

    The argument itself gets the dataclass. Fields are annotated as typer's options are.
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
    """Put options in place of an argument, which gets what `read` takes out of all values."""

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
    """Take the values of parameters that were set out of all values of a command."""
    taken = [(parameter, values.pop(parameter.name)) for parameter in parameters]
    return {
        parameter.name: _read(parameter, value) for parameter, value in taken if value is not None
    }


def _read(parameter: Parameter, value: Any) -> Any:
    if parameter.kind is bool:  # a switch that was given turns the default over
        return not parameter.default
    return _mapping(value) if parameter.is_mapping else _number_or_word(parameter, value)


def _mapping(entries: list[str]) -> dict[str, Any]:
    """Return the entries KEY=NUMBER as a mapping; a value that is no number is refused later."""
    given: dict[str, Any] = {}
    for entry in entries:
        key, _, number = entry.partition("=")
        try:
            given[key] = float(number)
        except ValueError:
            given[key] = number
    return given


def _number_or_word(parameter: Parameter, value: Any) -> Any:
    """Return a text as a number if it is one, any other text unchanged: it is checked later."""
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
