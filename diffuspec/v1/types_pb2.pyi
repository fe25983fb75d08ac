from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TreeShape(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TREE_SHAPE_UNSPECIFIED: _ClassVar[TreeShape]
    TREE_SHAPE_PATH: _ClassVar[TreeShape]
    TREE_SHAPE_BEAMS: _ClassVar[TreeShape]
    TREE_SHAPE_BEST_FIRST: _ClassVar[TreeShape]
TREE_SHAPE_UNSPECIFIED: TreeShape
TREE_SHAPE_PATH: TreeShape
TREE_SHAPE_BEAMS: TreeShape
TREE_SHAPE_BEST_FIRST: TreeShape

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty", "max_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs", "min_p", "min_tokens", "logit_bias", "bad_words", "bad_words_token_ids", "structured_output", "prompt_logprobs", "allowed_token_ids", "include_stop_str_in_output", "skip_special_tokens", "cache_salt")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_STR_IN_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    seed: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    max_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    logprobs: int
    min_p: float
    min_tokens: int
    logit_bias: _containers.ScalarMap[int, float]
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    bad_words_token_ids: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    structured_output: StructuredOutput
    prompt_logprobs: int
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    cache_salt: str
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., seed: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., max_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., logprobs: _Optional[int] = ..., min_p: _Optional[float] = ..., min_tokens: _Optional[int] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., bad_words: _Optional[_Iterable[str]] = ..., bad_words_token_ids: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ..., structured_output: _Optional[_Union[StructuredOutput, _Mapping]] = ..., prompt_logprobs: _Optional[int] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., include_stop_str_in_output: bool = ..., skip_special_tokens: bool = ..., cache_salt: _Optional[str] = ...) -> None: ...

class StructuredOutput(_message.Message):
    __slots__ = ("json_object", "json_schema", "regex", "choice", "grammar")
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    json_object: bool
    json_schema: str
    regex: str
    choice: _containers.RepeatedScalarFieldContainer[str]
    grammar: str
    def __init__(self, json_object: bool = ..., json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., choice: _Optional[_Iterable[str]] = ..., grammar: _Optional[str] = ...) -> None: ...

class TokenSequence(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class PrefixDelta(_message.Message):
    __slots__ = ("request_id", "base_length", "base_hash", "token_ids", "sampling", "prediction")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BASE_HASH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    base_length: int
    base_hash: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: SamplingParams
    prediction: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[str] = ..., base_length: _Optional[int] = ..., base_hash: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., prediction: _Optional[_Iterable[int]] = ...) -> None: ...

class StatesWanted(_message.Message):
    __slots__ = ("layers", "first")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedScalarFieldContainer[int]
    first: int
    def __init__(self, layers: _Optional[_Iterable[int]] = ..., first: _Optional[int] = ...) -> None: ...

class StateRows(_message.Message):
    __slots__ = ("first", "num_rows", "num_columns", "data")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    first: int
    num_rows: int
    num_columns: int
    data: bytes
    def __init__(self, first: _Optional[int] = ..., num_rows: _Optional[int] = ..., num_columns: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class DraftRow(_message.Message):
    __slots__ = ("prefix", "token_ids", "num_draft_tokens", "tree_shape", "max_nodes", "drafter_weight", "num_alternatives", "num_prompt_tokens", "states")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TREE_SHAPE_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    NUM_ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    prefix: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_draft_tokens: int
    tree_shape: TreeShape
    max_nodes: int
    drafter_weight: float
    num_alternatives: int
    num_prompt_tokens: int
    states: StateRows
    def __init__(self, prefix: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_draft_tokens: _Optional[int] = ..., tree_shape: _Optional[_Union[TreeShape, str]] = ..., max_nodes: _Optional[int] = ..., drafter_weight: _Optional[float] = ..., num_alternatives: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., states: _Optional[_Union[StateRows, _Mapping]] = ...) -> None: ...

class DraftTree(_message.Message):
    __slots__ = ("token_ids", "parents")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ...) -> None: ...

class Alternatives(_message.Message):
    __slots__ = ("row_lengths", "token_ids", "logprobs", "rows")
    ROW_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    row_lengths: _containers.RepeatedScalarFieldContainer[int]
    token_ids: bytes
    logprobs: bytes
    rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, row_lengths: _Optional[_Iterable[int]] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., rows: _Optional[_Iterable[int]] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("tree", "confidences", "num_tokens_before_eos", "drafter_choices", "proxy_choices", "draft_seconds", "search_seconds", "alternatives", "transport_seconds", "states_wanted", "num_refreshed")
    TREE_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_BEFORE_EOS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_CHOICES_FIELD_NUMBER: _ClassVar[int]
    PROXY_CHOICES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEARCH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STATES_WANTED_FIELD_NUMBER: _ClassVar[int]
    NUM_REFRESHED_FIELD_NUMBER: _ClassVar[int]
    tree: DraftTree
    confidences: _containers.RepeatedScalarFieldContainer[float]
    num_tokens_before_eos: int
    drafter_choices: _containers.RepeatedScalarFieldContainer[int]
    proxy_choices: _containers.RepeatedScalarFieldContainer[int]
    draft_seconds: float
    search_seconds: float
    alternatives: Alternatives
    transport_seconds: float
    states_wanted: StatesWanted
    num_refreshed: int
    def __init__(self, tree: _Optional[_Union[DraftTree, _Mapping]] = ..., confidences: _Optional[_Iterable[float]] = ..., num_tokens_before_eos: _Optional[int] = ..., drafter_choices: _Optional[_Iterable[int]] = ..., proxy_choices: _Optional[_Iterable[int]] = ..., draft_seconds: _Optional[float] = ..., search_seconds: _Optional[float] = ..., alternatives: _Optional[_Union[Alternatives, _Mapping]] = ..., transport_seconds: _Optional[float] = ..., states_wanted: _Optional[_Union[StatesWanted, _Mapping]] = ..., num_refreshed: _Optional[int] = ...) -> None: ...

class Drafts(_message.Message):
    __slots__ = ("drafts",)
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    drafts: _containers.RepeatedCompositeFieldContainer[Draft]
    def __init__(self, drafts: _Optional[_Iterable[_Union[Draft, _Mapping]]] = ...) -> None: ...

class Lattice(_message.Message):
    __slots__ = ("num_positions", "max_candidates", "token_ids", "logprobs", "num_candidates", "num_tokens_before_eos", "num_refreshed")
    NUM_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_BEFORE_EOS_FIELD_NUMBER: _ClassVar[int]
    NUM_REFRESHED_FIELD_NUMBER: _ClassVar[int]
    num_positions: int
    max_candidates: int
    token_ids: bytes
    logprobs: bytes
    num_candidates: bytes
    num_tokens_before_eos: int
    num_refreshed: int
    def __init__(self, num_positions: _Optional[int] = ..., max_candidates: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., num_candidates: _Optional[bytes] = ..., num_tokens_before_eos: _Optional[int] = ..., num_refreshed: _Optional[int] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top_token_ids", "top_logprobs", "rank")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    rank: int
    def __init__(self, logprob: _Optional[float] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., rank: _Optional[int] = ...) -> None: ...

class StepError(_message.Message):
    __slots__ = ("code", "message", "reason")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    reason: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
