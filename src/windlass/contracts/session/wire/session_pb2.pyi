from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromWorker(_message.Message):
    __slots__ = ("hello", "credit", "reports", "heartbeat", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    credit: Credit
    reports: Reports
    heartbeat: Heartbeat
    goodbye: Goodbye
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., reports: _Optional[_Union[Reports, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class ToWorker(_message.Message):
    __slots__ = ("welcome", "tasks", "answers", "extended", "cancels")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    EXTENDED_FIELD_NUMBER: _ClassVar[int]
    CANCELS_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    tasks: Tasks
    answers: Answers
    extended: Extended
    cancels: Cancels
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., tasks: _Optional[_Union[Tasks, _Mapping]] = ..., answers: _Optional[_Union[Answers, _Mapping]] = ..., extended: _Optional[_Union[Extended, _Mapping]] = ..., cancels: _Optional[_Union[Cancels, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("worker", "namespace", "queues", "kinds", "every_kind", "labels", "lease_ttl_s", "host", "pid", "version", "lease_id", "active", "concurrency")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    EVERY_KIND_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_S_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    worker: str
    namespace: str
    queues: _containers.RepeatedScalarFieldContainer[str]
    kinds: _containers.RepeatedScalarFieldContainer[str]
    every_kind: bool
    labels: _containers.RepeatedScalarFieldContainer[str]
    lease_ttl_s: float
    host: str
    pid: int
    version: str
    lease_id: bytes
    active: _containers.RepeatedScalarFieldContainer[bytes]
    concurrency: int
    def __init__(self, worker: _Optional[str] = ..., namespace: _Optional[str] = ..., queues: _Optional[_Iterable[str]] = ..., kinds: _Optional[_Iterable[str]] = ..., every_kind: _Optional[bool] = ..., labels: _Optional[_Iterable[str]] = ..., lease_ttl_s: _Optional[float] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., version: _Optional[str] = ..., lease_id: _Optional[bytes] = ..., active: _Optional[_Iterable[bytes]] = ..., concurrency: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("lease_id", "expires_at_us", "lease_ttl_s", "result_max_bytes")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_US_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_S_FIELD_NUMBER: _ClassVar[int]
    RESULT_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    expires_at_us: int
    lease_ttl_s: float
    result_max_bytes: int
    def __init__(self, lease_id: _Optional[bytes] = ..., expires_at_us: _Optional[int] = ..., lease_ttl_s: _Optional[float] = ..., result_max_bytes: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("tasks", "revoke")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    tasks: int
    revoke: bool
    def __init__(self, tasks: _Optional[int] = ..., revoke: _Optional[bool] = ...) -> None: ...

class Tasks(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("id", "attempt", "kind", "queue", "payload", "available_at_us", "started_at_us", "ends_at_us", "failures", "losses", "more")
    ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_AT_US_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_US_FIELD_NUMBER: _ClassVar[int]
    ENDS_AT_US_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    attempt: int
    kind: str
    queue: str
    payload: bytes
    available_at_us: int
    started_at_us: int
    ends_at_us: int
    failures: int
    losses: int
    more: bytes
    def __init__(self, id: _Optional[bytes] = ..., attempt: _Optional[int] = ..., kind: _Optional[str] = ..., queue: _Optional[str] = ..., payload: _Optional[bytes] = ..., available_at_us: _Optional[int] = ..., started_at_us: _Optional[int] = ..., ends_at_us: _Optional[int] = ..., failures: _Optional[int] = ..., losses: _Optional[int] = ..., more: _Optional[bytes] = ...) -> None: ...

class Reports(_message.Message):
    __slots__ = ("reports",)
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    reports: _containers.RepeatedCompositeFieldContainer[Report]
    def __init__(self, reports: _Optional[_Iterable[_Union[Report, _Mapping]]] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("number", "task_id", "attempt", "what", "body")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    number: int
    task_id: bytes
    attempt: int
    what: str
    body: bytes
    def __init__(self, number: _Optional[int] = ..., task_id: _Optional[bytes] = ..., attempt: _Optional[int] = ..., what: _Optional[str] = ..., body: _Optional[bytes] = ...) -> None: ...

class Answers(_message.Message):
    __slots__ = ("accepted", "refused")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    accepted: _containers.RepeatedScalarFieldContainer[int]
    refused: _containers.RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, accepted: _Optional[_Iterable[int]] = ..., refused: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("number", "code", "message")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    number: int
    code: str
    message: str
    def __init__(self, number: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("number", "active", "completed", "failed", "draining")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    number: int
    active: _containers.RepeatedScalarFieldContainer[bytes]
    completed: int
    failed: int
    draining: bool
    def __init__(self, number: _Optional[int] = ..., active: _Optional[_Iterable[bytes]] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    def __init__(self, lease_id: _Optional[bytes] = ...) -> None: ...

class Extended(_message.Message):
    __slots__ = ("number", "expires_at_us", "cancels", "lost", "drain")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_US_FIELD_NUMBER: _ClassVar[int]
    CANCELS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    number: int
    expires_at_us: int
    cancels: _containers.RepeatedCompositeFieldContainer[Cancel]
    lost: _containers.RepeatedScalarFieldContainer[bytes]
    drain: bool
    def __init__(self, number: _Optional[int] = ..., expires_at_us: _Optional[int] = ..., cancels: _Optional[_Iterable[_Union[Cancel, _Mapping]]] = ..., lost: _Optional[_Iterable[bytes]] = ..., drain: _Optional[bool] = ...) -> None: ...

class Cancels(_message.Message):
    __slots__ = ("cancels",)
    CANCELS_FIELD_NUMBER: _ClassVar[int]
    cancels: _containers.RepeatedCompositeFieldContainer[Cancel]
    def __init__(self, cancels: _Optional[_Iterable[_Union[Cancel, _Mapping]]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("task_id", "attempt", "reason")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    task_id: bytes
    attempt: int
    reason: str
    def __init__(self, task_id: _Optional[bytes] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LoseRequest(_message.Message):
    __slots__ = ("lease_id", "last_output")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    last_output: str
    def __init__(self, lease_id: _Optional[bytes] = ..., last_output: _Optional[str] = ...) -> None: ...

class Lost(_message.Message):
    __slots__ = ("attempts",)
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    attempts: int
    def __init__(self, attempts: _Optional[int] = ...) -> None: ...

class LateReports(_message.Message):
    __slots__ = ("lease_id", "reports")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    reports: _containers.RepeatedCompositeFieldContainer[Report]
    def __init__(self, lease_id: _Optional[bytes] = ..., reports: _Optional[_Iterable[_Union[Report, _Mapping]]] = ...) -> None: ...

class CallRequest(_message.Message):
    __slots__ = ("name", "body")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    name: str
    body: bytes
    def __init__(self, name: _Optional[str] = ..., body: _Optional[bytes] = ...) -> None: ...

class CallReply(_message.Message):
    __slots__ = ("body",)
    BODY_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    def __init__(self, body: _Optional[bytes] = ...) -> None: ...
