"""The format of a model's chats, and the sampling that its makers recommend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from diffuspec.core.errors import ConfigError, InvalidRequestError, ModelLoadError
from diffuspec.core.params import SamplingParams
from diffuspec.serve.settings import ServeSettings
from diffuspec.text.chat_template import template_text
from diffuspec.text.directory import read_json
from diffuspec.text.gguf_directory import model_directory

ToolParser: TypeAlias = Literal[
    "hermes", "qwen3_coder", "llama3_json", "pythonic", "mistral", "openai", "none"
]
ReasoningParser: TypeAlias = Literal["qwen3", "deepseek_r1", "openai_gptoss", "none"]
OF_MODEL, OF_SERVER = "auto", "vllm"  # vLLM's words for the source of defaults

_OTHER_NAMES = {"gpt-oss": "openai", "gpt_oss": "openai", "qwen3_xml": "qwen3_coder"}
_OTHER_REASONING = {"gpt-oss": "openai_gptoss", "gpt_oss": "openai_gptoss"}
# The first of these whose mark is in a chat template determines the format of calls.
_CALL_MARKS: tuple[tuple[str, ToolParser], ...] = (
    ("<|channel|>", "openai"),
    ("<｜tool▁calls▁begin｜>", "none"),  # DeepSeek's own format
    ("[TOOL_CALLS]", "mistral"),
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
    ("[func_name", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary', "llama3_json"),
)
_DEFAULTS = "generation_config.json"
_SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Conventions:
    """How the served model's chats are written and parsed, and its sampling defaults."""

    tools: ToolParser = "hermes"
    reasoning: ReasoningParser = "none"
    sampling: Mapping[str, Any] = field(default_factory=dict)  # parameters that bodies may override
    max_tokens: int | None = None  # longest answer in tokens; None: to the end of the context
    template: str = ""  # source of the chat template
    special_ids: Mapping[str, int] = field(default_factory=dict)  # by text
    allows_markup: bool = False  # see ChatOptions
    is_strict: bool = False  # keys that would be ignored are refused

    @property
    def has_channels(self) -> bool:
        """Whether answers are gpt-oss's messages in channels."""
        return self.tools == "openai" or self.reasoning == "openai_gptoss"

    @property
    def has_short_ids(self) -> bool:
        """Whether call ids are nine letters and digits, as Mistral's templates require."""
        return self.tools == "mistral"

    def __str__(self) -> str:
        """Describe them for a log."""
        sampling = dict(self.sampling) or "the server's"
        return (
            f"tool calls are read as {self.tools}, reasoning as {self.reasoning}, "
            f"sampling defaults are {sampling}"
        )


def read_conventions(path: Path, tokenizer: Any, settings: ServeSettings) -> Conventions:
    """Return the conventions of a model directory, unless the settings override them.

    Raises ConfigError and ModelLoadError.
    """
    template = template_text(tokenizer)
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    tools, reasoning = chosen_parsers(settings)
    sampling, max_tokens = sampling_defaults(path, settings.generation_config)
    return Conventions(
        tools or tools_of(template),
        reasoning or reasoning_of(template),
        sampling,
        max_tokens,
        template,
        {token.content: token_id for token_id, token in added.items() if token.special},
        settings.allow_template_tokens,
        settings.strict,
    )


def chosen_parsers(settings: ServeSettings) -> tuple[ToolParser | None, ReasoningParser | None]:
    """Return the parsers named in the settings, if any. Raises ConfigError."""
    return (
        _chosen("tool_call_parser", settings.tool_call_parser, ToolParser, _OTHER_NAMES),
        _chosen("reasoning_parser", settings.reasoning_parser, ReasoningParser, _OTHER_REASONING),
    )


def tools_of(template: str) -> ToolParser:
    """Return the format of calls that a chat template asks its model for."""
    return next((name for mark, name in _CALL_MARKS if mark in template), "hermes")


def reasoning_of(template: str) -> ReasoningParser:
    """Return the format of reasoning that a chat template supports."""
    if "<|channel|>" in template:
        return "openai_gptoss"
    if "</think>" not in template:
        return "none"
    return "deepseek_r1" if "<｜Assistant｜>" in template else "qwen3"


def _chosen(name: str, given: str | None, names: Any, others: Mapping[str, str]) -> Any:
    known = get_args(names)
    found = others.get(given or "", given)
    if found is not None and found not in known:
        raise ConfigError(f"{name} must be {', '.join(known)}, got {given!r:.80}")
    return found


def sampling_defaults(path: Path, source: str) -> tuple[dict[str, Any], int | None]:
    """Return the sampling defaults of a generation_config.json, and its limit on answers.

    `source`: as ServeSettings.generation_config. Raises ConfigError and ModelLoadError.
    """
    if source == OF_SERVER:
        return {}, None
    folder = model_directory(path) if source == OF_MODEL else Path(source)
    if not (folder / _DEFAULTS).is_file():
        if source != OF_MODEL:
            raise ConfigError(
                f"generation_config must be {OF_MODEL}, {OF_SERVER} or a directory with a "
                f"{_DEFAULTS}, got {source!r:.200}"
            )
        return {}, None
    data = read_json(folder, _DEFAULTS)
    sampling = {name: data[name] for name in _SAMPLED if data.get(name) is not None}
    longest = data.get("max_new_tokens")
    try:
        SamplingParams(**sampling, **({} if longest is None else {"max_tokens": longest}))
    except (InvalidRequestError, TypeError) as error:
        raise ModelLoadError(f"{folder / _DEFAULTS}: {error}") from error
    return sampling, longest
