import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf import wrappers_pb2 as _wrappers_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_ARGUMENT: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_STATE: _ClassVar[ErrorCode]
    ERROR_CODE_PRECONDITION_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_CONFLICT: _ClassVar[ErrorCode]
    ERROR_CODE_ALREADY_COMPLETED: _ClassVar[ErrorCode]
    ERROR_CODE_UNAUTHORIZED: _ClassVar[ErrorCode]
    ERROR_CODE_UNAVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]

class WorkflowStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKFLOW_STATUS_UNSPECIFIED: _ClassVar[WorkflowStatus]
    WORKFLOW_STATUS_PENDING: _ClassVar[WorkflowStatus]
    WORKFLOW_STATUS_RUNNING: _ClassVar[WorkflowStatus]
    WORKFLOW_STATUS_SLEEPING: _ClassVar[WorkflowStatus]
    WORKFLOW_STATUS_COMPLETED: _ClassVar[WorkflowStatus]
    WORKFLOW_STATUS_FAILED: _ClassVar[WorkflowStatus]
    WORKFLOW_STATUS_CANCELLED: _ClassVar[WorkflowStatus]

class StepKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_KIND_UNSPECIFIED: _ClassVar[StepKind]
    STEP_KIND_FUNCTION: _ClassVar[StepKind]
    STEP_KIND_SLEEP: _ClassVar[StepKind]

class StepAttemptStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_ATTEMPT_STATUS_UNSPECIFIED: _ClassVar[StepAttemptStatus]
    STEP_ATTEMPT_STATUS_PENDING: _ClassVar[StepAttemptStatus]
    STEP_ATTEMPT_STATUS_RUNNING: _ClassVar[StepAttemptStatus]
    STEP_ATTEMPT_STATUS_COMPLETED: _ClassVar[StepAttemptStatus]
    STEP_ATTEMPT_STATUS_FAILED: _ClassVar[StepAttemptStatus]

class WorkerStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATUS_UNSPECIFIED: _ClassVar[WorkerStatus]
    WORKER_STATUS_ONLINE: _ClassVar[WorkerStatus]
    WORKER_STATUS_DRAINING: _ClassVar[WorkerStatus]
    WORKER_STATUS_OFFLINE: _ClassVar[WorkerStatus]
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_NOT_FOUND: ErrorCode
ERROR_CODE_INVALID_ARGUMENT: ErrorCode
ERROR_CODE_INVALID_STATE: ErrorCode
ERROR_CODE_PRECONDITION_FAILED: ErrorCode
ERROR_CODE_CONFLICT: ErrorCode
ERROR_CODE_ALREADY_COMPLETED: ErrorCode
ERROR_CODE_UNAUTHORIZED: ErrorCode
ERROR_CODE_UNAVAILABLE: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode
WORKFLOW_STATUS_UNSPECIFIED: WorkflowStatus
WORKFLOW_STATUS_PENDING: WorkflowStatus
WORKFLOW_STATUS_RUNNING: WorkflowStatus
WORKFLOW_STATUS_SLEEPING: WorkflowStatus
WORKFLOW_STATUS_COMPLETED: WorkflowStatus
WORKFLOW_STATUS_FAILED: WorkflowStatus
WORKFLOW_STATUS_CANCELLED: WorkflowStatus
STEP_KIND_UNSPECIFIED: StepKind
STEP_KIND_FUNCTION: StepKind
STEP_KIND_SLEEP: StepKind
STEP_ATTEMPT_STATUS_UNSPECIFIED: StepAttemptStatus
STEP_ATTEMPT_STATUS_PENDING: StepAttemptStatus
STEP_ATTEMPT_STATUS_RUNNING: StepAttemptStatus
STEP_ATTEMPT_STATUS_COMPLETED: StepAttemptStatus
STEP_ATTEMPT_STATUS_FAILED: StepAttemptStatus
WORKER_STATUS_UNSPECIFIED: WorkerStatus
WORKER_STATUS_ONLINE: WorkerStatus
WORKER_STATUS_DRAINING: WorkerStatus
WORKER_STATUS_OFFLINE: WorkerStatus

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("code", "message", "non_retryable", "retry_after_ms", "subject", "subject_id")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NON_RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    non_retryable: bool
    retry_after_ms: int
    subject: str
    subject_id: str
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., non_retryable: _Optional[bool] = ..., retry_after_ms: _Optional[int] = ..., subject: _Optional[str] = ..., subject_id: _Optional[str] = ...) -> None: ...

class RetryPolicy(_message.Message):
    __slots__ = ("maximum_attempts", "initial_interval_ms", "backoff_coefficient", "maximum_interval_ms", "non_retryable_errors")
    MAXIMUM_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    INITIAL_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_COEFFICIENT_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    NON_RETRYABLE_ERRORS_FIELD_NUMBER: _ClassVar[int]
    maximum_attempts: int
    initial_interval_ms: int
    backoff_coefficient: float
    maximum_interval_ms: int
    non_retryable_errors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, maximum_attempts: _Optional[int] = ..., initial_interval_ms: _Optional[int] = ..., backoff_coefficient: _Optional[float] = ..., maximum_interval_ms: _Optional[int] = ..., non_retryable_errors: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkflowRun(_message.Message):
    __slots__ = ("run_id", "business_id", "task_queue", "workflow_type", "status", "input", "output", "error", "attempts", "created_at", "started_at", "finished_at", "wake_up_at", "namespace_id", "context", "deadline_at", "worker_id", "version", "parent_step_attempt_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    BUSINESS_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_QUEUE_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_TYPE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    WAKE_UP_AT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_AT_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARENT_STEP_ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    business_id: str
    task_queue: str
    workflow_type: str
    status: WorkflowStatus
    input: bytes
    output: bytes
    error: ErrorDetail
    attempts: int
    created_at: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    wake_up_at: _timestamp_pb2.Timestamp
    namespace_id: str
    context: bytes
    deadline_at: _timestamp_pb2.Timestamp
    worker_id: str
    version: str
    parent_step_attempt_id: str
    def __init__(self, run_id: _Optional[str] = ..., business_id: _Optional[str] = ..., task_queue: _Optional[str] = ..., workflow_type: _Optional[str] = ..., status: _Optional[_Union[WorkflowStatus, str]] = ..., input: _Optional[bytes] = ..., output: _Optional[bytes] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., attempts: _Optional[int] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., wake_up_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., namespace_id: _Optional[str] = ..., context: _Optional[bytes] = ..., deadline_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., worker_id: _Optional[str] = ..., version: _Optional[str] = ..., parent_step_attempt_id: _Optional[str] = ...) -> None: ...

class StartWorkflowRequest(_message.Message):
    __slots__ = ("workflow_id", "task_queue", "workflow_type", "input", "namespace_id", "idempotency_key", "context", "deadline_at", "version", "retry_policy")
    WORKFLOW_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_QUEUE_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_TYPE_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_AT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RETRY_POLICY_FIELD_NUMBER: _ClassVar[int]
    workflow_id: str
    task_queue: str
    workflow_type: str
    input: bytes
    namespace_id: str
    idempotency_key: str
    context: bytes
    deadline_at: _timestamp_pb2.Timestamp
    version: str
    retry_policy: RetryPolicy
    def __init__(self, workflow_id: _Optional[str] = ..., task_queue: _Optional[str] = ..., workflow_type: _Optional[str] = ..., input: _Optional[bytes] = ..., namespace_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., context: _Optional[bytes] = ..., deadline_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., version: _Optional[str] = ..., retry_policy: _Optional[_Union[RetryPolicy, _Mapping]] = ...) -> None: ...

class StartWorkflowResponse(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetWorkflowRunRequest(_message.Message):
    __slots__ = ("run_id", "namespace_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    namespace_id: str
    def __init__(self, run_id: _Optional[str] = ..., namespace_id: _Optional[str] = ...) -> None: ...

class GetWorkflowRunResponse(_message.Message):
    __slots__ = ("workflow_run",)
    WORKFLOW_RUN_FIELD_NUMBER: _ClassVar[int]
    workflow_run: WorkflowRun
    def __init__(self, workflow_run: _Optional[_Union[WorkflowRun, _Mapping]] = ...) -> None: ...

class ListWorkflowRunsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "filter_status", "namespace_id")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FILTER_STATUS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    filter_status: str
    namespace_id: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., filter_status: _Optional[str] = ..., namespace_id: _Optional[str] = ...) -> None: ...

class ListWorkflowRunsResponse(_message.Message):
    __slots__ = ("workflow_runs", "next_page_token", "prev_page_token", "has_more")
    WORKFLOW_RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PREV_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    workflow_runs: _containers.RepeatedCompositeFieldContainer[WorkflowRun]
    next_page_token: str
    prev_page_token: str
    has_more: bool
    def __init__(self, workflow_runs: _Optional[_Iterable[_Union[WorkflowRun, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., prev_page_token: _Optional[str] = ..., has_more: _Optional[bool] = ...) -> None: ...

class CancelWorkflowRunRequest(_message.Message):
    __slots__ = ("run_id", "namespace_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    namespace_id: str
    def __init__(self, run_id: _Optional[str] = ..., namespace_id: _Optional[str] = ...) -> None: ...

class CompleteWorkflowRequest(_message.Message):
    __slots__ = ("run_id", "output")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    output: bytes
    def __init__(self, run_id: _Optional[str] = ..., output: _Optional[bytes] = ...) -> None: ...

class FailWorkflowRequest(_message.Message):
    __slots__ = ("run_id", "error")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    error: ErrorDetail
    def __init__(self, run_id: _Optional[str] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ...) -> None: ...

class ScheduleSleepRequest(_message.Message):
    __slots__ = ("run_id", "duration_seconds")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    duration_seconds: int
    def __init__(self, run_id: _Optional[str] = ..., duration_seconds: _Optional[int] = ...) -> None: ...

class RecordHeartbeatRequest(_message.Message):
    __slots__ = ("run_id", "worker_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    worker_id: str
    def __init__(self, run_id: _Optional[str] = ..., worker_id: _Optional[str] = ...) -> None: ...

class StepAttempt(_message.Message):
    __slots__ = ("step_attempt_id", "workflow_run_id", "step_id", "kind", "status", "config", "context", "output", "error", "started_at", "finished_at", "created_at", "updated_at", "child_workflow_run_id", "namespace_id")
    STEP_ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    CHILD_WORKFLOW_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    step_attempt_id: str
    workflow_run_id: str
    step_id: str
    kind: StepKind
    status: StepAttemptStatus
    config: bytes
    context: bytes
    output: bytes
    error: ErrorDetail
    started_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    created_at: _timestamp_pb2.Timestamp
    updated_at: _timestamp_pb2.Timestamp
    child_workflow_run_id: str
    namespace_id: str
    def __init__(self, step_attempt_id: _Optional[str] = ..., workflow_run_id: _Optional[str] = ..., step_id: _Optional[str] = ..., kind: _Optional[_Union[StepKind, str]] = ..., status: _Optional[_Union[StepAttemptStatus, str]] = ..., config: _Optional[bytes] = ..., context: _Optional[bytes] = ..., output: _Optional[bytes] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., child_workflow_run_id: _Optional[str] = ..., namespace_id: _Optional[str] = ...) -> None: ...

class GetStepAttemptRequest(_message.Message):
    __slots__ = ("step_attempt_id", "namespace_id")
    STEP_ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    step_attempt_id: str
    namespace_id: str
    def __init__(self, step_attempt_id: _Optional[str] = ..., namespace_id: _Optional[str] = ...) -> None: ...

class GetStepAttemptResponse(_message.Message):
    __slots__ = ("step_attempt",)
    STEP_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    step_attempt: StepAttempt
    def __init__(self, step_attempt: _Optional[_Union[StepAttempt, _Mapping]] = ...) -> None: ...

class ListStepAttemptsRequest(_message.Message):
    __slots__ = ("workflow_run_id", "step_id", "page_size", "page_token", "namespace_id")
    WORKFLOW_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    workflow_run_id: str
    step_id: str
    page_size: int
    page_token: str
    namespace_id: str
    def __init__(self, workflow_run_id: _Optional[str] = ..., step_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., namespace_id: _Optional[str] = ...) -> None: ...

class ListStepAttemptsResponse(_message.Message):
    __slots__ = ("step_attempts", "next_page_token")
    STEP_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    step_attempts: _containers.RepeatedCompositeFieldContainer[StepAttempt]
    next_page_token: str
    def __init__(self, step_attempts: _Optional[_Iterable[_Union[StepAttempt, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class BeginStepRequest(_message.Message):
    __slots__ = ("run_id", "step_id", "input", "retry_policy")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    RETRY_POLICY_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    step_id: str
    input: bytes
    retry_policy: RetryPolicy
    def __init__(self, run_id: _Optional[str] = ..., step_id: _Optional[str] = ..., input: _Optional[bytes] = ..., retry_policy: _Optional[_Union[RetryPolicy, _Mapping]] = ...) -> None: ...

class BeginStepResponse(_message.Message):
    __slots__ = ("should_execute", "cached_result")
    SHOULD_EXECUTE_FIELD_NUMBER: _ClassVar[int]
    CACHED_RESULT_FIELD_NUMBER: _ClassVar[int]
    should_execute: bool
    cached_result: bytes
    def __init__(self, should_execute: _Optional[bool] = ..., cached_result: _Optional[bytes] = ...) -> None: ...

class CompleteStepRequest(_message.Message):
    __slots__ = ("run_id", "step_id", "output")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    step_id: str
    output: bytes
    def __init__(self, run_id: _Optional[str] = ..., step_id: _Optional[str] = ..., output: _Optional[bytes] = ...) -> None: ...

class FailStepRequest(_message.Message):
    __slots__ = ("run_id", "step_id", "error")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    step_id: str
    error: ErrorDetail
    def __init__(self, run_id: _Optional[str] = ..., step_id: _Optional[str] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ...) -> None: ...

class WorkflowTypeConcurrency(_message.Message):
    __slots__ = ("workflow_type", "max_concurrent")
    WORKFLOW_TYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_FIELD_NUMBER: _ClassVar[int]
    workflow_type: str
    max_concurrent: int
    def __init__(self, workflow_type: _Optional[str] = ..., max_concurrent: _Optional[int] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("worker_id", "namespace_id", "task_queue", "status", "hostname", "pid", "version", "workflow_types", "max_concurrent", "active_count", "total_completed", "total_failed", "registered_at", "last_heartbeat_at", "labels", "queue_concurrency_limit", "workflow_type_concurrency")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_QUEUE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_TYPES_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FAILED_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_HEARTBEAT_AT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CONCURRENCY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_TYPE_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    namespace_id: str
    task_queue: str
    status: WorkerStatus
    hostname: str
    pid: int
    version: str
    workflow_types: _containers.RepeatedScalarFieldContainer[str]
    max_concurrent: int
    active_count: int
    total_completed: int
    total_failed: int
    registered_at: _timestamp_pb2.Timestamp
    last_heartbeat_at: _timestamp_pb2.Timestamp
    labels: _containers.ScalarMap[str, str]
    queue_concurrency_limit: int
    workflow_type_concurrency: _containers.RepeatedCompositeFieldContainer[WorkflowTypeConcurrency]
    def __init__(self, worker_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., task_queue: _Optional[str] = ..., status: _Optional[_Union[WorkerStatus, str]] = ..., hostname: _Optional[str] = ..., pid: _Optional[int] = ..., version: _Optional[str] = ..., workflow_types: _Optional[_Iterable[str]] = ..., max_concurrent: _Optional[int] = ..., active_count: _Optional[int] = ..., total_completed: _Optional[int] = ..., total_failed: _Optional[int] = ..., registered_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_heartbeat_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., queue_concurrency_limit: _Optional[int] = ..., workflow_type_concurrency: _Optional[_Iterable[_Union[WorkflowTypeConcurrency, _Mapping]]] = ...) -> None: ...

class RegisterWorkerRequest(_message.Message):
    __slots__ = ("namespace_id", "task_queue", "workflow_types", "hostname", "pid", "version", "max_concurrent", "labels", "queue_concurrency_limit", "workflow_type_concurrency")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_QUEUE_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_TYPES_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CONCURRENCY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_TYPE_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    task_queue: str
    workflow_types: _containers.RepeatedScalarFieldContainer[str]
    hostname: str
    pid: int
    version: str
    max_concurrent: int
    labels: _containers.ScalarMap[str, str]
    queue_concurrency_limit: int
    workflow_type_concurrency: _containers.RepeatedCompositeFieldContainer[WorkflowTypeConcurrency]
    def __init__(self, namespace_id: _Optional[str] = ..., task_queue: _Optional[str] = ..., workflow_types: _Optional[_Iterable[str]] = ..., hostname: _Optional[str] = ..., pid: _Optional[int] = ..., version: _Optional[str] = ..., max_concurrent: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., queue_concurrency_limit: _Optional[int] = ..., workflow_type_concurrency: _Optional[_Iterable[_Union[WorkflowTypeConcurrency, _Mapping]]] = ...) -> None: ...

class RegisterWorkerResponse(_message.Message):
    __slots__ = ("worker_id", "heartbeat_interval_secs")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_SECS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    heartbeat_interval_secs: int
    def __init__(self, worker_id: _Optional[str] = ..., heartbeat_interval_secs: _Optional[int] = ...) -> None: ...

class WorkerHeartbeatRequest(_message.Message):
    __slots__ = ("worker_id", "active_count", "completed_delta", "failed_delta")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_DELTA_FIELD_NUMBER: _ClassVar[int]
    FAILED_DELTA_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    active_count: int
    completed_delta: int
    failed_delta: int
    def __init__(self, worker_id: _Optional[str] = ..., active_count: _Optional[int] = ..., completed_delta: _Optional[int] = ..., failed_delta: _Optional[int] = ...) -> None: ...

class WorkerHeartbeatResponse(_message.Message):
    __slots__ = ("accepted", "should_drain")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    SHOULD_DRAIN_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    should_drain: bool
    def __init__(self, accepted: _Optional[bool] = ..., should_drain: _Optional[bool] = ...) -> None: ...

class DeregisterWorkerRequest(_message.Message):
    __slots__ = ("worker_id", "drain")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    drain: bool
    def __init__(self, worker_id: _Optional[str] = ..., drain: _Optional[bool] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ("namespace_id", "task_queue", "filter_status", "page_size", "page_token")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_QUEUE_FIELD_NUMBER: _ClassVar[int]
    FILTER_STATUS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    task_queue: str
    filter_status: str
    page_size: int
    page_token: str
    def __init__(self, namespace_id: _Optional[str] = ..., task_queue: _Optional[str] = ..., filter_status: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers", "next_page_token", "total_count")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    next_page_token: str
    total_count: int
    def __init__(self, workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., total_count: _Optional[int] = ...) -> None: ...

class GetWorkerRequest(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...

class GetWorkerResponse(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: Worker
    def __init__(self, worker: _Optional[_Union[Worker, _Mapping]] = ...) -> None: ...

class PollActivityRequest(_message.Message):
    __slots__ = ("task_queue", "worker_id", "namespace_id", "supported_workflow_types")
    TASK_QUEUE_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    SUPPORTED_WORKFLOW_TYPES_FIELD_NUMBER: _ClassVar[int]
    task_queue: str
    worker_id: str
    namespace_id: str
    supported_workflow_types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task_queue: _Optional[str] = ..., worker_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., supported_workflow_types: _Optional[_Iterable[str]] = ...) -> None: ...

class PollActivityResponse(_message.Message):
    __slots__ = ("run_id", "workflow_type", "workflow_input")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_TYPE_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_INPUT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    workflow_type: str
    workflow_input: bytes
    def __init__(self, run_id: _Optional[str] = ..., workflow_type: _Optional[str] = ..., workflow_input: _Optional[bytes] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("schedule_id", "namespace_id", "task_queue", "workflow_type", "cron_expr", "input", "context", "enabled", "max_catchup", "next_fire_at", "last_fired_at", "version")
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_QUEUE_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_TYPE_FIELD_NUMBER: _ClassVar[int]
    CRON_EXPR_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    MAX_CATCHUP_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIRE_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_FIRED_AT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    schedule_id: str
    namespace_id: str
    task_queue: str
    workflow_type: str
    cron_expr: str
    input: bytes
    context: bytes
    enabled: bool
    max_catchup: int
    next_fire_at: _timestamp_pb2.Timestamp
    last_fired_at: _timestamp_pb2.Timestamp
    version: str
    def __init__(self, schedule_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., task_queue: _Optional[str] = ..., workflow_type: _Optional[str] = ..., cron_expr: _Optional[str] = ..., input: _Optional[bytes] = ..., context: _Optional[bytes] = ..., enabled: _Optional[bool] = ..., max_catchup: _Optional[int] = ..., next_fire_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_fired_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., version: _Optional[str] = ...) -> None: ...

class CreateScheduleRequest(_message.Message):
    __slots__ = ("namespace_id", "task_queue", "workflow_type", "cron_expr", "input", "context", "enabled", "max_catchup", "version")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_QUEUE_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_TYPE_FIELD_NUMBER: _ClassVar[int]
    CRON_EXPR_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    MAX_CATCHUP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    task_queue: str
    workflow_type: str
    cron_expr: str
    input: bytes
    context: bytes
    enabled: _wrappers_pb2.BoolValue
    max_catchup: int
    version: str
    def __init__(self, namespace_id: _Optional[str] = ..., task_queue: _Optional[str] = ..., workflow_type: _Optional[str] = ..., cron_expr: _Optional[str] = ..., input: _Optional[bytes] = ..., context: _Optional[bytes] = ..., enabled: _Optional[_Union[_wrappers_pb2.BoolValue, _Mapping]] = ..., max_catchup: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class CreateScheduleResponse(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ...) -> None: ...

class GetScheduleRequest(_message.Message):
    __slots__ = ("schedule_id", "namespace_id")
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    schedule_id: str
    namespace_id: str
    def __init__(self, schedule_id: _Optional[str] = ..., namespace_id: _Optional[str] = ...) -> None: ...

class GetScheduleResponse(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ("namespace_id", "task_queue", "limit")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_QUEUE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    task_queue: str
    limit: int
    def __init__(self, namespace_id: _Optional[str] = ..., task_queue: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListSchedulesResponse(_message.Message):
    __slots__ = ("schedules",)
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    def __init__(self, schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ...) -> None: ...

class UpdateScheduleRequest(_message.Message):
    __slots__ = ("schedule_id", "namespace_id", "task_queue", "workflow_type", "cron_expr", "input", "context", "enabled", "max_catchup", "next_fire_at", "version")
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_QUEUE_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_TYPE_FIELD_NUMBER: _ClassVar[int]
    CRON_EXPR_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    MAX_CATCHUP_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIRE_AT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    schedule_id: str
    namespace_id: str
    task_queue: _wrappers_pb2.StringValue
    workflow_type: _wrappers_pb2.StringValue
    cron_expr: _wrappers_pb2.StringValue
    input: _wrappers_pb2.BytesValue
    context: _wrappers_pb2.BytesValue
    enabled: _wrappers_pb2.BoolValue
    max_catchup: _wrappers_pb2.Int32Value
    next_fire_at: _timestamp_pb2.Timestamp
    version: _wrappers_pb2.StringValue
    def __init__(self, schedule_id: _Optional[str] = ..., namespace_id: _Optional[str] = ..., task_queue: _Optional[_Union[_wrappers_pb2.StringValue, _Mapping]] = ..., workflow_type: _Optional[_Union[_wrappers_pb2.StringValue, _Mapping]] = ..., cron_expr: _Optional[_Union[_wrappers_pb2.StringValue, _Mapping]] = ..., input: _Optional[_Union[_wrappers_pb2.BytesValue, _Mapping]] = ..., context: _Optional[_Union[_wrappers_pb2.BytesValue, _Mapping]] = ..., enabled: _Optional[_Union[_wrappers_pb2.BoolValue, _Mapping]] = ..., max_catchup: _Optional[_Union[_wrappers_pb2.Int32Value, _Mapping]] = ..., next_fire_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., version: _Optional[_Union[_wrappers_pb2.StringValue, _Mapping]] = ...) -> None: ...

class UpdateScheduleResponse(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ...) -> None: ...

class DeleteScheduleRequest(_message.Message):
    __slots__ = ("schedule_id", "namespace_id")
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    schedule_id: str
    namespace_id: str
    def __init__(self, schedule_id: _Optional[str] = ..., namespace_id: _Optional[str] = ...) -> None: ...

class HealthCheckRequest(_message.Message):
    __slots__ = ("service",)
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    service: str
    def __init__(self, service: _Optional[str] = ...) -> None: ...

class HealthCheckResponse(_message.Message):
    __slots__ = ("status", "message", "timestamp")
    class ServingStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SERVING_STATUS_UNSPECIFIED: _ClassVar[HealthCheckResponse.ServingStatus]
        SERVING: _ClassVar[HealthCheckResponse.ServingStatus]
        NOT_SERVING: _ClassVar[HealthCheckResponse.ServingStatus]
        SERVICE_UNKNOWN: _ClassVar[HealthCheckResponse.ServingStatus]
    SERVING_STATUS_UNSPECIFIED: HealthCheckResponse.ServingStatus
    SERVING: HealthCheckResponse.ServingStatus
    NOT_SERVING: HealthCheckResponse.ServingStatus
    SERVICE_UNKNOWN: HealthCheckResponse.ServingStatus
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    status: HealthCheckResponse.ServingStatus
    message: str
    timestamp: _timestamp_pb2.Timestamp
    def __init__(self, status: _Optional[_Union[HealthCheckResponse.ServingStatus, str]] = ..., message: _Optional[str] = ..., timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
