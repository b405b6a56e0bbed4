"""Windlass: a durable task and workflow engine. One engine, every kind of worker.

What is exported here is the public API; all else is a seam and may change. Names that need the database driver are
imported when they are first used, so that a plain worker imports little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from windlass.sdk.signals import Cancel, Fail, Retry, TaskFailed

if TYPE_CHECKING:
    from windlass.app import open_engine
    from windlass.connect import App
    from windlass.engine.engine import Engine
    from windlass.sdk.asked import StepFailed
    from windlass.sdk.compose import chain, group
    from windlass.sdk.context import Context, current
    from windlass.sdk.handle import TaskHandle
    from windlass.sdk.worker import Worker
    from windlass.sdk.workflow import WorkflowContext

__version__ = "0.1.0"

_LATER = {
    "App": "windlass.connect",
    "Context": "windlass.sdk.context",
    "Engine": "windlass.engine.engine",
    "StepFailed": "windlass.sdk.asked",
    "TaskHandle": "windlass.sdk.handle",
    "Worker": "windlass.sdk.worker",
    "chain": "windlass.sdk.compose",
    "WorkflowContext": "windlass.sdk.workflow",
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
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'windlass' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
