"""Tiny random chat models whose tokenizers have the shape of those that people use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

QWEN_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nTools:\n{% for tool in tools %}{{ tool | tojson }}\n"
    "{% endfor %}Call them as <tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
    "{% endif -%}"
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% endif %}"
    "{% for call in message.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments if call.function.arguments is string "
    "else call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif -%}"
)


@dataclass(frozen=True)
class ChatModel:
    """What a tokenizer of a family has besides the 256 bytes."""

    special: tuple[str, ...]
    marks: tuple[str, ...]  # added tokens that are not special
    template: str
    eos: str


QWEN = ChatModel(
    special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    marks=("<tool_call>", "</tool_call>", "<|file_sep|>", "<think>", "</think>"),
    template=QWEN_TEMPLATE,
    eos="<|im_end|>",
)

_TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
_CALLS = (
    "{% for call in message.tool_calls or [] %}"
    "{{ call.id }} {{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}"
)


def _turns(begin: str, end: str, prompt: str, hint: str) -> str:
    """Return a template of turns, which asks for calls by a hint."""
    return (
        "{% if tools %}" + hint + "\n" + _TOOLS + "{% endif %}"
        "{% for message in messages %}"
        + begin
        + "{{ message.role }}\n{{ message.content }}"
        + _CALLS
        + end
        + "{% endfor %}{% if add_generation_prompt %}"
        + prompt
        + "{% endif %}"
    )


CODER = ChatModel(
    special=QWEN.special,
    marks=("<tool_call>", "</tool_call>"),
    template=_turns("<|im_start|>", "<|im_end|>", "<|im_start|>assistant\n", "<function=x>"),
    eos="<|im_end|>",
)
_LLAMA = ("<|start_header_id|>", "<|eot_id|>", "<|start_header_id|>assistant\n")
LLAMA3 = ChatModel(
    special=("<|begin_of_text|>", "<|python_tag|>", "<|start_header_id|>", "<|eot_id|>"),
    marks=(),
    template=_turns(*_LLAMA, '"parameters": dictionary'),
    eos="<|eot_id|>",
)
PYTHONIC = replace(LLAMA3, template=_turns(*_LLAMA, "[func_name1(params_name1=params_value1)]"))
MISTRAL = ChatModel(
    special=("<s>", "</s>", "[INST]", "[TOOL_CALLS]", "[ARGS]"),
    marks=(),
    template=_turns("[INST]", "</s>", "", "[TOOL_CALLS]"),
    eos="</s>",
)
MISTRAL_ARGS = replace(MISTRAL, template=_turns("[INST]", "</s>", "", "[TOOL_CALLS]name[ARGS]{}"))
_HARMONY = ("start", "end", "message", "channel", "constrain", "call", "return")
GPT_OSS = ChatModel(
    special=tuple(f"<|{name}|>" for name in _HARMONY),
    marks=(),
    template=_turns("<|start|>", "<|end|>", "<|start|>assistant", "<|channel|>commentary"),
    eos="<|return|>",
)
FAMILIES = {
    "hermes": QWEN,
    "qwen3_coder": CODER,
    "llama3_json": LLAMA3,
    "pythonic": PYTHONIC,
    "mistral": MISTRAL,
    "mistral with [ARGS]": MISTRAL_ARGS,
    "openai": GPT_OSS,
}


def chat_tokenizer(model: ChatModel) -> Any:
    """Return a byte-level tokenizer that normalises to NFC, as Qwen's does."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "o"), ("o", "l"), ("to", "ol"), ("h", "i")]
    words = [*letters, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(one, normalized=False) for one in model.special])
    tokenizer.add_tokens([AddedToken(one, normalized=False) for one in model.marks])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=model.eos, chat_template=model.template
    )


def save_chat_model(path: Path, tokenizer: Any, max_positions: int = 2048, **config: Any) -> Path:
    """Save a random model of two layers that knows a tokenizer's ids, and the tokenizer."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": max(tokenizer.get_vocab().values()) + 1,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": max_positions,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }
    Qwen3ForCausalLM(Qwen3Config(**(shape | config))).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
