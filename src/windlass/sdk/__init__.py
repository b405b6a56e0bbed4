"""What Python programs use: an app with its handlers, handles of tasks, the context of an attempt, workers.

Knows the engine only as a `Client`, so that none of the server is imported; `windlass.App` brings one.
"""

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
from windlass.sdk.worker import Worker, WorkSource
from windlass.sdk.workflow import WorkflowContext
from windlass.sdk.workflow_handler import WorkflowHandler

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
