from diffuspec.v1 import coordinator_pb2 as _coordinator_pb2
from diffuspec.v1 import types_pb2 as _types_pb2
from diffuspec.v1 import verifier_pb2 as _verifier_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EngineCommand(_message.Message):
    __slots__ = ("load", "begin", "end", "allow", "get_status", "get_series", "reset_prefix_cache")
    LOAD_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    GET_STATUS_FIELD_NUMBER: _ClassVar[int]
    GET_SERIES_FIELD_NUMBER: _ClassVar[int]
    RESET_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    load: LoadEngine
    begin: BeginAnswer
    end: EndAnswer
    allow: AllowOutputs
    get_status: int
    get_series: int
    reset_prefix_cache: int
    def __init__(self, load: _Optional[_Union[LoadEngine, _Mapping]] = ..., begin: _Optional[_Union[BeginAnswer, _Mapping]] = ..., end: _Optional[_Union[EndAnswer, _Mapping]] = ..., allow: _Optional[_Union[AllowOutputs, _Mapping]] = ..., get_status: _Optional[int] = ..., get_series: _Optional[int] = ..., reset_prefix_cache: _Optional[int] = ...) -> None: ...

class LoadEngine(_message.Message):
    __slots__ = ("config", "num_threads", "num_processes", "log_format", "log_level", "index")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    NUM_THREADS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    LOG_FORMAT_FIELD_NUMBER: _ClassVar[int]
    LOG_LEVEL_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    config: str
    num_threads: int
    num_processes: int
    log_format: str
    log_level: str
    index: int
    def __init__(self, config: _Optional[str] = ..., num_threads: _Optional[int] = ..., num_processes: _Optional[int] = ..., log_format: _Optional[str] = ..., log_level: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class BeginAnswer(_message.Message):
    __slots__ = ("number", "request", "traceparent")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    number: int
    request: _coordinator_pb2.GenerateRequest
    traceparent: str
    def __init__(self, number: _Optional[int] = ..., request: _Optional[_Union[_coordinator_pb2.GenerateRequest, _Mapping]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class EndAnswer(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class AllowOutputs(_message.Message):
    __slots__ = ("number", "num_outputs")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    number: int
    num_outputs: int
    def __init__(self, number: _Optional[int] = ..., num_outputs: _Optional[int] = ...) -> None: ...

class EngineReport(_message.Message):
    __slots__ = ("updates", "replies")
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    updates: _containers.RepeatedCompositeFieldContainer[AnswerUpdate]
    replies: _containers.RepeatedCompositeFieldContainer[EngineReply]
    def __init__(self, updates: _Optional[_Iterable[_Union[AnswerUpdate, _Mapping]]] = ..., replies: _Optional[_Iterable[_Union[EngineReply, _Mapping]]] = ...) -> None: ...

class AnswerUpdate(_message.Message):
    __slots__ = ("number", "output", "error", "has_begun")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HAS_BEGUN_FIELD_NUMBER: _ClassVar[int]
    number: int
    output: _coordinator_pb2.GenerateResponse
    error: _types_pb2.StepError
    has_begun: bool
    def __init__(self, number: _Optional[int] = ..., output: _Optional[_Union[_coordinator_pb2.GenerateResponse, _Mapping]] = ..., error: _Optional[_Union[_types_pb2.StepError, _Mapping]] = ..., has_begun: bool = ...) -> None: ...

class EngineReply(_message.Message):
    __slots__ = ("number", "error", "info", "status", "series")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    number: int
    error: _types_pb2.StepError
    info: _verifier_pb2.GetInfoResponse
    status: _coordinator_pb2.GetStatusResponse
    series: str
    def __init__(self, number: _Optional[int] = ..., error: _Optional[_Union[_types_pb2.StepError, _Mapping]] = ..., info: _Optional[_Union[_verifier_pb2.GetInfoResponse, _Mapping]] = ..., status: _Optional[_Union[_coordinator_pb2.GetStatusResponse, _Mapping]] = ..., series: _Optional[str] = ...) -> None: ...
