"""Prompts as given by users, and as token ids."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jinja2 import TemplateError
from tokenizers import Tokenizer

from diffuspec.core.errors import ContextLengthError, InvalidRequestError
from diffuspec.core.token_ids import as_token_ids, read_only
from diffuspec.core.types import Prompt, TokenIds
from diffuspec.text.chat_template import (
    takes_one_system_message,
    takes_parts_only,
    takes_system_message,
    template_text,
)
from diffuspec.text.described_tools import with_described_tools
from diffuspec.text.encoding import encode_text
from diffuspec.text.markup import markup_of

# Names that have another meaning in every template.
_TAKEN_OPTIONS = frozenset({"messages", "raise_exception", "strftime_now"})
ROLES = ("system", "developer", "user", "assistant", "tool")
_SYSTEM_ROLES = ("system", "developer")
_MAX_CHARACTERS_PER_TOKEN = 16  # a longer text is refused before it is tokenised
_MARGIN_TOKENS = 64  # tokens next to a cut that may differ from those of the whole text


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a chat template formats messages. Not for prompts that are texts or token ids."""

    tools: Sequence[Mapping[str, Any]] = ()  # functions, in OpenAI's format
    variables: Mapping[str, Any] = field(default_factory=dict)  # further variables of the template
    adds_generation_prompt: bool = True  # the text ends with the beginning of an answer
    continues_final_message: bool = False  # the last message is left open, to be continued
    # texts of users and tools may become the template's own tokens, as <|im_end|> does
    allows_markup: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """The part to keep of a prompt that may be too long."""

    num_tokens: int
    keeps_begin: bool = False  # keep the beginning of the prompt rather than its end

    def of(self, token_ids: TokenIds) -> TokenIds:
        if len(token_ids) <= self.num_tokens:
            return token_ids
        return token_ids[: self.num_tokens] if self.keeps_begin else token_ids[-self.num_tokens :]


@dataclass(frozen=True, slots=True)
class _Text:
    """A text, and how a part of it is tokenised, with or without special tokens around it."""

    text: str
    encode: Callable[[str, bool], TokenIds]


_DEFAULT = ChatOptions()


def encode_prompt(
    prompt: Prompt,
    tokenizer: Any,
    max_model_len: int | None,
    chat: ChatOptions = _DEFAULT,
    adds_special_tokens: bool | None = None,
    cut: Cut | None = None,
) -> TokenIds:
    """Return the token ids of a text, or of chat messages in the tokenizer's template.

    Token ids are returned unchanged. By default (adds_special_tokens None) a text gets its
    tokenizer's special tokens, such as BOS, and a chat only those of its template. Raises
    InvalidRequestError; a text that cannot fit max_model_len is refused before it is tokenised.
    With a `cut` nothing is too long, and only the part to keep is tokenised.
    """
    if isinstance(prompt, str):
        text = _Text(prompt, functools.partial(_encode, tokenizer.backend_tokenizer))
        adds_special = adds_special_tokens is not False
    elif len(prompt) and all(isinstance(item, Mapping) for item in prompt):
        text = _render(prompt, tokenizer, chat)  # type: ignore[arg-type]
        adds_special = adds_special_tokens is True
    else:
        token_ids = as_token_ids(prompt)
        return token_ids if cut is None else cut.of(token_ids)
    if cut is not None:
        return _tokenize_part(text, cut, adds_special)
    if max_model_len is not None and len(text.text) > max_model_len * _MAX_CHARACTERS_PER_TOKEN:
        raise ContextLengthError(
            f"a prompt of {len(text.text)} characters cannot fit the target's maximum context "
            f"length of {max_model_len} tokens"
        )
    return text.encode(text.text, adds_special)


def list_of_prompts(prompts: Iterable[Prompt]) -> list[Prompt]:
    """Return prompts as a list. Raises InvalidRequestError for a single prompt or other values."""
    is_one = isinstance(prompts, str | bytes | Mapping)
    if not is_one and not isinstance(prompts, Iterable):
        raise InvalidRequestError(
            f"prompts must be a list of prompts, or yield them, got {type(prompts).__name__}"
        )
    listed = [] if is_one else [*prompts]
    if is_one or any(isinstance(one, Mapping | int | np.integer) for one in listed):
        raise InvalidRequestError("prompts must be a list of prompts: put a single one in [ ]")
    return listed


def _render(messages: Sequence[Mapping[str, Any]], tokenizer: Any, chat: ChatOptions) -> _Text:
    """Return a chat in the template's format. Raises InvalidRequestError."""
    _check_chat(messages, tokenizer, chat)
    if "tools" not in template_text(tokenizer):
        messages = with_described_tools(
            messages, chat.tools, takes_system=takes_system_message(tokenizer)
        )
        chat = replace(chat, tools=())
    laid_out = [_laid_out(message, takes_parts_only(tokenizer)) for message in messages]
    if takes_one_system_message(tokenizer):
        laid_out = _with_one_system_message(laid_out)
    if not chat.allows_markup:
        markup = markup_of(tokenizer)
        hidden = markup.hide(laid_out, chat.tools)
        if hidden.texts:
            rendered = _apply(tokenizer, hidden.messages, hidden.tools, chat)
            return _Text(markup.restore(rendered, hidden.texts), markup.encode)
    text = _apply(tokenizer, laid_out, chat.tools, chat)
    return _Text(text, functools.partial(_encode, tokenizer.backend_tokenizer))


def _check_chat(messages: Sequence[Mapping[str, Any]], tokenizer: Any, chat: ChatOptions) -> None:
    for message in messages:
        if not (isinstance(message.get("role"), str) and _is_content(message.get("content"))):
            keys = sorted(map(str, message))
            raise InvalidRequestError(
                f"a chat message needs a text `role` and a text `content`, got keys {keys}"
            )
        if (role := message["role"]) not in ROLES:
            raise InvalidRequestError(f"role must be one of {', '.join(ROLES)}, got {role!r:.80}")
    if tokenizer.chat_template is None:
        raise InvalidRequestError("the target's tokenizer has no chat template; send plain text")
    taken = _TAKEN_OPTIONS | inspect.signature(tokenizer.apply_chat_template).parameters.keys()
    if wrong := sorted(taken & chat.variables.keys()):
        raise InvalidRequestError(f"chat_template_kwargs must not have {', '.join(wrong)}")


def _apply(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    chat: ChatOptions,
) -> str:
    """Run the chat template. Raises InvalidRequestError."""
    try:
        text: str = tokenizer.apply_chat_template(
            [*messages],
            tools=[*tools] or None,
            tokenize=False,
            add_generation_prompt=chat.adds_generation_prompt,
            continue_final_message=chat.continues_final_message,
            **chat.variables,
        )
    except Exception as error:  # a template may raise anything
        if chat.continues_final_message and type(error) is ValueError:  # the error quotes the chat
            raise InvalidRequestError(
                "continue_final_message needs a chat template that keeps the content of the final "
                "message as it is"
            ) from error
        # Errors other than the template's own may quote the chat.
        reason = error if type(error) is TemplateError else type(error).__name__
        raise InvalidRequestError(f"the chat template refused the messages: {reason}") from error
    return text


def _is_content(content: object) -> bool:
    """Return whether a message's content is a text, or a list of text parts."""
    if isinstance(content, str):
        return True
    return isinstance(content, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content
    )


def _laid_out(message: Mapping[str, Any], has_parts: bool) -> dict[str, Any]:
    """Return a message with its content as the template expects it: parts, or lines of one text."""
    content = message["content"]
    if has_parts and isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    elif not has_parts and not isinstance(content, str):
        content = "\n".join(part["text"] for part in content)
    return {**message, "content": content}


def _with_one_system_message(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with the leading ones of the roles system and developer joined into one."""
    leading = [*itertools.takewhile(lambda message: message["role"] in _SYSTEM_ROLES, messages)]
    if len(leading) < 2:
        return messages
    contents = [message["content"] for message in leading if message["content"]]
    has_parts = any([isinstance(content, list) for content in contents])
    joined = {
        **leading[0],
        "role": "system",
        "content": [*itertools.chain(*contents)] if has_parts else "\n\n".join(contents),
    }
    return [joined, *messages[len(leading) :]]


def _tokenize_part(text: _Text, cut: Cut, adds_special_tokens: bool) -> TokenIds:
    """Tokenise just enough of a text that the kept tokens do not depend on the rest."""
    num_characters, whole = (cut.num_tokens + _MARGIN_TOKENS) * _MAX_CHARACTERS_PER_TOKEN, text.text
    while True:
        part = whole[:num_characters] if cut.keeps_begin else whole[-num_characters:]
        token_ids = text.encode(part, adds_special_tokens)
        if len(part) == len(whole) or len(token_ids) >= cut.num_tokens + _MARGIN_TOKENS:
            return cut.of(token_ids)
        num_characters *= 4  # some tokens have many characters


def _encode(tokenizer: Tokenizer, text: str, adds_special_tokens: bool) -> TokenIds:
    return read_only(np.array(encode_text(tokenizer, text, adds_special_tokens).ids, np.int32))
