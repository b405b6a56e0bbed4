"""Machines as Jobs of a Kubernetes cluster, by its API. What a machine is told is in a Secret beside its Job.

The Secret comes first, so that no pod waits for it, and goes with the Job; one without a Job is listed as a machine of
which nothing else is left.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from windlass.core.machine import OUT_OF_MEMORY, TIME_LIMIT, Phase, Sighting, read_machine_name
from windlass.engine.launcher import LauncherAway, LaunchRefused, Order
from windlass.launchers.api import Api, exit_code_of, quietly

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LABEL = "windlass.dev/installation"
KEPT_S = 3600  # if nobody removes it
CONTAINER = "machine"
LOOK_S = 0.5
HOPELESS = frozenset({"InvalidImageName", "ErrImageNeverPull", "ImagePullBackOff"})


class KubernetesLauncher:
    """Jobs in one namespace. Inside a cluster nothing need be given: the service account of the pod says it all."""

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
        self._api = Api(url, headers=headers, context=context)
        self.place = f"{url}/{self._namespace}"

    @classmethod
    def reached_by(cls, variables: Mapping[str, str]) -> Self:
        """For a server outside of the cluster, or one that is to use another namespace."""
        authority = variables.get("KUBERNETES_CA_FILE")
        return cls(
            variables.get("KUBERNETES_URL"), namespace=variables.get("KUBERNETES_NAMESPACE"),
            token=variables.get("KUBERNETES_TOKEN"), authority=None if authority is None else Path(authority),
        )  # fmt: skip

    def open(self, wake: Callable[[], None]) -> None:
        """Nobody tells us: the sweep sees it."""

    def close(self) -> None:
        pass

    async def start(self, order: Order) -> Sighting:
        if order.image is None:
            raise LaunchRefused("a job needs an image: set it in the queue's delivery")
        await self._api.expect("POST", self._core("secrets"), secret_of(order), also=(409,))
        made = await self._api.expect("POST", self._batch("jobs"), job_of(order), also=(409,))
        if made.status == 409:
            seen = await self.look(order.name, None)
            if seen is None:
                raise LauncherAway("the job was removed while it was started")
            return seen
        return Sighting(name=order.name, id=made.content["metadata"]["uid"], phase=Phase.STARTING)

    async def stop(self, name: str, machine_id: str | None, grace_s: float) -> None:  # noqa: ARG002
        """The pod gets the grace of its own specification. What still runs after `grace_s` is ended at once: as long as
        it does, it may write."""
        order: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        at_once = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        pods = {"labelSelector": f"batch.kubernetes.io/job-name={name}"}
        await quietly(self._api, "DELETE", f"{self._batch('jobs')}/{name}", order)
        until_s = time.monotonic() + grace_s
        while time.monotonic() < until_s and await self._items(self._core("pods"), pods):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        await quietly(self._api, "DELETE", self._core("pods"), at_once, query=pods)
        await quietly(self._api, "DELETE", f"{self._core('secrets')}/{name}")

    async def machines(self, installation: str) -> list[Sighting]:
        query = {"labelSelector": f"{LABEL}={installation}"}
        jobs = await self._items(self._batch("jobs"), query)
        pods = _newest_pods(await self._items(self._core("pods"), query))
        secrets = await self._items(self._core("secrets"), query)
        seen = {job["metadata"]["name"]: _sighting(job, pods.get(job["metadata"]["name"])) for job in jobs}
        for secret in secrets:
            name = secret["metadata"]["name"]
            seen.setdefault(name, Sighting(name=name, id=name, phase=Phase.STARTING))
        gone = {job["metadata"]["name"] for job in jobs if job["metadata"].get("deletionTimestamp")}
        return [one for name, one in seen.items() if read_machine_name(name) is not None and name not in gone]

    async def look(self, name: str, machine_id: str | None) -> Sighting | None:  # noqa: ARG002
        answer = await self._api.call("GET", f"{self._batch('jobs')}/{name}")
        if answer.status == 404 or (answer.status == 200 and answer.content["metadata"].get("deletionTimestamp")):
            return None
        if answer.status != 200:
            raise LauncherAway(answer.message)
        pods = await self._items(self._core("pods"), {"labelSelector": f"batch.kubernetes.io/job-name={name}"})
        return _sighting(answer.content, _newest_pods(pods).get(name))

    async def _items(self, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
        try:
            found = await self._api.expect("GET", path, query=query)
        except LaunchRefused as error:
            raise LauncherAway(str(error)) from None
        items: list[dict[str, Any]] = found.content["items"]
        return items

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
    """One pod, once. It ends itself a little after its time, and goes by itself if nobody removes it."""
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
    """By the name of their job."""
    named = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    found: dict[str, dict[str, Any]] = {}
    for pod in named:
        labels = pod["metadata"].get("labels", {})
        found[labels.get("batch.kubernetes.io/job-name") or labels.get("job-name", "")] = pod
    return found


def _sighting(job: dict[str, Any], pod: dict[str, Any] | None) -> Sighting:
    name, id_ = job["metadata"]["name"], job["metadata"]["uid"]
    status = job.get("status", {})
    over = [c for c in status.get("conditions") or () if c["type"] in ("Complete", "Failed") and c["status"] == "True"]
    container = _container(pod)
    ended = container.get("terminated")
    if ended is not None:
        reason = {"OOMKilled": OUT_OF_MEMORY, "DeadlineExceeded": TIME_LIMIT}.get(ended.get("reason", ""), "")
        return Sighting(
            name=name, id=id_, phase=Phase.EXITED, exit_code=exit_code_of(ended.get("exitCode")), reason=reason,
            output=ended.get("message", ""), instance_id=_uid(pod),
        )  # fmt: skip
    waiting = container.get("waiting", {})
    if waiting.get("reason") in HOPELESS:
        why = f"{waiting['reason']} {waiting.get('message', '')}".strip()
        return Sighting(name=name, id=id_, phase=Phase.EXITED, reason=why[:500], instance_id=_uid(pod))
    if over:
        reason = TIME_LIMIT if over[0].get("reason") == "DeadlineExceeded" else ""
        code = 0 if over[0]["type"] == "Complete" else None
        return Sighting(name=name, id=id_, phase=Phase.EXITED, exit_code=code, reason=reason, instance_id=_uid(pod))
    phase = Phase.RUNNING if "running" in container else Phase.STARTING
    return Sighting(name=name, id=id_, phase=phase, instance_id=_uid(pod))


def _container(pod: dict[str, Any] | None) -> dict[str, Any]:
    """The state of the only container of a pod."""
    statuses = (pod or {}).get("status", {}).get("containerStatuses") or [{}]
    state: dict[str, Any] = statuses[0].get("state") or {}
    return state


def _uid(pod: dict[str, Any] | None) -> str | None:
    return None if pod is None else pod["metadata"].get("uid")


def _mounted(name: str) -> str | None:
    try:
        return (ACCOUNT / name).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
