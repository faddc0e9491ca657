from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Severity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEALTHY: _ClassVar[Severity]
    DEGRADED: _ClassVar[Severity]
    WITHDRAWN: _ClassVar[Severity]
    EVICTED: _ClassVar[Severity]
HEALTHY: Severity
DEGRADED: Severity
WITHDRAWN: Severity
EVICTED: Severity

class GetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthReport(_message.Message):
    __slots__ = ("node", "gpus", "missing", "trouble")
    NODE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    node: str
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    missing: _containers.RepeatedCompositeFieldContainer[MissingGpu]
    trouble: str
    def __init__(self, node: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., missing: _Optional[_Iterable[_Union[MissingGpu, _Mapping]]] = ..., trouble: _Optional[str] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("name", "uuid", "severity", "gone", "causes", "xids")
    class XidsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    CAUSES_FIELD_NUMBER: _ClassVar[int]
    XIDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: str
    severity: Severity
    gone: bool
    causes: _containers.RepeatedCompositeFieldContainer[Cause]
    xids: _containers.ScalarMap[int, int]
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[str] = ..., severity: _Optional[_Union[Severity, str]] = ..., gone: _Optional[bool] = ..., causes: _Optional[_Iterable[_Union[Cause, _Mapping]]] = ..., xids: _Optional[_Mapping[int, int]] = ...) -> None: ...

class Cause(_message.Message):
    __slots__ = ("reason", "severity", "message", "clears", "since", "code", "instance", "peers")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CLEARS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    severity: Severity
    message: str
    clears: str
    since: float
    code: int
    instance: str
    peers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, reason: _Optional[str] = ..., severity: _Optional[_Union[Severity, str]] = ..., message: _Optional[str] = ..., clears: _Optional[str] = ..., since: _Optional[float] = ..., code: _Optional[int] = ..., instance: _Optional[str] = ..., peers: _Optional[_Iterable[str]] = ...) -> None: ...

class MissingGpu(_message.Message):
    __slots__ = ("index", "reason", "uuid")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    index: int
    reason: str
    uuid: str
    def __init__(self, index: _Optional[int] = ..., reason: _Optional[str] = ..., uuid: _Optional[str] = ...) -> None: ...
