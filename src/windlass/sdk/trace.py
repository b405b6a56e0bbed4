"""OpenTelemetry spans: one for each submission, attempt and step, all in one trace.

OpenTelemetry is never imported here. A program that uses it has imported it already; for all others the cost is one
dictionary lookup. Attribute names follow OpenTelemetry's messaging conventions where there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from uuid import UUID

from msgspec.structs import replace

from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.core.trace import is_traceparent

if TYPE_CHECKING:
    from windlass.sdk.client import Client, WorkflowSource

SYSTEM = "windlass"
NO_SPAN = nullcontext()


def submit_span(kind: str, queue: str, count: int = 1) -> AbstractContextManager[str | None]:
    """A producer's span around a submission; yields the traceparent for its tasks, None without OpenTelemetry."""
    otel = _opentelemetry()
    return NO_SPAN if otel is None else _submit_span(otel, kind, queue, count)


@contextmanager
def _submit_span(otel: Any, kind: str, queue: str, count: int) -> Iterator[str | None]:
    attributes = _attributes(kind, queue, "send") | ({"messaging.batch.message_count": count} if count > 1 else {})
    with _span(otel, f"submit {kind}", otel.SpanKind.PRODUCER, attributes) as span:
        yield traceparent(span.get_span_context())


def attempt_span(task: Task) -> AbstractContextManager[Any]:
    """A consumer's span around an attempt, below the span that submitted the task."""
    otel = _opentelemetry()
    if otel is None:
        return NO_SPAN
    attributes = _attributes(task.kind, task.queue, "process") | {
        "messaging.message.id": str(task.id),
        "windlass.task.attempt": task.attempt,
        "windlass.namespace": task.namespace,
    }
    return _span(otel, f"run {task.kind}", otel.SpanKind.CONSUMER, attributes, _parent(otel, task.trace))


def step_span(name: str, occurrence: int = 1) -> AbstractContextManager[Any]:
    """A span around a step that runs. A step that is replayed had its span when it ran."""
    otel = _opentelemetry()
    if otel is None:
        return NO_SPAN
    attributes = {"windlass.step.name": name, "windlass.step.occurrence": occurrence}
    return _span(otel, f"step {name}", otel.SpanKind.INTERNAL, attributes)


def traceparent(context: Any) -> str | None:
    """The span's id as a traceparent header; None if no provider was set."""
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _opentelemetry() -> Any:
    """OpenTelemetry's trace module, if this program has imported it."""
    return sys.modules.get("opentelemetry.trace")


def _span(
    otel: Any, name: str, kind: Any, attributes: dict[str, Any], parent: Any = None
) -> AbstractContextManager[Any]:
    span: AbstractContextManager[Any] = otel.get_tracer(SYSTEM).start_as_current_span(
        name, context=parent, kind=kind, attributes=attributes
    )
    return span


def _parent(otel: Any, trace: str | None) -> Any:
    """A context with the submitting span. None means the current span, and a worker has none."""
    if trace is None or not is_traceparent(trace):
        return None
    _, trace_id, span_id, flags = trace.split("-")
    context = otel.SpanContext(int(trace_id, 16), int(span_id, 16), True, otel.TraceFlags(int(flags, 16)))
    return otel.set_span_in_context(otel.NonRecordingSpan(context))


def _attributes(kind: str, queue: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "windlass.task.kind": kind,
    }


def with_trace(submission: Submission, trace: str | None) -> Submission:
    """The submission with the span that submits it, unless it names another."""
    return submission if trace is None or submission.trace is not None else replace(submission, trace=trace)


async def submit_with_trace(client: Client | WorkflowSource, submission: Submission) -> UUID:
    """Submit one task within a producer's span."""
    with submit_span(submission.kind, submission.queue) as trace:
        return await client.submit(with_trace(submission, trace))


async def submit_many_with_trace(client: Client, submissions: Sequence[Submission]) -> list[UUID]:
    """Submit several tasks within one producer's span."""
    if not submissions:
        return []
    with submit_span(submissions[0].kind, submissions[0].queue, len(submissions)) as trace:
        return await client.submit_many([with_trace(submission, trace) for submission in submissions])


async def submit_batch_with_trace(client: Client, shared: Submission, payloads: Sequence[bytes]) -> list[UUID]:
    """Submit tasks that differ only in their payloads within one producer's span."""
    with submit_span(shared.kind, shared.queue, len(payloads)) as trace:
        return await client.submit_batch(with_trace(shared, trace), payloads)
