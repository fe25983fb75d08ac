"""The parameters of a request.

Each parameter is declared here once: its type, range, default and help. Its check, command-line
option, configuration key and message field are derived from that (see `parameter`). A new parameter
also needs a line in protos/ and code that uses it.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Interval, Len

from diffuspec.core.checks import check_fields
from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.parameter import declare

TreeShape: TypeAlias = Literal["path", "beams", "best_first"]
DraftLengthPolicy: TypeAlias = Literal["paper", "cost_aware", "fixed", "off"]

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_CHOICES = 8  # answers to one prompt
MAX_BAD_WORDS = 64
MAX_BAD_WORD_CHARACTERS = 128
MAX_LOGIT_BIASES = 300
MAX_ALLOWED_TOKEN_IDS = 1024
MAX_FORM_CHARACTERS = 32_768
MAX_GRAMMAR_CHARACTERS = 131_072  # also of a request's tools; their trial bounds the time
MAX_FORM_CHOICES = 256
MAX_LOGPROBS = 20
MAX_DRAFT_TOKENS = 128
MAX_TREE_NODES = 256
MAX_OUTCOMES = 16
MAX_DRAFTER_NAME_CHARACTERS = 64
MAX_SALT_CHARACTERS = 256
MAX_PREDICTED_TOKENS = 16_384
_MAX_BAD_TOKENS = 4 * MAX_BAD_WORD_CHARACTERS + 1  # bytes of a bad word's text and a space
_NUM_SEEDS = 2**64
_NUM_SEED_BITS = 53  # JavaScript cannot read larger JSON integers exactly

Form: TypeAlias = Annotated[str, Len(1, MAX_FORM_CHARACTERS)]
Grammar: TypeAlias = Annotated[str, Len(1, MAX_GRAMMAR_CHARACTERS)]
FormChoice: TypeAlias = Annotated[str, Len(1, 256)]
# the range of a number in a message
TokenId: TypeAlias = Annotated[int, Interval(ge=0, le=2**32 - 1)]
StopString: TypeAlias = Annotated[str, Len(1, MAX_STOP_STRING_CHARACTERS)]
BadWord: TypeAlias = Annotated[str, Len(1, MAX_BAD_WORD_CHARACTERS)]
BadTokens: TypeAlias = Annotated[tuple[TokenId, ...], Len(1, _MAX_BAD_TOKENS)]
Bias: TypeAlias = Annotated[float, Interval(ge=-100, le=100)]
Penalty: TypeAlias = Annotated[float, Interval(ge=-10, le=10)]


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """The format of an answer: exactly one field is set. Raises InvalidRequestError.

    Only tokens that can still lead to a valid answer are drawn, and EOS only after a complete one.
    An answer cut by max_tokens is the beginning of a valid answer.
    """

    json_object: bool = declare(False, "The answer is a JSON object.")
    json_schema: Form | None = declare(
        None, "The answer is JSON that conforms to this JSON Schema."
    )
    regex: Form | None = declare(
        None, "The whole answer matches this regular expression, in Rust's syntax."
    )
    choice: Annotated[tuple[FormChoice, ...], Len(0, MAX_FORM_CHOICES)] = declare(
        (), "The answer is one of these texts."
    )
    grammar: Grammar | None = declare(
        None,
        "The answer is a text of this grammar: Lark in llguidance's dialect, or GBNF as "
        "in xgrammar and llama.cpp (`root ::= ...`).",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        given = [one.name for one in fields(self) if getattr(self, one.name)]
        if len(given) != 1:
            names = ", ".join(one.name for one in fields(self))
            raise InvalidRequestError(
                f"structured_output must have exactly one of {names}, "
                f"got {' and '.join(given) or 'none'}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the target's distribution is shaped, when a request ends, and with whom it shares caches.

    With a seed, the output depends only on the prompt and these parameters. Lists become tuples, a
    single `stop` string or bad word becomes a tuple of one, and numpy numbers become Python's,
    because they are passed to JSON and messages. Raises InvalidRequestError.
    """

    temperature: Annotated[float, Interval(ge=0, le=10)] = declare(
        0.0, "Divides the logits before a token is sampled; 0: the most likely token is taken."
    )
    top_p: Annotated[float, Interval(gt=0, le=1)] = declare(
        1.0,
        "Sample from the most likely tokens whose total probability reaches this value; "
        "1: all tokens.",
    )
    top_k: Annotated[int, Interval(ge=0, le=2**31 - 1)] = declare(
        0, "Sample from this many of the most likely tokens; 0: all tokens."
    )
    min_p: Annotated[float, Interval(ge=0, le=1)] = declare(
        0.0,
        "Sample from tokens with at least this fraction of the highest probability; 0: all tokens.",
    )
    seed: Annotated[int, Interval(ge=-(2**63), le=2**63 - 1)] | None = declare(
        None, "The same seed gives the same answer; null: each request gets a random seed."
    )
    repetition_penalty: Annotated[float, Interval(gt=0, le=10)] = declare(
        1.0,
        "For tokens in the prompt or the answer, divides positive logits and multiplies "
        "negative logits; 1: off.",
    )
    presence_penalty: Penalty = declare(
        0.0, "Subtracted from the logits of tokens that occur in the answer."
    )
    frequency_penalty: Penalty = declare(
        0.0, "Subtracted from a token's logit once for each occurrence in the answer."
    )
    logit_bias: Annotated[Mapping[int, Bias], Len(0, MAX_LOGIT_BIASES)] = declare(
        {},
        "Added to the logit of a token, by token id; -100 practically bans the token, "
        "100 practically forces it.",
    )
    allowed_token_ids: Annotated[tuple[TokenId, ...], Len(1, MAX_ALLOWED_TOKEN_IDS)] | None = (
        declare(
            None,
            "Sample only from these tokens. Without EOS among them, an answer continues to "
            "max_tokens or a stop string. Ignored where structured_output allows none of "
            "them.",
            option="allowed-token-id",
        )
    )
    bad_words: Annotated[tuple[BadWord, ...], Len(0, MAX_BAD_WORDS)] = declare(
        (),
        "Text that must not occur: its last token is masked wherever its other tokens "
        "directly precede it. The text is encoded both with and without a space before "
        "it.",
        option="bad-word",
    )
    bad_words_token_ids: Annotated[tuple[BadTokens, ...], Len(0, 2 * MAX_BAD_WORDS)] = declare(
        (),
        "The same as token sequences, to which the process with the tokenizer adds bad_words.",
        option=None,
    )
    max_tokens: Annotated[int, Interval(ge=1)] = declare(
        256, "Maximum length of an answer, in tokens."
    )
    min_tokens: Annotated[int, Interval(ge=0)] = declare(
        0,
        "Mask EOS and stop tokens, and ignore stop strings, until the answer has this many tokens.",
    )
    stop: Annotated[tuple[StopString, ...], Len(0, MAX_STOP_STRINGS)] = declare(
        (), "End before this text."
    )
    stop_token_ids: Annotated[tuple[TokenId, ...], Len(0, MAX_STOP_TOKEN_IDS)] = declare(
        (), "End after this token.", option="stop-token-id"
    )
    include_stop_str_in_output: bool = declare(
        False, "Include the stop string or stop token that ends the answer in the text."
    )
    skip_special_tokens: bool = declare(True, "Omit special tokens from the text.")
    ignore_eos: bool = declare(False, "Continue after the end-of-sequence token, up to max_tokens.")
    structured_output: StructuredOutput | None = declare(
        None, "The form that the answer must have.", option=None
    )
    logprobs: Annotated[int, Interval(ge=0, le=MAX_LOGPROBS)] | None = declare(
        None,
        "Report the log-probability of each token of the answer, and of this many of "
        "the most likely tokens at its position.",
    )
    prompt_logprobs: Annotated[int, Interval(ge=0, le=MAX_LOGPROBS)] | None = declare(
        None,
        "Report the log-probability of each token of the prompt after the first, and of "
        "this many of the most likely tokens at its position.",
        option=None,
    )
    cache_salt: Annotated[str, Len(1, MAX_SALT_CHARACTERS)] | None = declare(
        None,
        "Only requests with the same salt share cached beginnings of prompts; null: all without "
        "a salt. Changes the speed and the reported number of cached tokens, never the text.",
        option=None,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_together()

    def _check_together(self) -> None:
        if self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens must be at most max_tokens, {self.max_tokens}, got {self.min_tokens}"
            )
        if self.structured_output is not None and self.ignore_eos:
            raise InvalidRequestError(
                "ignore_eos must be false where the answer has a form (structured_output, "
                "response_format), which says where it ends"
            )

    def derive(self, **changes: Any) -> SamplingParams:
        """Return these parameters with changes of our own, whose values are in range already.

        Unlike `replace` it checks no single field again. Raises InvalidRequestError if the
        parameters do not fit each other.
        """
        derived = object.__new__(type(self))
        for name in self.__slots__:  # `copy` takes ten times as long
            object.__setattr__(derived, name, getattr(self, name))
        for name, value in changes.items():
            object.__setattr__(derived, name, value)
        derived._check_together()
        return derived

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def lacks_seed(self) -> bool:
        """Whether tokens are sampled without a given seed."""
        return self.seed is None and not self.is_greedy

    def with_seed(self) -> SamplingParams:
        """Return these parameters, with a fresh seed if they lack one. Called once per prompt."""
        return self.derive(seed=secrets.randbits(_NUM_SEED_BITS)) if self.lacks_seed else self

    def choice(self, index: int) -> SamplingParams:
        """Return the parameters of one of several answers, whose seed is larger by `index`.

        The answers of a greedy request are all equal.
        """
        if self.seed is None or not index:
            return self
        seed = (self.seed + index + _NUM_SEEDS // 2) % _NUM_SEEDS - _NUM_SEEDS // 2
        return self.derive(seed=seed)

    @property
    def has_penalties(self) -> bool:
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    @property
    def shapes_logits(self) -> bool:
        """Whether anything but the temperature affects which token is the likeliest."""
        return bool(
            self.has_penalties
            or self.logit_bias
            or self.allowed_token_ids
            or self.bad_words_token_ids
            or self.min_tokens
            or self.structured_output
        )

    def check_token_ids(self, vocab_size: int) -> None:
        """Raise InvalidRequestError for a token id outside a vocabulary of this size."""
        named: dict[str, Collection[int]] = {
            "stop_token_ids": self.stop_token_ids,
            "logit_bias": self.logit_bias,
            "allowed_token_ids": self.allowed_token_ids or (),
            "bad_words_token_ids": [i for ids in self.bad_words_token_ids for i in ids],
        }
        for name, token_ids in named.items():
            wrong = [i for i in token_ids if not 0 <= i < vocab_size]
            if wrong:
                raise InvalidRequestError(
                    f"{name} must have token ids from 0 to {vocab_size - 1}, got {wrong[0]}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationParams:
    """How a request is drafted. This affects its speed, never its output.

    Raises InvalidRequestError.
    """

    policy: DraftLengthPolicy = declare(
        "cost_aware",
        "How the draft length is chosen: cost_aware (by expected tokens per second), "
        "paper (by the paper's controller, section draft_length), fixed (always "
        "num_draft_tokens), or off (no drafts).",
        option=None,  # set together with num_draft_tokens by --draft-length
    )
    num_draft_tokens: Annotated[int, Interval(ge=1, le=MAX_DRAFT_TOKENS)] = declare(
        20, "Number of tokens to draft in each step with the fixed policy.", option=None
    )
    tree_shape: TreeShape = declare(
        "best_first",
        "Shape of the draft: path (the best path of the beam search), beams (all its "
        "final paths), or best_first (the nodes that are most likely to be reached).",
        option="tree",
    )
    max_nodes: Annotated[int, Interval(ge=1, le=MAX_TREE_NODES)] = declare(
        32, "Maximum number of tokens to verify in a step, per request."
    )
    drafter_weight: Annotated[float, Interval(ge=0, le=1)] | Literal["adaptive"] = declare(
        0.5,
        "Weight of the drafter (1) against the causal proxy (0) in the path search, "
        "lambda of Eq. 8; adaptive favours whichever was right recently.",
    )
    num_outcomes: Annotated[int, Interval(ge=0, le=MAX_OUTCOMES)] | Literal["auto"] = declare(
        "auto",
        "Maximum number of outcomes of a verification to draft for while it runs; 0: "
        "none; auto: as many as their cost allows.",
        option=None,  # only useful if the roles have their own hardware
    )
    drafter: Annotated[str, Len(1, MAX_DRAFTER_NAME_CHARACTERS)] | None = declare(
        None,
        "Name of a drafter of the deployment (sections drafter and drafters); null: the "
        "drafter of the section drafter.",
        option=None,  # a single prompt has a single drafter: --drafter-kind
    )
    report_drafts: bool = declare(
        False, "Send the verified draft tree with the tokens of each step.", option=None
    )
    prediction: Annotated[tuple[TokenId, ...], Len(0, MAX_PREDICTED_TOKENS)] = declare(
        (),
        "Token ids much of which the answer is expected to repeat, such as a text to be "
        "edited. Drafters with a path search, samd and samd_recycling draft from them.",
        option=None,
    )

    def __post_init__(self) -> None:
        check_fields(self)


GREEDY = SamplingParams()
PLAIN = SpeculationParams(policy="off")  # without drafts
