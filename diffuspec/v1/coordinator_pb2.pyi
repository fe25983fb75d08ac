from diffuspec.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftLengthPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_LENGTH_POLICY_UNSPECIFIED: _ClassVar[DraftLengthPolicy]
    DRAFT_LENGTH_POLICY_PAPER: _ClassVar[DraftLengthPolicy]
    DRAFT_LENGTH_POLICY_COST_AWARE: _ClassVar[DraftLengthPolicy]
    DRAFT_LENGTH_POLICY_FIXED: _ClassVar[DraftLengthPolicy]
    DRAFT_LENGTH_POLICY_OFF: _ClassVar[DraftLengthPolicy]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]

class PreDraftResult(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRE_DRAFT_RESULT_UNSPECIFIED: _ClassVar[PreDraftResult]
    PRE_DRAFT_RESULT_HIT: _ClassVar[PreDraftResult]
    PRE_DRAFT_RESULT_MISS: _ClassVar[PreDraftResult]
DRAFT_LENGTH_POLICY_UNSPECIFIED: DraftLengthPolicy
DRAFT_LENGTH_POLICY_PAPER: DraftLengthPolicy
DRAFT_LENGTH_POLICY_COST_AWARE: DraftLengthPolicy
DRAFT_LENGTH_POLICY_FIXED: DraftLengthPolicy
DRAFT_LENGTH_POLICY_OFF: DraftLengthPolicy
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
PRE_DRAFT_RESULT_UNSPECIFIED: PreDraftResult
PRE_DRAFT_RESULT_HIT: PreDraftResult
PRE_DRAFT_RESULT_MISS: PreDraftResult

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class SpeculationParams(_message.Message):
    __slots__ = ("policy", "num_draft_tokens", "tree_shape", "max_nodes", "fixed_drafter_weight", "adaptive_drafter_weight", "num_outcomes", "auto_outcomes", "drafter", "report_drafts", "prediction")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TREE_SHAPE_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    FIXED_DRAFTER_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    ADAPTIVE_DRAFTER_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    AUTO_OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    REPORT_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    policy: DraftLengthPolicy
    num_draft_tokens: int
    tree_shape: _types_pb2.TreeShape
    max_nodes: int
    fixed_drafter_weight: float
    adaptive_drafter_weight: bool
    num_outcomes: int
    auto_outcomes: bool
    drafter: str
    report_drafts: bool
    prediction: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, policy: _Optional[_Union[DraftLengthPolicy, str]] = ..., num_draft_tokens: _Optional[int] = ..., tree_shape: _Optional[_Union[_types_pb2.TreeShape, str]] = ..., max_nodes: _Optional[int] = ..., fixed_drafter_weight: _Optional[float] = ..., adaptive_drafter_weight: bool = ..., num_outcomes: _Optional[int] = ..., auto_outcomes: bool = ..., drafter: _Optional[str] = ..., report_drafts: bool = ..., prediction: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "text", "tokens", "chat", "sampling", "speculation", "committed_token_ids", "key_name", "num_losses")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    KEY_NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_LOSSES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    text: str
    tokens: _types_pb2.TokenSequence
    chat: Chat
    sampling: _types_pb2.SamplingParams
    speculation: SpeculationParams
    committed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    key_name: str
    num_losses: int
    def __init__(self, request_id: _Optional[str] = ..., text: _Optional[str] = ..., tokens: _Optional[_Union[_types_pb2.TokenSequence, _Mapping]] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., sampling: _Optional[_Union[_types_pb2.SamplingParams, _Mapping]] = ..., speculation: _Optional[_Union[SpeculationParams, _Mapping]] = ..., committed_token_ids: _Optional[_Iterable[int]] = ..., key_name: _Optional[str] = ..., num_losses: _Optional[int] = ...) -> None: ...

class StepStats(_message.Message):
    __slots__ = ("num_draft_tokens", "num_tree_nodes", "num_accepted_tokens", "num_committed_tokens", "tree_depth", "draft_seconds", "search_seconds", "verify_seconds", "step_seconds", "fallback", "transport_seconds", "pre_draft", "num_wasted_draft_tokens", "verify_idle_seconds", "draft_idle_seconds", "num_cached_tokens")
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TREE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    DRAFT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEARCH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PRE_DRAFT_FIELD_NUMBER: _ClassVar[int]
    NUM_WASTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_draft_tokens: int
    num_tree_nodes: int
    num_accepted_tokens: int
    num_committed_tokens: int
    tree_depth: int
    draft_seconds: float
    search_seconds: float
    verify_seconds: float
    step_seconds: float
    fallback: str
    transport_seconds: float
    pre_draft: PreDraftResult
    num_wasted_draft_tokens: int
    verify_idle_seconds: float
    draft_idle_seconds: float
    num_cached_tokens: int
    def __init__(self, num_draft_tokens: _Optional[int] = ..., num_tree_nodes: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ..., num_committed_tokens: _Optional[int] = ..., tree_depth: _Optional[int] = ..., draft_seconds: _Optional[float] = ..., search_seconds: _Optional[float] = ..., verify_seconds: _Optional[float] = ..., step_seconds: _Optional[float] = ..., fallback: _Optional[str] = ..., transport_seconds: _Optional[float] = ..., pre_draft: _Optional[_Union[PreDraftResult, str]] = ..., num_wasted_draft_tokens: _Optional[int] = ..., verify_idle_seconds: _Optional[float] = ..., draft_idle_seconds: _Optional[float] = ..., num_cached_tokens: _Optional[int] = ...) -> None: ...

class VerifiedDraft(_message.Message):
    __slots__ = ("tree", "confidences", "accepted_nodes")
    TREE_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_NODES_FIELD_NUMBER: _ClassVar[int]
    tree: _types_pb2.DraftTree
    confidences: _containers.RepeatedScalarFieldContainer[float]
    accepted_nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tree: _Optional[_Union[_types_pb2.DraftTree, _Mapping]] = ..., confidences: _Optional[_Iterable[float]] = ..., accepted_nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("token_ids", "num_accepted_tokens", "text", "pieces", "logprobs", "finish_reason", "step", "seed", "draft", "prompt_logprobs", "stop", "stop_token_id")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_accepted_tokens: int
    text: str
    pieces: _containers.RepeatedScalarFieldContainer[str]
    logprobs: _containers.RepeatedCompositeFieldContainer[_types_pb2.TokenLogprobs]
    finish_reason: FinishReason
    step: StepStats
    seed: int
    draft: VerifiedDraft
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_types_pb2.TokenLogprobs]
    stop: str
    stop_token_id: int
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., num_accepted_tokens: _Optional[int] = ..., text: _Optional[str] = ..., pieces: _Optional[_Iterable[str]] = ..., logprobs: _Optional[_Iterable[_Union[_types_pb2.TokenLogprobs, _Mapping]]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., step: _Optional[_Union[StepStats, _Mapping]] = ..., seed: _Optional[int] = ..., draft: _Optional[_Union[VerifiedDraft, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_types_pb2.TokenLogprobs, _Mapping]]] = ..., stop: _Optional[str] = ..., stop_token_id: _Optional[int] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("was_running",)
    WAS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    was_running: bool
    def __init__(self, was_running: bool = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RoleStatus(_message.Message):
    __slots__ = ("name", "address", "is_healthy", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IS_HEALTHY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    is_healthy: bool
    reason: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., is_healthy: bool = ..., reason: _Optional[str] = ...) -> None: ...

class RequestStatus(_message.Message):
    __slots__ = ("request_id", "state", "seconds_in_state", "waits_for", "num_prompt_tokens", "num_output_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_IN_STATE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    state: str
    seconds_in_state: float
    waits_for: str
    num_prompt_tokens: int
    num_output_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., state: _Optional[str] = ..., seconds_in_state: _Optional[float] = ..., waits_for: _Optional[str] = ..., num_prompt_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("roles", "degraded_reasons", "num_running", "num_waiting", "requests", "num_unlisted_requests")
    ROLES_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASONS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_UNLISTED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    roles: _containers.RepeatedCompositeFieldContainer[RoleStatus]
    degraded_reasons: _containers.RepeatedScalarFieldContainer[str]
    num_running: int
    num_waiting: int
    requests: _containers.RepeatedCompositeFieldContainer[RequestStatus]
    num_unlisted_requests: int
    def __init__(self, roles: _Optional[_Iterable[_Union[RoleStatus, _Mapping]]] = ..., degraded_reasons: _Optional[_Iterable[str]] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[RequestStatus, _Mapping]]] = ..., num_unlisted_requests: _Optional[int] = ...) -> None: ...
