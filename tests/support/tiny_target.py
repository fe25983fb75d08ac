"""The tokenizer and the grammars of the embedded target."""

from __future__ import annotations

from typing import Any

from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import StructuredOutput
from diffuspec.pairs.tiny import TARGET
from diffuspec.text.grammars import grammars_of
from diffuspec.text.tokenizer import load_tokenizer

EOS = 2
INFO = TargetInfo(vocab_size=4095, max_model_len=512, max_sequences=2, eos_token_ids=(EOS,))
GRAMMARS = grammars_of(TARGET, INFO)
_TOKENIZER: Any = load_tokenizer(TARGET).backend_tokenizer


def encode(text: str) -> list[int]:
    return list(_TOKENIZER.encode(text, add_special_tokens=False).ids)


def decode(ids: list[int]) -> str:
    return str(_TOKENIZER.decode(ids, skip_special_tokens=False))


def takes(form: StructuredOutput, text: str) -> bool:
    """Whether an answer of this form may be this text."""
    matcher, ids = GRAMMARS.compile(form), encode(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
