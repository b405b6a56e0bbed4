"""Workers and clients of the registry contract, for programs that use nothing else of Windlass.

Needs the extra `remote`. Speaks `kagzi.WorkflowService`, so that it works with any server of that contract; what a
Windlass server adds in the metadata (fences, the list of what runs) is used where it is there.
"""

from __future__ import annotations

from windlass.contracts.registry.worker.client import Client, Run, RunFailed, WorkerInfo
from windlass.contracts.registry.worker.context import WorkflowContext
from windlass.contracts.registry.worker.options import Retry, WorkflowError
from windlass.contracts.registry.worker.worker import Worker

__all__ = ["Client", "Retry", "Run", "RunFailed", "Worker", "WorkerInfo", "WorkflowContext", "WorkflowError"]
