"""Spans, for programs that use OpenTelemetry: one where a task is submitted, one an attempt, one a step; one trace.

OpenTelemetry is never imported here. A program that traces has imported it, and then it is found; for all others a look
into a dictionary is the whole cost. Attribute names follow OpenTelemetry's messaging conventions, and our own words for
the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from msgspec.structs import replace

from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.core.trace import is_traceparent

T = TypeVar("T")

SYSTEM = "windlass"


NOBODY_TRACES = nullcontext()


def submitting(kind: str, queue: str, count: int = 1) -> AbstractContextManager[str | None]:
    """A producer's span around a submission; yields what the tasks carry, None where nobody traces."""
    otel = _opentelemetry()
    return NOBODY_TRACES if otel is None else _submitting(otel, kind, queue, count)


@contextmanager
def _submitting(otel: Any, kind: str, queue: str, count: int) -> Iterator[str | None]:
    attributes = _attributes(kind, queue, "send") | ({"messaging.batch.message_count": count} if count > 1 else {})
    with _span(otel, f"submit {kind}", otel.SpanKind.PRODUCER, attributes) as span:
        yield traceparent(span.get_span_context())


def attempting(task: Task) -> AbstractContextManager[Any]:
    """A consumer's span around an attempt, below the span that submitted the task."""
    otel = _opentelemetry()
    if otel is None:
        return NOBODY_TRACES
    attributes = _attributes(task.kind, task.queue, "process") | {
        "messaging.message.id": str(task.id),
        "windlass.task.attempt": task.attempt,
        "windlass.namespace": task.namespace,
    }
    return _span(otel, f"run {task.kind}", otel.SpanKind.CONSUMER, attributes, _parent(otel, task.trace))


def stepping(name: str, occurrence: int = 1) -> AbstractContextManager[Any]:
    """A span around a step that is really run; one that is replayed has had its own."""
    otel = _opentelemetry()
    if otel is None:
        return NOBODY_TRACES
    attributes = {"windlass.step.name": name, "windlass.step.occurrence": occurrence}
    return _span(otel, f"step {name}", otel.SpanKind.INTERNAL, attributes)


def traceparent(context: Any) -> str | None:
    """None where no provider was set: then spans have no identity."""
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _opentelemetry() -> Any:
    """Its trace module, if this program uses it."""
    return sys.modules.get("opentelemetry.trace")


def _span(
    otel: Any, name: str, kind: Any, attributes: dict[str, Any], parent: Any = None
) -> AbstractContextManager[Any]:
    span: AbstractContextManager[Any] = otel.get_tracer(SYSTEM).start_as_current_span(
        name, context=parent, kind=kind, attributes=attributes
    )
    return span


def _parent(otel: Any, trace: str | None) -> Any:
    """The submitting span, far away. None: whatever is current here, which for a worker is nothing."""
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


def traced(submission: Submission, trace: str | None) -> Submission:
    """The submission with the span that submits it, unless it names another."""
    return submission if trace is None or submission.trace is not None else replace(submission, trace=trace)


async def submit_traced(submit: Callable[[Submission], Awaitable[T]], submission: Submission) -> T:
    """Submit one task within a producer's span."""
    with submitting(submission.kind, submission.queue) as trace:
        return await submit(traced(submission, trace))
