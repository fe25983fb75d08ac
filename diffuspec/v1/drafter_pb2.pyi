from diffuspec.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftRequest(_message.Message):
    __slots__ = ("step_id", "prefixes", "rows", "released_request_ids")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    prefixes: _containers.RepeatedCompositeFieldContainer[_types_pb2.PrefixDelta]
    rows: _containers.RepeatedCompositeFieldContainer[_types_pb2.DraftRow]
    released_request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, step_id: _Optional[int] = ..., prefixes: _Optional[_Iterable[_Union[_types_pb2.PrefixDelta, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[_types_pb2.DraftRow, _Mapping]]] = ..., released_request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("step_id", "drafts", "error", "worker_seconds")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WORKER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    drafts: _types_pb2.Drafts
    error: _types_pb2.StepError
    worker_seconds: float
    def __init__(self, step_id: _Optional[int] = ..., drafts: _Optional[_Union[_types_pb2.Drafts, _Mapping]] = ..., error: _Optional[_Union[_types_pb2.StepError, _Mapping]] = ..., worker_seconds: _Optional[float] = ...) -> None: ...
