"""Whoever starts machines, as local servers: each request is held against the vendor's own types, and refused with what
is wrong with it. They keep machines in memory; a test says how each of them ends, and what goes wrong on the way."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import jsonschema_rs
from docker.types import ContainerConfig, HostConfig
from kubernetes import client as kubernetes
from tests.contracts.machine.launchers import fly_schema

TOKEN = "the-token-of-this-test"
AT = "2026-01-02T03:04:05Z"


@dataclass
class Box:
    """A machine, whatever the vendor calls it."""

    name: str
    body: dict[str, Any]
    id: str
    begun: bool = False
    code: int | None = None
    oom: bool = False
    says: str = ""


@dataclass
class Vendor:
    """A server of machines. The next answer of a path that ends with `lose` is lost, after what was asked for was done;
    while it is `down`, all it says is 503."""

    boxes: dict[str, Box] = field(default_factory=dict)
    secrets: dict[str, dict[str, Any]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)  # what was not as the vendor's types want it
    seen: list[str] = field(default_factory=list)
    state: Any = field(default_factory=lambda: SimpleNamespace(closing=asyncio.Event()))
    lose: str = ""
    down: bool = False
    numbers: Any = field(default_factory=itertools.count)

    def end(self, name: str, code: int, *, oom: bool = False, says: str = "") -> None:
        """The machine of this name ends."""
        box = self.boxes[name]
        box.code, box.oom, box.says = code, oom, says

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        content = b""
        while True:
            message = await receive()
            content += message.get("body", b"")
            if not message.get("more_body"):
                break
        method, path = scope["method"], scope["path"]
        query = {name: values[-1] for name, values in parse_qs(scope["query_string"].decode()).items()}
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.seen.append(f"{method} {path}")
        if self.down:
            status, answer = 503, {"message": "try again later"}
        else:
            try:
                body = json.loads(content) if content else None
                status, answer = self.answer(method, path, query, headers, body)
            except Exception as error:  # what no server would take
                self.wrong.append(f"{method} {path}: {error!r}")
                status, answer = 400, {"message": f"not as the API wants it: {error}"}
        if self.lose and method == "POST" and path.endswith(self.lose):
            self.lose = ""
            return  # the connection is closed without an answer
        payload = answer if isinstance(answer, bytes) else b"" if answer is None else json.dumps(answer).encode()
        told = [(b"content-type", b"application/json"), (b"content-length", str(len(payload)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": told})
        await send({"type": "http.response.body", "body": payload})

    def answer(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: Any
    ) -> tuple[int, Any]:
        raise NotImplementedError


# --------------------------------------------------------------------------------------------- docker


class Docker(Vendor):
    """The Docker Engine API, as far as containers go. A body is good if the vendor's client makes the same one."""

    images: frozenset[str] = frozenset({"worker:latest"})
    pulled: frozenset[str] = frozenset()

    def answer(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: Any
    ) -> tuple[int, Any]:
        _, version, *rest = path.split("/")
        assert version.startswith("v1."), version
        match method, rest:
            case "POST", ["containers", "create"]:
                return self._create(query["name"], body)
            case "POST", ["images", "create"]:
                return self._pull(f"{query['fromImage']}:{query['tag']}")
            case "GET", ["containers", "json"]:
                return 200, self._list(query)
        box = self.boxes.get(rest[1]) or next((b for b in self.boxes.values() if b.id == rest[1]), None)
        if box is None:
            return 404, {"message": f"No such container: {rest[1]}"}
        match method, rest[2:]:
            case "GET", ["json"]:
                return 200, {"Id": box.id, "Name": f"/{box.name}", "State": self._state(box), "Config": box.body}
            case "GET", ["logs"]:
                text = box.says.encode()
                return 200, b"\x01\0\0\0" + len(text).to_bytes(4, "big") + text
            case "POST", ["start"]:
                return self._start(box)
            case "POST", ["stop"]:
                assert int(query["t"]) >= 0
                box.code = 143 if box.code is None else box.code
                return 204, None
            case "DELETE", []:
                if box.begun and box.code is None and query.get("force") != "true":
                    return 409, {"message": "You cannot remove a running container"}
                del self.boxes[box.name]
                return 204, None
        raise LookupError(path)

    def _create(self, name: str, body: dict[str, Any]) -> tuple[int, Any]:
        as_client_makes_it(body)
        if name in self.boxes:
            return 409, {"message": f'Conflict. The container name "/{name}" is already in use'}
        if body["Image"] not in self.images | self.pulled:
            return 404, {"message": f"No such image: {body['Image']}"}
        self.boxes[name] = Box(name, body, f"{next(self.numbers):064x}")
        return 201, {"Id": self.boxes[name].id, "Warnings": []}

    def _pull(self, image: str) -> tuple[int, Any]:
        if not image.startswith("registry/"):
            return 404, {"message": f"pull access denied for {image}"}
        self.pulled |= {image}
        return 200, b'{"status":"Pulling"}\r\n{"status":"Download complete"}\r\n'

    def _start(self, box: Box) -> tuple[int, Any]:
        if (box.body.get("Cmd") or ["ok"])[0] == "/no/such/program":
            return 400, {"message": 'exec: "/no/such/program": stat /no/such/program: no such file or directory'}
        if box.begun:
            return 304, None
        box.begun = True
        return 204, None

    def _state(self, box: Box) -> dict[str, Any]:
        status = "exited" if box.code is not None else "running" if box.begun else "created"
        return {"Status": status, "ExitCode": box.code or 0, "OOMKilled": box.oom, "Running": status == "running"}

    def _list(self, query: dict[str, str]) -> list[dict[str, Any]]:
        assert query["all"] == "true"
        [label] = json.loads(query["filters"])["label"]
        found = [b for b in self.boxes.values() if label in [f"{k}={v}" for k, v in b.body["Labels"].items()]]
        return [
            {"Id": b.id, "Names": [f"/{b.name}"], "Image": b.body["Image"], "Labels": b.body["Labels"]} for b in found
        ]


def as_client_makes_it(body: dict[str, Any]) -> None:
    """Raise unless the types of the `docker` package make just this of the same wishes."""
    host = body["HostConfig"]
    made_host = HostConfig(
        "1.41", mem_limit=host["Memory"], memswap_limit=host["MemorySwap"], nano_cpus=host["NanoCpus"],
        restart_policy=host["RestartPolicy"], init=host["Init"],
    )  # fmt: skip
    made = ContainerConfig(
        "1.41", body["Image"], body.get("Cmd"), environment=body["Env"], labels=body["Labels"],
        stop_timeout=body["StopTimeout"], host_config=made_host,
    )  # fmt: skip
    for name, value in host.items():
        assert made_host[name] == value, (name, value, made_host)
    for name, value in body.items():
        assert name == "HostConfig" or made[name] == value, (name, value, made[name])


# --------------------------------------------------------------------------------------------- kubernetes


class Kubernetes(Vendor):
    """The Kubernetes API, as far as jobs, their pods and secrets go. Objects pass through the models of the vendor's
    client: what they do not know is lost there, and found missing. Pods that are `deaf` outlive their jobs."""

    deaf = False
    lingering: list[Box] = []  # noqa: RUF012 (replaced, never changed)

    def answer(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: Any
    ) -> tuple[int, Any]:
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return 401, failure("Unauthorized")
        parts = path.strip("/").split("/")
        kind, name = parts[parts.index("namespaces") + 2], parts[parts.index("namespaces") + 3 :]
        assert path.startswith("/apis/batch/v1/" if kind == "jobs" else "/api/v1/"), path
        if method == "DELETE" and body is not None:
            through_model(body, "V1DeleteOptions")
        match method, kind, name:
            case "POST", "secrets", []:
                return self._secret(through_model(body, "V1Secret"))
            case "POST", "jobs", []:
                return self._job(through_model(body, "V1Job"))
            case "GET", "jobs", []:
                return 200, self._listed("JobList", [self._as_job(box) for box in self.boxes.values()], query)
            case "GET", "pods", []:
                boxes = [*self.boxes.values(), *self.lingering]
                return 200, self._listed("PodList", [self._as_pod(box) for box in boxes], query)
            case "GET", "secrets", []:
                return 200, self._listed("SecretList", list(self.secrets.values()), query)
            case "GET", "jobs", [one]:
                return (200, self._as_job(self.boxes[one])) if one in self.boxes else (404, failure(f"{one} not found"))
            case "DELETE", "pods", []:
                label, _, value = query["labelSelector"].partition("=")
                assert label == "batch.kubernetes.io/job-name"
                assert body["gracePeriodSeconds"] == 0
                self.lingering = [box for box in self.lingering if box.name != value]
                return 200, {"kind": "PodList", "apiVersion": "v1", "items": []}
            case "DELETE", "jobs", [one]:
                if self.deaf and one in self.boxes:
                    self.lingering = [*self.lingering, self.boxes[one]]
                return (200, {}) if self.boxes.pop(one, None) else (404, failure(f"{one} not found"))
            case "DELETE", "secrets", [one]:
                return (200, {}) if self.secrets.pop(one, None) else (404, failure(f"{one} not found"))
        raise LookupError(path)

    def _secret(self, body: dict[str, Any]) -> tuple[int, Any]:
        name = body["metadata"]["name"]
        for value in body["data"].values():
            base64.b64decode(value, validate=True)
        if name in self.secrets:
            return 409, failure(f'secrets "{name}" already exists')
        self.secrets[name] = body
        return 201, body

    def _job(self, body: dict[str, Any]) -> tuple[int, Any]:
        name, pod = body["metadata"]["name"], body["spec"]["template"]["spec"]
        if pod["restartPolicy"] not in ("Never", "OnFailure"):
            return 422, failure("restartPolicy: Required value: valid values: OnFailure, Never")
        if pod["containers"][0]["image"] == "not an image":
            return 422, failure("spec.template.spec.containers[0].image: Invalid value")
        [source] = pod["containers"][0]["envFrom"]
        assert source["secretRef"]["name"] in self.secrets
        if name in self.boxes:
            return 409, failure(f'jobs.batch "{name}" already exists')
        self.boxes[name] = Box(name, body, f"uid-{next(self.numbers)}", begun=True)
        return 201, self._as_job(self.boxes[name])

    def _as_job(self, box: Box) -> dict[str, Any]:
        condition = {"type": "Complete" if box.code == 0 else "Failed", "status": "True"}
        status = {} if box.code is None else {"conditions": [condition]}
        return {**box.body, "metadata": {**box.body["metadata"], "uid": box.id}, "status": status}

    def _as_pod(self, box: Box) -> dict[str, Any]:
        state: dict[str, Any] = {"running": {"startedAt": AT}}
        if box.code is not None:
            reason = "OOMKilled" if box.oom else "Completed" if box.code == 0 else "Error"
            state = {
                "terminated": {
                    "exitCode": box.code,
                    "reason": reason,
                    "message": box.says,
                    "startedAt": AT,
                    "finishedAt": AT,
                }
            }
        labels = {**box.body["metadata"]["labels"], "batch.kubernetes.io/job-name": box.name}
        told = {
            "apiVersion": "v1", "kind": "Pod", "spec": box.body["spec"]["template"]["spec"],
            "metadata": {"name": f"{box.name}-x", "uid": f"pod-{box.id}", "labels": labels, "creationTimestamp": AT},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "machine", "image": "i", "imageID": "i", "ready": True, "restartCount": 0, "state": state},
            ]},
        }  # fmt: skip
        kubernetes.ApiClient().deserialize(SimpleNamespace(data=json.dumps(told)), "V1Pod")
        return told

    def _listed(self, kind: str, items: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
        name, _, value = query["labelSelector"].partition("=")
        return {"kind": kind, "items": [one for one in items if one["metadata"]["labels"].get(name) == value]}


def through_model(body: dict[str, Any], model: str) -> dict[str, Any]:
    """Raise unless the model of the vendor's client keeps all of it."""
    api = kubernetes.ApiClient()
    kept: dict[str, Any] = api.sanitize_for_serialization(
        api.deserialize(SimpleNamespace(data=json.dumps(body)), model)
    )
    assert kept == body, f"the model keeps {kept} of {body}"
    return kept


def failure(message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message}


# --------------------------------------------------------------------------------------------- fly


class Fly(Vendor):
    """The Machines API of Fly.io; see `fly_schema`. Machines that end are destroyed, and are known by their id then."""

    def answer(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: Any
    ) -> tuple[int, Any]:
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return 401, {"error": "unauthorized"}
        assert path.startswith("/v1/apps/exports/machines"), path
        id_, _, verb = path.removeprefix("/v1/apps/exports/machines").strip("/").partition("/")
        if not id_:
            return self._create(body) if method == "POST" else (200, [self._told(b) for b in self._listed()])
        box = next((b for b in self.boxes.values() if b.id == id_), None)
        if box is None:
            return 404, {"error": "machine not found"}
        match method, verb:
            case "GET", "":
                return 200, self._told(box)
            case "POST", "stop":
                jsonschema_rs.validate(fly_schema.STOP, body)
                box.code = 143 if box.code is None else box.code
                return 200, {"ok": True}
            case "DELETE", "":
                if box.code is None and query.get("force") != "true":
                    return 412, {"error": "failed_precondition: machine still active, refusing to destroy"}
                del self.boxes[box.name]
                return 200, {"ok": True}
        raise LookupError(path)

    def _create(self, body: dict[str, Any]) -> tuple[int, Any]:
        jsonschema_rs.validate(fly_schema.CREATE, body)
        if body["config"]["image"] == "not an image":
            return 400, {"error": "invalid image identifier"}
        known = self.boxes.get(body["name"])
        if known is not None:
            return 409, {
                "error": f"already_exists: unique machine name violation, machine ID {known.id} already exists"
            }
        box = self.boxes[body["name"]] = Box(body["name"], body, f"{next(self.numbers):014x}", begun=True)
        return 200, self._told(box)

    def _listed(self) -> list[Box]:
        return [box for box in self.boxes.values() if box.code is None]  # what is destroyed is not listed

    def _told(self, box: Box) -> dict[str, Any]:
        ended = {"exit_code": box.code or 0, "oom_killed": box.oom, "requested_stop": False, "exited_at": AT}
        events = [] if box.code is None else [{"type": "exit", "status": "stopped", "request": {"exit_event": ended}}]
        told = {
            "id": box.id, "name": box.name, "state": "started" if box.code is None else "destroyed",
            "region": box.body["region"], "instance_id": f"i-{box.id}", "config": box.body["config"], "events": events,
        }  # fmt: skip
        jsonschema_rs.validate(fly_schema.MACHINE, told)
        return told
