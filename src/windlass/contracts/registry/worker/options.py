"""Retry policies and errors of workflows and steps."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.core.text import clean, line_of
from windlass.core.validation import check_count, check_seconds
from windlass.errors import Invalid


@dataclass(frozen=True, slots=True)
class Retry:
    """How a failure is retried. The default of a field is that of the server; for a step, that of its run."""

    attempts: int = 0  # 0: the default; negative: no limit
    first_delay_s: float = 0.0
    factor: float = 0.0
    longest_delay_s: float = 0.0
    final_errors: tuple[str, ...] = ()  # prefixes of messages that are not retried

    def message(self) -> pb.RetryPolicy:
        check_count("attempts", self.attempts, least=-(2**31), most=2**31 - 1)
        check_seconds("first_delay_s", self.first_delay_s)
        check_seconds("longest_delay_s", self.longest_delay_s)
        return pb.RetryPolicy(
            maximum_attempts=self.attempts,
            initial_interval_ms=int(self.first_delay_s * 1000),
            backoff_coefficient=self.factor,
            maximum_interval_ms=int(self.longest_delay_s * 1000),
            non_retryable_errors=self.final_errors,
        )


class WorkflowError(Exception):
    """Raise it to control how a failure is retried: whether, and when. Any other exception is retried within the
    policy."""

    def __init__(
        self, message: str, *, retryable: bool = True, retry_after_s: float | None = None, code: str = "INTERNAL"
    ) -> None:
        super().__init__(message)
        if f"ERROR_CODE_{code}" not in pb.ErrorCode.keys():  # noqa: SIM118
            raise Invalid(f"{code!r} is not a code of this contract", field="code")
        if retry_after_s is not None:
            check_seconds("retry_after_s", retry_after_s)
        self.retryable, self.retry_after_s, self.code = retryable, retry_after_s, code


def detail_of(error: BaseException) -> pb.ErrorDetail:
    """Converts an exception to a message of this wire."""
    if isinstance(error, WorkflowError):
        wait_ms = 0 if error.retry_after_s is None else max(1, int(error.retry_after_s * 1000))
        return pb.ErrorDetail(
            code=pb.ErrorCode.Value(f"ERROR_CODE_{error.code}"),
            message=clean(str(error)),
            non_retryable=not error.retryable,
            retry_after_ms=wait_ms,
        )
    return pb.ErrorDetail(code=pb.ERROR_CODE_INTERNAL, message=line_of(error))
