"""`kagzi.WorkflowService`: its methods, and the names of the metadata that travels beside their messages."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from windlass.contracts.registry.wire import kagzi_pb2 as pb

SERVICE = "kagzi.WorkflowService"
WORKER_ID, LEASE_TOKEN, ACTIVE = "x-windlass-worker-id", "x-windlass-lease-token", "x-windlass-active-runs"
ATTEMPT, CONTEXT = "x-windlass-attempt", "x-windlass-context-bin"
_WORD = re.compile(r"(?<!^)(?=[A-Z])")


class Method(NamedTuple):
    """The message types of a method, and its name as a Python function: `start_workflow` for `StartWorkflow`."""

    request: Any
    response: Any
    function: str


METHODS = {
    name: Method(
        getattr(pb, method.input_type.name), getattr(pb, method.output_type.name), _WORD.sub("_", name).lower()
    )
    for name, method in pb.DESCRIPTOR.services_by_name["WorkflowService"].methods_by_name.items()
}
