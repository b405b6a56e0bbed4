"""Machines as Jobs of a Kubernetes cluster. The environment of a machine is in a Secret with the name of its Job.

The Secret is created before the Job, so that no pod waits for it, and is deleted with it. A Secret without a Job is
listed as a machine, so that the sweep removes it.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from windlass.contracts.machine.launchers.api import Api, RemoteLauncher, exit_code_of
from windlass.contracts.machine.launchers.port import LauncherUnavailable, LaunchRefused, Order
from windlass.contracts.machine.rules import OUT_OF_MEMORY, TIME_LIMIT, MachineStatus, Phase, read_machine_name

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LABEL = "windlass.dev/installation"
KEPT_S = 3600  # Kubernetes then deletes a finished Job that no server has removed
CONTAINER = "machine"
POLL_S = 0.5
CANNOT_START = frozenset({"InvalidImageName", "ErrImageNeverPull", "ImagePullBackOff"})


class KubernetesLauncher(RemoteLauncher):
    """Jobs in one namespace. Inside a cluster every argument defaults to the service account of the pod."""

    name = "kubernetes"

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        token: str | None = None,
        authority: Path | None = None,
    ) -> None:
        url = url or "https://kubernetes.default.svc"
        self._namespace = namespace or _mounted("namespace") or "default"
        token = token or _mounted("token")
        authority = authority or ((ACCOUNT / "ca.crt") if (ACCOUNT / "ca.crt").exists() else None)
        context = None if authority is None else ssl.create_default_context(cafile=str(authority))
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        super().__init__(Api(url, headers=headers, context=context), f"{url}/{self._namespace}")

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> Self:
        """Read the KUBERNETES_* variables, for a server outside the cluster or one that uses another namespace."""
        authority = variables.get("KUBERNETES_CA_FILE")
        return cls(
            variables.get("KUBERNETES_URL"), namespace=variables.get("KUBERNETES_NAMESPACE"),
            token=variables.get("KUBERNETES_TOKEN"), authority=None if authority is None else Path(authority),
        )  # fmt: skip

    async def start(self, order: Order) -> MachineStatus:
        if order.image is None:
            raise LaunchRefused("a job needs an image: set it in the queue's delivery")
        (await self._api.call("POST", self._core("secrets"), secret_of(order))).expect(409)
        created = (await self._api.call("POST", self._batch("jobs"), job_of(order))).expect(409)
        if created.status == 409:
            status = await self.status(order.name, None)
            if status is None:
                raise LauncherUnavailable(f"job {order.name} was removed while it was starting")
            return status
        return MachineStatus(name=order.name, id=created.content["metadata"]["uid"], phase=Phase.STARTING)

    async def stop(self, name: str, machine_id: str | None, grace_s: float) -> None:  # noqa: ARG002
        """The pod gets the grace period of its specification. One that still runs after `grace_s` is killed, because it
        could still write its result."""
        order: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        at_once = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        pods = {"labelSelector": f"batch.kubernetes.io/job-name={name}"}
        await self._api.stop("DELETE", f"{self._batch('jobs')}/{name}", order)
        until_s = time.monotonic() + grace_s
        while time.monotonic() < until_s and await self._items(self._core("pods"), pods):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        await self._api.stop("DELETE", self._core("pods"), at_once, query=pods)
        await self._api.stop("DELETE", f"{self._core('secrets')}/{name}")

    async def machines(self, installation: str) -> list[MachineStatus]:
        query = {"labelSelector": f"{LABEL}={installation}"}
        jobs = await self._items(self._batch("jobs"), query)
        pods = _newest_pods(await self._items(self._core("pods"), query))
        secrets = await self._items(self._core("secrets"), query)
        found = {job["metadata"]["name"]: _read_status(job, pods.get(job["metadata"]["name"])) for job in jobs}
        for secret in secrets:
            name = secret["metadata"]["name"]
            found.setdefault(name, MachineStatus(name=name, id=name, phase=Phase.STARTING))
        deleted = {job["metadata"]["name"] for job in jobs if job["metadata"].get("deletionTimestamp")}
        return [status for name, status in found.items() if read_machine_name(name) is not None and name not in deleted]

    async def status(self, name: str, machine_id: str | None) -> MachineStatus | None:  # noqa: ARG002
        answer = await self._api.get(f"{self._batch('jobs')}/{name}", 404)
        if answer.status == 404 or answer.content["metadata"].get("deletionTimestamp"):
            return None
        pods = await self._items(self._core("pods"), {"labelSelector": f"batch.kubernetes.io/job-name={name}"})
        return _read_status(answer.content, _newest_pods(pods).get(name))

    async def _items(self, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
        return (await self._api.get(path, query=query)).content["items"]  # type: ignore[no-any-return]

    def _batch(self, kind: str) -> str:
        return f"/apis/batch/v1/namespaces/{self._namespace}/{kind}"

    def _core(self, kind: str) -> str:
        return f"/api/v1/namespaces/{self._namespace}/{kind}"


def secret_of(order: Order) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": order.name, "labels": {LABEL: order.installation}},
        "type": "Opaque",
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in sorted(order.env.items())},
    }


def job_of(order: Order) -> dict[str, Any]:
    """A Job that runs one pod once. Kubernetes ends it a minute after its time limit, and deletes it after `KEPT_S`."""
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": order.image,
        "envFrom": [{"secretRef": {"name": order.name}}],
        "resources": {
            "requests": {"cpu": str(order.cpus), "memory": f"{order.memory_mb}Mi"},
            "limits": {"cpu": str(order.cpus), "memory": f"{order.memory_mb}Mi"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if order.command:
        container["command"] = list(order.command)
    labels = {LABEL: order.installation}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": order.name, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": round(order.run_s) + 60,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "terminationGracePeriodSeconds": max(1, round(order.grace_s)),
                    "containers": [container],
                },
            },
        },
    }


def _newest_pods(pods: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The newest pod of each job, by the job's name."""
    found: dict[str, dict[str, Any]] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))):
        labels = pod["metadata"].get("labels", {})
        found[labels.get("batch.kubernetes.io/job-name") or labels.get("job-name", "")] = pod
    return found


def _read_status(job: dict[str, Any], pod: dict[str, Any] | None) -> MachineStatus:
    """The state of the only container has more details than the conditions of the job, and often comes earlier."""
    pod = pod or {}
    running = MachineStatus(
        name=job["metadata"]["name"], id=job["metadata"]["uid"], phase=Phase.RUNNING,
        instance_id=pod.get("metadata", {}).get("uid"),
    )  # fmt: skip
    container = (pod.get("status", {}).get("containerStatuses") or [{}])[0].get("state") or {}
    ended = container.get("terminated")
    if ended is not None:
        reason = {"OOMKilled": OUT_OF_MEMORY, "DeadlineExceeded": TIME_LIMIT}.get(ended.get("reason", ""), "")
        code, output = exit_code_of(ended.get("exitCode")), ended.get("message", "")
        return replace(running, phase=Phase.EXITED, exit_code=code, reason=reason, output=output)
    waiting = container.get("waiting", {})
    if waiting.get("reason") in CANNOT_START:
        reason = f"{waiting['reason']} {waiting.get('message', '')}".strip()
        return replace(running, phase=Phase.EXITED, reason=reason[:500])
    for condition in job.get("status", {}).get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            reason = TIME_LIMIT if condition.get("reason") == "DeadlineExceeded" else ""
            code = 0 if condition["type"] == "Complete" else None
            return replace(running, phase=Phase.EXITED, exit_code=code, reason=reason)
    return running if "running" in container else replace(running, phase=Phase.STARTING)


def _mounted(name: str) -> str | None:
    try:
        return (ACCOUNT / name).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
