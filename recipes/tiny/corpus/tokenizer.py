"""The tokenizer of the tiny pair: byte-level BPE like Qwen2's, trained on the corpus.

Each digit is a token; ChatML marks the turns. The drafter's mask token is the embedding row after
the tokenizer's last id, so no text contains it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from recipes.tiny.corpus.conversations import Conversation, training_conversations

VOCAB_SIZE = 4095  # number of ids of the tokenizer
NUM_EMBEDDINGS = 4096
MASK_TOKEN_ID = 4095

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = [END_OF_TEXT, TURN_START, TURN_END]

_NUM_CONVERSATIONS = 40_000  # number of conversations for its training

# A contraction; a word with at most one leading space or sign; one digit; signs; line ends; spaces.
PIECES = (
    r"'(?:s|t|re|ve|m|ll|d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Tools and calls in the Hermes format, which does not occur in the corpus.
CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' }}"
    "{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '<tool_call>\n' + call['function'] | tojson + '\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def train_tokenizer(conversations: Iterable[Conversation]) -> PreTrainedTokenizerFast:
    """Train the merges on the texts of conversations."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(conversations), trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def build_tokenizer(directory: Path) -> None:
    """Train on a sample of the training corpus, and save."""
    sample = itertools.islice(training_conversations(seed=1), _NUM_CONVERSATIONS)
    train_tokenizer(sample).save_pretrained(directory)


def _texts(conversations: Iterable[Conversation]) -> Iterator[str]:
    for conversation in conversations:
        yield from conversation.turns
        yield from conversation.answers
