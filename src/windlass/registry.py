"""Workers and clients of the registry contract, for programs that use nothing else of Windlass.

Needs the extra `remote`. Speaks `kagzi.WorkflowService`, so it works with any server of that contract. It uses the
metadata that only a Windlass server adds (fences, the list of running tasks) if they are present.
"""

from __future__ import annotations

from windlass.contracts.registry.worker.client import Client, Run, RunFailed, WorkerInfo
from windlass.contracts.registry.worker.context import WorkflowContext
from windlass.contracts.registry.worker.options import Retry, WorkflowError
from windlass.contracts.registry.worker.worker import Worker

__all__ = ["Client", "Retry", "Run", "RunFailed", "Worker", "WorkerInfo", "WorkflowContext", "WorkflowError"]
