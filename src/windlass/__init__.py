"""Windlass: a durable task and workflow engine. One engine, every kind of worker.

The names exported here are the public API; everything else may change. They are imported when they are first used, so
that a plain worker imports little, and a stdio worker nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.connect import App
    from windlass.core.command import Claimed
    from windlass.core.failure import Category, Failure
    from windlass.core.lease import Lease
    from windlass.core.queue import QueueConfig, Rate
    from windlass.core.retry import Policy
    from windlass.core.states import State
    from windlass.core.submission import Submission
    from windlass.core.task import Outcome, Task
    from windlass.engine.engine import Engine
    from windlass.errors import (
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
    from windlass.sdk.context import Context, current
    from windlass.sdk.handler.groups import chain, group
    from windlass.sdk.handler.handle import TaskHandle
    from windlass.sdk.signals import Cancel, Fail, Retry, TaskFailed
    from windlass.sdk.worker.worker import Worker
    from windlass.sdk.workflow.awaitables import StepFailed
    from windlass.sdk.workflow.context import WorkflowContext
    from windlass.serve import open_engine

__version__ = "0.1.0"

_LATER = {
    "App": "windlass.connect",
    "Cancel": "windlass.sdk.signals",
    "Category": "windlass.core.failure",
    "Claimed": "windlass.core.command",
    "Conflict": "windlass.errors",
    "Context": "windlass.sdk.context",
    "ContractViolation": "windlass.errors",
    "Draining": "windlass.errors",
    "Engine": "windlass.serve",
    "Fail": "windlass.sdk.signals",
    "Failure": "windlass.core.failure",
    "Forbidden": "windlass.errors",
    "Invalid": "windlass.errors",
    "InvalidState": "windlass.errors",
    "Lease": "windlass.core.lease",
    "LeaseLost": "windlass.errors",
    "NotFound": "windlass.errors",
    "Outcome": "windlass.core.task",
    "Overloaded": "windlass.errors",
    "Policy": "windlass.core.retry",
    "QueueConfig": "windlass.core.queue",
    "Rate": "windlass.core.queue",
    "Rejected": "windlass.errors",
    "Retry": "windlass.sdk.signals",
    "State": "windlass.core.states",
    "StepFailed": "windlass.sdk.workflow.awaitables",
    "StoreBusy": "windlass.errors",
    "Submission": "windlass.core.submission",
    "Task": "windlass.core.task",
    "TaskFailed": "windlass.sdk.signals",
    "TaskHandle": "windlass.sdk.handler.handle",
    "Unavailable": "windlass.errors",
    "WindlassError": "windlass.errors",
    "Worker": "windlass.sdk.worker.worker",
    "WorkflowContext": "windlass.sdk.workflow.context",
    "chain": "windlass.sdk.handler.groups",
    "current": "windlass.sdk.context",
    "group": "windlass.sdk.handler.groups",
    "open_engine": "windlass.serve",
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
