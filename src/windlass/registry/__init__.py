"""Workers and clients of the registry contract, for programs that use nothing else of Windlass.

Needs the extra `remote`. Speaks `kagzi.WorkflowService`, so that it works with any server of that contract; what a
Windlass server adds in the metadata (fences, the list of what runs) is used where it is there.
"""

from __future__ import annotations

from windlass.registry.client import Client, Run, RunFailed, WorkerInfo
from windlass.registry.context import WorkflowContext
from windlass.registry.option import Retry, WorkflowError
from windlass.registry.worker import Worker

__all__ = ["Client", "Retry", "Run", "RunFailed", "Worker", "WorkerInfo", "WorkflowContext", "WorkflowError"]
