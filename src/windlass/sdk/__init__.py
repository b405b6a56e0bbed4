"""The library for Python programs: apps with their handlers, handles of tasks, contexts of attempts, workers.

Knows the engine only as a `Client`, so that none of the server is imported; `windlass.App` provides one. Names are
imported when they are first used: a program on its own machine (`windlass.sdk.machine`) needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.sdk.app import App, AppSettings
    from windlass.sdk.client import Client
    from windlass.sdk.context import Context, current
    from windlass.sdk.duration import Duration
    from windlass.sdk.handler.group_handle import ChainHandle, GroupHandle
    from windlass.sdk.handler.groups import Call, Chain, Group, chain, group
    from windlass.sdk.handler.handle import TaskHandle
    from windlass.sdk.handler.handler import Handler
    from windlass.sdk.handler.options import TaskOptions
    from windlass.sdk.schedule import Schedule
    from windlass.sdk.signals import Cancel, Fail, Retry, TaskFailed
    from windlass.sdk.worker.work_source import WorkSource
    from windlass.sdk.worker.worker import Worker
    from windlass.sdk.workflow.awaitables import Child, StepFailed
    from windlass.sdk.workflow.context import WorkflowContext
    from windlass.sdk.workflow.handler import WorkflowHandler
    from windlass.sdk.workflow.step import StepFunction, StepOptions

_LAZY = {
    "App": "app",
    "AppSettings": "app",
    "Call": "handler.groups",
    "Cancel": "signals",
    "Chain": "handler.groups",
    "ChainHandle": "handler.group_handle",
    "Child": "workflow.awaitables",
    "Client": "client",
    "Context": "context",
    "Duration": "duration",
    "Fail": "signals",
    "Group": "handler.groups",
    "GroupHandle": "handler.group_handle",
    "Handler": "handler.handler",
    "Retry": "signals",
    "Schedule": "schedule",
    "StepFailed": "workflow.awaitables",
    "StepFunction": "workflow.step",
    "StepOptions": "workflow.step",
    "TaskFailed": "signals",
    "TaskHandle": "handler.handle",
    "TaskOptions": "handler.options",
    "WorkSource": "worker.work_source",
    "Worker": "worker.worker",
    "WorkflowContext": "workflow.context",
    "WorkflowHandler": "workflow.handler",
    "chain": "handler.groups",
    "current": "context",
    "group": "handler.groups",
}

__all__ = [
    "App",
    "AppSettings",
    "Call",
    "Cancel",
    "Chain",
    "ChainHandle",
    "Child",
    "Client",
    "Context",
    "Duration",
    "Fail",
    "Group",
    "GroupHandle",
    "Handler",
    "Retry",
    "Schedule",
    "StepFailed",
    "StepFunction",
    "StepOptions",
    "TaskFailed",
    "TaskHandle",
    "TaskOptions",
    "WorkSource",
    "Worker",
    "WorkflowContext",
    "WorkflowHandler",
    "chain",
    "current",
    "group",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        found = globals()[name] = getattr(import_module(f"windlass.sdk.{_LAZY[name]}"), name)
        return found
    raise AttributeError(f"module 'windlass.sdk' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
