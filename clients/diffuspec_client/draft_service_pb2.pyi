from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_FORM_UNSPECIFIED: _ClassVar[DraftForm]
    DRAFT_FORM_CHAIN: _ClassVar[DraftForm]
    DRAFT_FORM_TREE: _ClassVar[DraftForm]

class DraftSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_SOURCE_UNSPECIFIED: _ClassVar[DraftSource]
    DRAFT_SOURCE_AHEAD: _ClassVar[DraftSource]
    DRAFT_SOURCE_REST: _ClassVar[DraftSource]
    DRAFT_SOURCE_FRESH: _ClassVar[DraftSource]
    DRAFT_SOURCE_NOT_WORTH_IT: _ClassVar[DraftSource]
    DRAFT_SOURCE_LATE: _ClassVar[DraftSource]
    DRAFT_SOURCE_FAILED: _ClassVar[DraftSource]
    DRAFT_SOURCE_UNKNOWN_BASE: _ClassVar[DraftSource]
DRAFT_FORM_UNSPECIFIED: DraftForm
DRAFT_FORM_CHAIN: DraftForm
DRAFT_FORM_TREE: DraftForm
DRAFT_SOURCE_UNSPECIFIED: DraftSource
DRAFT_SOURCE_AHEAD: DraftSource
DRAFT_SOURCE_REST: DraftSource
DRAFT_SOURCE_FRESH: DraftSource
DRAFT_SOURCE_NOT_WORTH_IT: DraftSource
DRAFT_SOURCE_LATE: DraftSource
DRAFT_SOURCE_FAILED: DraftSource
DRAFT_SOURCE_UNKNOWN_BASE: DraftSource

class ConnectRequest(_message.Message):
    __slots__ = ("hello", "step")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    step: EngineStep
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., step: _Optional[_Union[EngineStep, _Mapping]] = ...) -> None: ...

class ConnectResponse(_message.Message):
    __slots__ = ("welcome", "drafts", "outcomes")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    drafts: StepDrafts
    outcomes: OutcomeTable
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., drafts: _Optional[_Union[StepDrafts, _Mapping]] = ..., outcomes: _Optional[_Union[OutcomeTable, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "engine", "tenant", "vocab_size", "vocabulary_digest", "vocabulary", "max_model_len", "max_requests", "max_draft_tokens", "form", "wants_outcomes", "max_silent_steps")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    WANTS_OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    MAX_SILENT_STEPS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    engine: str
    tenant: str
    vocab_size: int
    vocabulary_digest: bytes
    vocabulary: _containers.RepeatedScalarFieldContainer[bytes]
    max_model_len: int
    max_requests: int
    max_draft_tokens: int
    form: DraftForm
    wants_outcomes: bool
    max_silent_steps: int
    def __init__(self, protocol_version: _Optional[int] = ..., engine: _Optional[str] = ..., tenant: _Optional[str] = ..., vocab_size: _Optional[int] = ..., vocabulary_digest: _Optional[bytes] = ..., vocabulary: _Optional[_Iterable[bytes]] = ..., max_model_len: _Optional[int] = ..., max_requests: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., form: _Optional[_Union[DraftForm, str]] = ..., wants_outcomes: bool = ..., max_silent_steps: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_version", "server", "drafter", "max_requests", "max_model_len", "max_draft_tokens")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    server: str
    drafter: str
    max_requests: int
    max_model_len: int
    max_draft_tokens: int
    def __init__(self, protocol_version: _Optional[int] = ..., server: _Optional[str] = ..., drafter: _Optional[str] = ..., max_requests: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ...) -> None: ...

class EngineStep(_message.Message):
    __slots__ = ("step_id", "rows", "ended_request_ids", "deadline_seconds", "verify_seconds", "wait_seconds", "num_silent_steps")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ENDED_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_SILENT_STEPS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    rows: _containers.RepeatedCompositeFieldContainer[RequestRow]
    ended_request_ids: _containers.RepeatedScalarFieldContainer[str]
    deadline_seconds: float
    verify_seconds: float
    wait_seconds: float
    num_silent_steps: int
    def __init__(self, step_id: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[RequestRow, _Mapping]]] = ..., ended_request_ids: _Optional[_Iterable[str]] = ..., deadline_seconds: _Optional[float] = ..., verify_seconds: _Optional[float] = ..., wait_seconds: _Optional[float] = ..., num_silent_steps: _Optional[int] = ...) -> None: ...

class RequestRow(_message.Message):
    __slots__ = ("request_id", "base_length", "token_ids", "num_prompt_tokens", "max_tokens_left", "max_draft_tokens", "priority")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_LEFT_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    base_length: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: int
    max_tokens_left: int
    max_draft_tokens: int
    priority: int
    def __init__(self, request_id: _Optional[str] = ..., base_length: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[int] = ..., max_tokens_left: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class StepDrafts(_message.Message):
    __slots__ = ("step_id", "rows", "num_silent_steps")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_SILENT_STEPS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    rows: _containers.RepeatedCompositeFieldContainer[RowDraft]
    num_silent_steps: int
    def __init__(self, step_id: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[RowDraft, _Mapping]]] = ..., num_silent_steps: _Optional[int] = ...) -> None: ...

class RowDraft(_message.Message):
    __slots__ = ("token_ids", "parents", "confidences", "source")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    confidences: _containers.RepeatedScalarFieldContainer[float]
    source: DraftSource
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., confidences: _Optional[_Iterable[float]] = ..., source: _Optional[_Union[DraftSource, str]] = ...) -> None: ...

class OutcomeTable(_message.Message):
    __slots__ = ("step_id", "outcomes")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    outcomes: _containers.RepeatedCompositeFieldContainer[DraftedOutcome]
    def __init__(self, step_id: _Optional[int] = ..., outcomes: _Optional[_Iterable[_Union[DraftedOutcome, _Mapping]]] = ...) -> None: ...

class DraftedOutcome(_message.Message):
    __slots__ = ("request_id", "num_accepted", "token_id", "token_ids", "node")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    num_accepted: int
    token_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    node: int
    def __init__(self, request_id: _Optional[str] = ..., num_accepted: _Optional[int] = ..., token_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., node: _Optional[int] = ...) -> None: ...
