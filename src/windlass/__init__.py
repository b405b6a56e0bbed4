"""Windlass: a durable task and workflow engine. One engine, every kind of worker.

What is exported here is the public API; all else is a seam and may change. Names are imported when they are first used,
so that a plain worker imports little, and a stdio worker nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.app import open_engine
    from windlass.connect import App
    from windlass.core.command import Claimed
    from windlass.core.error import (
        Conflict,
        ContractViolation,
        Draining,
        Forbidden,
        Invalid,
        InvalidState,
        LeaseLost,
        NotFound,
        Overloaded,
        Rejected,
        StoreBusy,
        Unavailable,
        WindlassError,
    )
    from windlass.core.failure import Category, Failure
    from windlass.core.lease import Lease
    from windlass.core.queue import QueueConfig, Rate
    from windlass.core.retry import Policy
    from windlass.core.submission import Submission
    from windlass.core.task import Outcome, Task
    from windlass.core.transition import State
    from windlass.engine.engine import Engine
    from windlass.sdk.asked import StepFailed
    from windlass.sdk.compose import chain, group
    from windlass.sdk.context import Context, current
    from windlass.sdk.handle import TaskHandle
    from windlass.sdk.signals import Cancel, Fail, Retry, TaskFailed
    from windlass.sdk.worker import Worker
    from windlass.sdk.workflow import WorkflowContext

__version__ = "0.1.0"

_LATER = {
    "App": "windlass.connect",
    "Cancel": "windlass.sdk.signals",
    "Category": "windlass.core.failure",
    "Claimed": "windlass.core.command",
    "Conflict": "windlass.core.error",
    "Context": "windlass.sdk.context",
    "ContractViolation": "windlass.core.error",
    "Draining": "windlass.core.error",
    "Engine": "windlass.engine.engine",
    "Fail": "windlass.sdk.signals",
    "Failure": "windlass.core.failure",
    "Forbidden": "windlass.core.error",
    "Invalid": "windlass.core.error",
    "InvalidState": "windlass.core.error",
    "Lease": "windlass.core.lease",
    "LeaseLost": "windlass.core.error",
    "NotFound": "windlass.core.error",
    "Outcome": "windlass.core.task",
    "Overloaded": "windlass.core.error",
    "Policy": "windlass.core.retry",
    "QueueConfig": "windlass.core.queue",
    "Rate": "windlass.core.queue",
    "Rejected": "windlass.core.error",
    "Retry": "windlass.sdk.signals",
    "State": "windlass.core.transition",
    "StepFailed": "windlass.sdk.asked",
    "StoreBusy": "windlass.core.error",
    "Submission": "windlass.core.submission",
    "Task": "windlass.core.task",
    "TaskFailed": "windlass.sdk.signals",
    "TaskHandle": "windlass.sdk.handle",
    "Unavailable": "windlass.core.error",
    "WindlassError": "windlass.core.error",
    "Worker": "windlass.sdk.worker",
    "WorkflowContext": "windlass.sdk.workflow",
    "chain": "windlass.sdk.compose",
    "current": "windlass.sdk.context",
    "group": "windlass.sdk.compose",
    "open_engine": "windlass.app",
}

__all__ = [
    "App",
    "Cancel",
    "Category",
    "Claimed",
    "Conflict",
    "Context",
    "ContractViolation",
    "Draining",
    "Engine",
    "Fail",
    "Failure",
    "Forbidden",
    "Invalid",
    "InvalidState",
    "Lease",
    "LeaseLost",
    "NotFound",
    "Outcome",
    "Overloaded",
    "Policy",
    "QueueConfig",
    "Rate",
    "Rejected",
    "Retry",
    "State",
    "StepFailed",
    "StoreBusy",
    "Submission",
    "Task",
    "TaskFailed",
    "TaskHandle",
    "Unavailable",
    "WindlassError",
    "Worker",
    "WorkflowContext",
    "chain",
    "current",
    "group",
    "open_engine",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        found = globals()[name] = getattr(import_module(_LATER[name]), name)
        return found
    raise AttributeError(f"module 'windlass' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
