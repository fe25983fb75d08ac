"""Finds out what a tokenizer's chat template accepts and writes, by rendering it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError

from diffuspec.core.errors import ConfigError

logger = logging.getLogger(__name__)

_CHANNEL_ENDS = ("<|return|>", "<|call|>")
_MAX_TEMPLATE_CHARACTERS = 2**20
_PROBE, _OTHER_PROBE = "Qzx7probe", "Wvk4probe"  # texts that occur in no template


def read_template(path: Path) -> str:
    """Return the chat template in a file. Raises ConfigError, with the line of wrong syntax."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_TEMPLATE_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read the chat template {path}: {reason}") from error
    if not 0 < len(text) <= _MAX_TEMPLATE_CHARACTERS:
        raise ConfigError(
            f"the chat template {path} must have 1 to {_MAX_TEMPLATE_CHARACTERS} characters"
        )
    from transformers.utils.chat_template_utils import render_jinja_template  # imports slowly

    try:
        render_jinja_template([[_user("Hi")]], chat_template=text, add_generation_prompt=True)
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"the chat template {path} is wrong in line {error.lineno}: {error.message}"
        ) from error
    except Exception:  # a template may raise anything, such as for a conversation without a system
        logger.debug("%s: it refuses a conversation of one message", path)
    return text


def template_text(tokenizer: Any) -> str:
    """Return the source of the chat template, or of all if there are several; "" without one."""
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        return "\n".join(map(str, template.values()))
    return template or ""


@functools.lru_cache(maxsize=8)
def takes_parts_only(tokenizer: Any) -> bool:
    """Return whether the template drops content that is a text, but not content that is a list."""
    if _PROBE in _rendered(tokenizer, [_user(_PROBE)]):
        return False
    text = _rendered(tokenizer, [_user([{"type": "text", "text": _PROBE}])])
    return _PROBE in text and f"'{_PROBE}'" not in text  # only the text, not a printed list


@functools.lru_cache(maxsize=8)
def takes_system_message(tokenizer: Any) -> bool:
    """Return whether the template writes the text of a system message."""
    system = {"role": "system", "content": _content(tokenizer, _PROBE)}
    return _PROBE in _rendered(tokenizer, [system, _user(_content(tokenizer, "Hi"))])


@functools.lru_cache(maxsize=8)
def takes_one_system_message(tokenizer: Any) -> bool:
    """Return whether the template takes a system message, but refuses or drops a second one."""
    first, second, user = (
        {"role": role, "content": _content(tokenizer, text)}
        for role, text in (("system", _PROBE), ("system", _OTHER_PROBE), ("user", "Hi"))
    )
    if _PROBE not in _rendered(tokenizer, [first, user]):
        return False
    text = _rendered(tokenizer, [first, second, user])
    return not (_PROBE in text and _OTHER_PROBE in text)


@functools.lru_cache(maxsize=8)
def turn_end_ids(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids of the added tokens with which the template ends answers.

    If answers consist of several messages (gpt-oss), the text after each message ends none.
    """
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    names = {token.content: token_id for token_id, token in added.items()}
    if "<|channel|>" in template_text(tokenizer):
        return tuple(names[name] for name in _CHANNEL_ENDS if name in names)
    content = _content(tokenizer, _PROBE)
    answer = {"role": "assistant", "content": content}
    _, found, rest = _rendered(tokenizer, [_user(content), answer]).rpartition(_PROBE)
    rest = rest.lstrip()
    ends = [name for name in names if found and rest.startswith(name)]
    return (names[max(ends, key=len)],) if ends else ()


def sample_chat(tokenizer: Any) -> str:
    """Return short chats as the template writes them, with its markup; "" if it refuses them."""
    answer, result = ({"role": role, "content": _PROBE} for role in ("assistant", "tool"))
    system = {"role": "system", "content": _PROBE}
    chats = ([system, _user(_PROBE), answer], [_user(_PROBE), answer], [_user(_PROBE), result])
    return "\n".join(_rendered(tokenizer, chat) for chat in chats)


def _content(tokenizer: Any, text: str) -> Any:
    """Return a text as the template takes it."""
    return [{"type": "text", "text": text}] if takes_parts_only(tokenizer) else text


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _rendered(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> str:
    if not tokenizer.chat_template:
        return ""
    try:
        text: str = tokenizer.apply_chat_template([*messages], tokenize=False)
    except Exception:  # a template may raise anything
        return ""
    return text
