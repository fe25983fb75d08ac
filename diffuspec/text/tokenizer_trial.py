"""Tries the tokenizer and the chat templates of one directory, in a process of its own.

Run as a script, with the directory, seconds of computing and bytes of memory, which it limits. It
writes the name of each file before it tries it, and then what is wrong with it, as lines of JSON.
A tokenizer's rules for texts are tried on a vocabulary of one word, which is quick, and templates
on short chats. A file that is merely invalid passes: loading it raises a better error.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

_MAX_GROWTH = 16  # characters or tokens for each character of a text, beyond _MAX_EXTRA
_MAX_EXTRA = 1000
_MAX_CHAT_CHARACTERS = 2**20
_TEXTS = (
    "The quick brown fox isn't 1234.5 dogs (lazy):\n\n\tdef f(x): return x['a'] + 1 # <b>\r\n" * 20,
    "Größe naïve e\u0301 東京 ﬁ 🙂 안녕 مرحبا " * 40,
    *(letter * 2000 + "!" for letter in "a1 \n-_.'"),
    *(word * 700 + "!" for word in ("ab ", "Aa", "a1", "a.", "\r\n")),
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells it.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
_CALL = {"name": "weather", "arguments": {"city": "Ulm"}}
_SYSTEM, _USER, _ANSWER = (
    {"role": role, "content": "Hello."} for role in ("system", "user", "assistant")
)
_CHATS: tuple[tuple[list[dict[str, Any]], list[Any] | None], ...] = (
    ([_USER], None),
    ([_SYSTEM, _USER, _ANSWER, _USER], None),
    ([_USER | {"content": [{"type": "text", "text": "Hello."}]}], None),
    (
        [
            _USER,
            {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": _CALL}]},
            {"role": "tool", "tool_call_id": "a", "content": "Sun."},
        ],
        [_TOOL],
    ),
)


def tried_files(path: Path) -> list[Path]:
    """Return the files of a directory that determine its tokenizer and templates, if present."""
    templates = sorted((path / "additional_chat_templates").glob("*.jinja"))
    names = [path / "tokenizer_config.json", path / "chat_template.jinja", *templates]
    return [file for file in [*sorted(path.glob("tokenizer.*json")), *names] if file.is_file()]


def main(path: Path, cpu_seconds: int, memory_bytes: int) -> None:
    """Try all files of a directory, and write what is wrong with the first that is refused."""
    limits = ((resource.RLIMIT_CPU, cpu_seconds), (resource.RLIMIT_AS, memory_bytes))
    for kind, limit in limits:
        with contextlib.suppress(ValueError, OSError):  # not on every system
            resource.setrlimit(kind, (limit, limit))
    for file in tried_files(path):
        _write({"file": str(file.relative_to(path))})
        try:
            if file.name.startswith("tokenizer."):
                _try_tokenizer(json.loads(file.read_text(encoding="utf-8")))
            else:
                for template in _templates(file):
                    _try_template(template)
        except _Refused as reason:
            _refuse(str(reason))
        except MemoryError:
            _refuse(f"a trial of it needed more than {memory_bytes // 2**20} MiB of memory")
        except RecursionError:
            _refuse("it is nested too deeply")
        except Exception:  # an invalid file, which loading it reports
            continue
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            _refuse(f"its rules fail on ordinary texts: {error}")
    _write({"done": True})


class _Refused(Exception):
    """A file is refused; the message says why."""


def _try_tokenizer(data: dict[str, Any]) -> None:
    word = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}
    tokenizer = Tokenizer.from_str(
        json.dumps(data | {"model": word, "truncation": None, "padding": None})
    )
    for text in _TEXTS:
        most = _MAX_GROWTH * len(text) + _MAX_EXTRA
        if tokenizer.normalizer is not None:
            _check("its normalizer makes", tokenizer.normalizer.normalize_str(text), text, most)
        _check("it makes tokens, ", tokenizer.encode(text).ids, text, most)
        if tokenizer.decoder is not None:
            _check("its decoder makes", tokenizer.decoder.decode([*text]), text, most)


def _check(what: str, made: str | list[int], text: str, most: int) -> None:
    if len(made) > most:
        raise _Refused(f"{what} {len(made)} of {len(text)} characters")


def _templates(file: Path) -> Iterator[str]:
    """Yield the chat templates in a file."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".json":
        yield text
        return
    given = json.loads(text).get("chat_template")
    for entry in given if isinstance(given, list) else [given]:
        template = entry.get("template") if isinstance(entry, Mapping) else entry
        if isinstance(template, str):
            yield template


def _try_template(source: str) -> None:
    template = _environment().from_string(source)
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "?"}
    for messages, tools in _CHATS:
        for has_prompt in (False, True):
            variables = {"messages": messages, "tools": tools, "add_generation_prompt": has_prompt}
            try:
                _check_length(template.generate(**variables, **tokens), len(messages))
            except (_Refused, MemoryError, RecursionError):
                raise
            except Exception:  # a chat that the template does not take
                continue


def _check_length(parts: Iterable[str], num_messages: int) -> None:
    num_characters = 0
    for part in parts:
        num_characters += len(part)
        if num_characters > _MAX_CHAT_CHARACTERS:
            raise _Refused(
                f"it writes more than {_MAX_CHAT_CHARACTERS} characters for a chat of "
                f"{num_messages} short messages"
            )


class _Generation(Extension):
    """The tag with which templates mark answers for training."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """Return an environment with what transformers offers to chat templates."""

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: Any, **options: Any) -> str:
        return json.dumps(value, **({"ensure_ascii": False} | options))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _refuse(reason: str) -> NoReturn:
    _write({"refused": reason})
    sys.exit()


def _write(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
