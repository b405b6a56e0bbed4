"""The library for Python programs: apps with their handlers, handles of tasks, contexts of attempts, workers.

Knows the engine only as a `Client`, so that none of the server is imported; `windlass.App` provides one. Names are
imported when they are first used: a program on its own machine (`windlass.sdk.machine`) needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.sdk.app import App as App
    from windlass.sdk.app import AppSettings as AppSettings
    from windlass.sdk.client import Client as Client
    from windlass.sdk.context import Context as Context
    from windlass.sdk.context import current as current
    from windlass.sdk.duration import Duration as Duration
    from windlass.sdk.handler.group_handle import ChainHandle as ChainHandle
    from windlass.sdk.handler.group_handle import GroupHandle as GroupHandle
    from windlass.sdk.handler.groups import Call as Call
    from windlass.sdk.handler.groups import Chain as Chain
    from windlass.sdk.handler.groups import Group as Group
    from windlass.sdk.handler.groups import chain as chain
    from windlass.sdk.handler.groups import group as group
    from windlass.sdk.handler.handle import TaskHandle as TaskHandle
    from windlass.sdk.handler.handler import Handler as Handler
    from windlass.sdk.handler.options import StepOptions as StepOptions
    from windlass.sdk.handler.options import TaskOptions as TaskOptions
    from windlass.sdk.schedule import Schedule as Schedule
    from windlass.sdk.signals import Cancel as Cancel
    from windlass.sdk.signals import Fail as Fail
    from windlass.sdk.signals import Retry as Retry
    from windlass.sdk.signals import TaskFailed as TaskFailed
    from windlass.sdk.worker.work_source import WorkSource as WorkSource
    from windlass.sdk.worker.worker import Worker as Worker
    from windlass.sdk.workflow.awaitables import Child as Child
    from windlass.sdk.workflow.awaitables import StepFailed as StepFailed
    from windlass.sdk.workflow.context import WorkflowContext as WorkflowContext
    from windlass.sdk.workflow.handler import WorkflowHandler as WorkflowHandler
    from windlass.sdk.workflow.step import StepFunction as StepFunction

_MODULES = {
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
    "StepOptions": "handler.options",
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

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found = globals()[name] = getattr(import_module(f"windlass.sdk.{_MODULES[name]}"), name)
        return found
    raise AttributeError(f"module 'windlass.sdk' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
