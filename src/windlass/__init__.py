"""Windlass: a durable task and workflow engine. One engine, every kind of worker.

The names exported here are the public API; everything else may change. They are imported on first use, so that a plain
worker imports little, and a stdio worker nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.connect import App as App
    from windlass.core.command import Claimed as Claimed
    from windlass.core.failure import Category as Category
    from windlass.core.failure import Failure as Failure
    from windlass.core.lease import Lease as Lease
    from windlass.core.queue import QueueConfig as QueueConfig
    from windlass.core.queue import Rate as Rate
    from windlass.core.retry import Policy as Policy
    from windlass.core.states import State as State
    from windlass.core.submission import Submission as Submission
    from windlass.core.task import Outcome as Outcome
    from windlass.core.task import Task as Task
    from windlass.engine.engine import Engine as Engine
    from windlass.errors import Conflict as Conflict
    from windlass.errors import ContractViolation as ContractViolation
    from windlass.errors import Draining as Draining
    from windlass.errors import Forbidden as Forbidden
    from windlass.errors import Invalid as Invalid
    from windlass.errors import InvalidState as InvalidState
    from windlass.errors import LeaseLost as LeaseLost
    from windlass.errors import NotFound as NotFound
    from windlass.errors import Overloaded as Overloaded
    from windlass.errors import Rejected as Rejected
    from windlass.errors import StoreBusy as StoreBusy
    from windlass.errors import Unavailable as Unavailable
    from windlass.errors import WindlassError as WindlassError
    from windlass.sdk.context import Context as Context
    from windlass.sdk.context import current as current
    from windlass.sdk.handler.groups import chain as chain
    from windlass.sdk.handler.groups import group as group
    from windlass.sdk.handler.handle import TaskHandle as TaskHandle
    from windlass.sdk.signals import Cancel as Cancel
    from windlass.sdk.signals import Fail as Fail
    from windlass.sdk.signals import Retry as Retry
    from windlass.sdk.signals import TaskFailed as TaskFailed
    from windlass.sdk.worker.worker import Worker as Worker
    from windlass.sdk.workflow.awaitables import StepFailed as StepFailed
    from windlass.sdk.workflow.context import WorkflowContext as WorkflowContext
    from windlass.serve import open_engine as open_engine

__version__ = "0.1.0"

_MODULES = {
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

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return found
    raise AttributeError(f"module 'windlass' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
