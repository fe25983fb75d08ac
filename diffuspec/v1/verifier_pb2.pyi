from diffuspec.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyRow(_message.Message):
    __slots__ = ("prefix", "num_prompt_tokens", "tree", "token_ids", "states_wanted", "max_read_tokens")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STATES_WANTED_FIELD_NUMBER: _ClassVar[int]
    MAX_READ_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prefix: int
    num_prompt_tokens: int
    tree: _types_pb2.DraftTree
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    states_wanted: _types_pb2.StatesWanted
    max_read_tokens: int
    def __init__(self, prefix: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., tree: _Optional[_Union[_types_pb2.DraftTree, _Mapping]] = ..., token_ids: _Optional[_Iterable[int]] = ..., states_wanted: _Optional[_Union[_types_pb2.StatesWanted, _Mapping]] = ..., max_read_tokens: _Optional[int] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("step_id", "prefixes", "rows", "released_request_ids")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    prefixes: _containers.RepeatedCompositeFieldContainer[_types_pb2.PrefixDelta]
    rows: _containers.RepeatedCompositeFieldContainer[VerifyRow]
    released_request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, step_id: _Optional[int] = ..., prefixes: _Optional[_Iterable[_Union[_types_pb2.PrefixDelta, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[VerifyRow, _Mapping]]] = ..., released_request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class PageUse(_message.Message):
    __slots__ = ("num_free", "num_shared")
    NUM_FREE_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARED_FIELD_NUMBER: _ClassVar[int]
    num_free: int
    num_shared: int
    def __init__(self, num_free: _Optional[int] = ..., num_shared: _Optional[int] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("token_ids", "accepted_nodes", "logprobs", "verify_seconds", "transport_seconds", "states", "num_cached_tokens", "num_unread_tokens", "is_held", "pages")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_NODES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_UNREAD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_HELD_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    accepted_nodes: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_types_pb2.TokenLogprobs]
    verify_seconds: float
    transport_seconds: float
    states: _types_pb2.StateRows
    num_cached_tokens: int
    num_unread_tokens: int
    is_held: bool
    pages: PageUse
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., accepted_nodes: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_types_pb2.TokenLogprobs, _Mapping]]] = ..., verify_seconds: _Optional[float] = ..., transport_seconds: _Optional[float] = ..., states: _Optional[_Union[_types_pb2.StateRows, _Mapping]] = ..., num_cached_tokens: _Optional[int] = ..., num_unread_tokens: _Optional[int] = ..., is_held: bool = ..., pages: _Optional[_Union[PageUse, _Mapping]] = ...) -> None: ...

class Verdicts(_message.Message):
    __slots__ = ("verdicts",)
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedCompositeFieldContainer[Verdict]
    def __init__(self, verdicts: _Optional[_Iterable[_Union[Verdict, _Mapping]]] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("step_id", "verdicts", "error", "worker_seconds")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WORKER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    verdicts: Verdicts
    error: _types_pb2.StepError
    worker_seconds: float
    def __init__(self, step_id: _Optional[int] = ..., verdicts: _Optional[_Union[Verdicts, _Mapping]] = ..., error: _Optional[_Union[_types_pb2.StepError, _Mapping]] = ..., worker_seconds: _Optional[float] = ...) -> None: ...

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("vocab_size", "max_model_len", "max_sequences", "eos_token_ids", "max_tree_nodes", "drafters", "num_pages", "row_multiple")
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    NUM_PAGES_FIELD_NUMBER: _ClassVar[int]
    ROW_MULTIPLE_FIELD_NUMBER: _ClassVar[int]
    vocab_size: int
    max_model_len: int
    max_sequences: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_tree_nodes: int
    drafters: _containers.RepeatedCompositeFieldContainer[HostedDrafter]
    num_pages: int
    row_multiple: int
    def __init__(self, vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_sequences: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., max_tree_nodes: _Optional[int] = ..., drafters: _Optional[_Iterable[_Union[HostedDrafter, _Mapping]]] = ..., num_pages: _Optional[int] = ..., row_multiple: _Optional[int] = ...) -> None: ...

class HostedDrafter(_message.Message):
    __slots__ = ("name", "address", "problem")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    problem: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...
