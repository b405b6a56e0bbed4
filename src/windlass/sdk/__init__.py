"""What Python programs use: an app with its handlers, handles of tasks, the context of an attempt, workers.

Knows the engine only as a `Client`, so that none of the server is imported; `windlass.App` brings one. Names are
imported when they are first used: a program on a machine of its own (`windlass.sdk.machine`) needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.sdk.app import App, AppSettings
    from windlass.sdk.asked import Child, StepFailed
    from windlass.sdk.client import Client
    from windlass.sdk.compose import Call, Chain, Group, chain, group
    from windlass.sdk.context import Context, current
    from windlass.sdk.duration import Duration
    from windlass.sdk.group_handle import ChainHandle, GroupHandle
    from windlass.sdk.handle import TaskHandle
    from windlass.sdk.handler import Handler
    from windlass.sdk.option import TaskOptions
    from windlass.sdk.schedule import Schedule
    from windlass.sdk.signals import Cancel, Fail, Retry, TaskFailed
    from windlass.sdk.step import StepFunction, StepOptions
    from windlass.sdk.work_source import WorkSource
    from windlass.sdk.worker import Worker
    from windlass.sdk.workflow import WorkflowContext
    from windlass.sdk.workflow_handler import WorkflowHandler

_LATER = {
    "App": "app",
    "AppSettings": "app",
    "Call": "compose",
    "Cancel": "signals",
    "Chain": "compose",
    "ChainHandle": "group_handle",
    "Child": "asked",
    "Client": "client",
    "Context": "context",
    "Duration": "duration",
    "Fail": "signals",
    "Group": "compose",
    "GroupHandle": "group_handle",
    "Handler": "handler",
    "Retry": "signals",
    "Schedule": "schedule",
    "StepFailed": "asked",
    "StepFunction": "step",
    "StepOptions": "step",
    "TaskFailed": "signals",
    "TaskHandle": "handle",
    "TaskOptions": "option",
    "WorkSource": "work_source",
    "Worker": "worker",
    "WorkflowContext": "workflow",
    "WorkflowHandler": "workflow_handler",
    "chain": "compose",
    "current": "context",
    "group": "compose",
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
    if name in _LATER:
        found = globals()[name] = getattr(import_module(f"windlass.sdk.{_LATER[name]}"), name)
        return found
    raise AttributeError(f"module 'windlass.sdk' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
