"""Programs as workers by stdin and stdout: `Service` starts one and gives it work, `python -m windlass.stdio` is one.

Names are imported when they are first used: a worker starts without the client, and without the rest of Windlass.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.contracts.stdio.protocol.environment import Environment
    from windlass.contracts.stdio.protocol.proxy import Proxy
    from windlass.contracts.stdio.protocol.service import Service
    from windlass.contracts.stdio.protocol.shm import NDArray, SharedMemory, share
    from windlass.contracts.stdio.protocol.task import Task, TaskError, Update

_LATER = {
    "Environment": "environment",
    "NDArray": "shm",
    "Proxy": "proxy",
    "Service": "service",
    "SharedMemory": "shm",
    "Task": "task",
    "TaskError": "task",
    "Update": "task",
    "share": "shm",
}

__all__ = ["Environment", "NDArray", "Proxy", "Service", "SharedMemory", "Task", "TaskError", "Update", "share"]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"windlass.contracts.stdio.protocol.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
