"""Every method of our gRPC services × every role × the own namespace and another, made from their descriptors and from
the table of calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import msgspec
import pytest
from tests.isolation.subject import ELSEWHERE, PAYLOAD, ROLES, SECRET, VICTIM, Unbuildable, Victim, requests

from windlass.contracts.registry.wire import kagzi_pb2
from windlass.contracts.session.server.server import CLIENT, WORKER
from windlass.contracts.session.wire import session_pb2
from windlass.contracts.session.wire.calls import CALLS, STEPS
from windlass.contracts.session.wire.messages import report_message
from windlass.core.access import Role
from windlass.core.command import Complete
from windlass.serve import open_sessions

REGISTRY = "kagzi.WorkflowService"
SERVICES = {
    REGISTRY: kagzi_pb2.DESCRIPTOR.services_by_name["WorkflowService"],
    WORKER: session_pb2.DESCRIPTOR.services_by_name["Worker"],
    CLIENT: session_pb2.DESCRIPTOR.services_by_name["Client"],
}
MODULES = {"kagzi": kagzi_pb2, "windlass.v1": session_pb2}
WITHOUT_KEY = {"HealthCheck"}
READS = ("Get", "List", "Wait", "LoadSteps")
REFUSED = {"NOT_FOUND", "PERMISSION_DENIED", "FAILED_PRECONDITION", "INVALID_ARGUMENT"}
TEXTS = {
    "workflow_type": "job", "task_queue": "q", "cron_expr": "0 0 0 1 1 *", "step_id": "s", "step_name": "s",
    "hostname": "h", "version": "1", "idempotency_key": "k", "workflow_id": "w", "message": "m", "subject": "s",
    "subject_id": "s", "service": "", "page_token": "", "filter_status": "",
}  # fmt: skip


class Said:
    """One request, as whoever calls names it."""

    def __init__(self, path: str, name: str, message: Any, names: bool, *, stream: bool = False) -> None:
        self.path, self.name, self.message, self.names, self.stream = path, name, message, names, stream

    def __str__(self) -> str:
        return f"{self.path} {self.name} {str(self.message)[:300]}"

    @property
    def role(self) -> Role | None:
        if self.name in WITHOUT_KEY:
            return None
        return Role.VIEWER if self.name.startswith(READS) else Role.SUBMITTER


def everything(world: Victim, namespace: str) -> Iterator[Said]:
    for service, described in SERVICES.items():
        for method in described.methods:
            path = f"/{service}/{method.name}"
            module = MODULES[method.input_type.file.package]
            kind = getattr(module, method.input_type.name)
            if service == CLIENT:
                yield from calls(world, path, kind)
            elif method.client_streaming:
                yield from sessions(world, path, kind)
            elif service == WORKER:
                yield Said(path, method.name, _of_worker(world, kind), True)
            else:
                message = kind()
                names = _filled(world, message, namespace)
                yield Said(path, method.name, message, names or namespace == VICTIM)


def sessions(world: Victim, path: str, kind: Any) -> Iterator[Said]:
    hello = {"worker": "w", "queues": ["q"], "lease_ttl_s": 30.0, "every_kind": True}
    for more in ({"namespace": VICTIM}, {"lease_id": world.token.bytes}):
        yield Said(path, "Session", kind(hello=session_pb2.Hello(**hello, **more)), True, stream=True)


def calls(world: Victim, path: str, kind: Any) -> Iterator[Said]:
    for name, struct in CALLS.items():
        asked = requests(world, struct) if name != "RecordStep" else steps(world)
        for body, names in asked:
            yield Said(path, name, kind(name=name, body=msgspec.msgpack.encode(body)), names)


def steps(world: Victim) -> Iterator[tuple[dict[str, Any], bool]]:
    for name, struct in STEPS.items():
        for said, _ in requests(world, struct):
            yield {"name": name, "command": said}, True


def _of_worker(world: Victim, kind: Any) -> Any:
    message = kind(lease_id=world.token.bytes)
    if "reports" in kind.DESCRIPTOR.fields_by_name:
        message.reports.append(report_message(1, Complete(world.ids["task_id"], 1, world.token, PAYLOAD)))
    unknown = {field.name for field in kind.DESCRIPTOR.fields} - {"lease_id", "reports", "last_output"}
    if unknown:
        raise Unbuildable(f"{kind.__name__}: the matrix has no value for {unknown}: add one in `_of_worker`")
    return message


def _filled(world: Victim, message: Any, namespace: str) -> bool:
    """Give every field a value; whether one of them names something of the victim's."""
    names = False
    for field in message.DESCRIPTOR.fields:
        if field.name == "namespace_id":
            message.namespace_id = namespace
        elif field.name == "run_id":
            message.run_id, names = str(world.ids["task_id"]), True
        elif field.name in world.ids.keys() - TEXTS.keys() and field.type == field.TYPE_STRING:
            setattr(message, field.name, str(world.ids[field.name]))
            names = True
        elif field.type == field.TYPE_STRING:
            text = TEXTS.get(field.name, "job" if field.is_repeated else None)
            if text is None:
                raise Unbuildable(
                    f"{message.DESCRIPTOR.name}: the matrix has no value for {field.name!r}: add it to TEXTS"
                )
            if field.is_repeated:
                getattr(message, field.name).append(text)
            else:
                setattr(message, field.name, text)
        elif field.type == field.TYPE_BYTES:
            setattr(message, field.name, b"null")
    return names


class Caller:
    def __init__(self, channel: grpc.aio.Channel, key: str | None) -> None:
        self._channel, self._metadata = channel, [] if key is None else [("authorization", f"Bearer {key}")]

    async def send(self, said: Said) -> tuple[str, bytes]:
        """Its status, and what was told."""
        try:
            if said.stream:
                return await self._open(said)
            method = self._channel.unary_unary(said.path, type(said.message).SerializeToString, bytes)
            return "OK", await method(said.message, metadata=self._metadata, timeout=2.0)
        except grpc.aio.AioRpcError as error:
            return error.code().name, (error.details() or "").encode()

    async def _open(self, said: Said) -> tuple[str, bytes]:
        call = self._channel.stream_stream(said.path, type(said.message).SerializeToString, bytes)
        stream = call(metadata=self._metadata)
        await stream.write(said.message)
        told = await stream.read()
        stream.cancel()
        return "OK", b"" if told is grpc.aio.EOF else told


@pytest.fixture
async def channel(world: Victim) -> AsyncIterator[grpc.aio.Channel]:
    async with (
        open_sessions(world.engine, grpc="127.0.0.1:0", api_key="root") as url,
        grpc.aio.insecure_channel(url.removeprefix("http://")) as channel,
    ):
        yield channel


async def test_nobody_gets_in_without_a_key_or_with_a_credential_of_another_kind(
    world: Victim, channel: grpc.aio.Channel
) -> None:
    wrong = []
    for key in (None, "wl_unknown", str(world.token)):
        for said in everything(world, VICTIM):
            status, _ = await Caller(channel, key).send(said)
            if said.role is not None and status != "UNAUTHENTICATED":
                wrong.append(f"{said}: {status} for {key}")
    assert not wrong, "\n".join(wrong)


async def test_no_role_reaches_another_namespace(world: Victim, channel: grpc.aio.Channel) -> None:
    before, wrong = await world.rows(), []
    for role in ROLES:
        caller = Caller(channel, world.keys[ELSEWHERE, role])
        for namespace in (VICTIM, ELSEWHERE, ""):
            for said in everything(world, namespace):
                status, told = await caller.send(said)
                if (problem := _wrong(said, role, status, told)) is not None:
                    wrong.append(f"{role}: {said}: {problem}: {told[:200]!r}")
    assert not wrong, "\n".join(wrong)
    assert await world.rows() == before


def _wrong(said: Said, role: Role, status: str, told: bytes) -> str | None:
    if SECRET.encode() in told and SECRET not in str(said):
        return "tells of the victim"
    if status in ("INTERNAL", "UNKNOWN", "UNIMPLEMENTED"):
        return f"is a defect, {status}"
    if said.role is None:
        return None
    if ROLES.index(role) < ROLES.index(said.role):
        return None if status == "PERMISSION_DENIED" else f"is not refused for its role, {status}"
    if said.names and status not in REFUSED and not _tells_nothing(said, told):
        return f"names the victim and is answered, {status}"
    return None


def _tells_nothing(said: Said, told: bytes) -> bool:
    """An answer in which everything is refused, or nothing was found."""
    if said.name == "ReportLate":
        return not session_pb2.Answers.FromString(told).accepted
    if not said.path.endswith("/Call"):
        return False
    answer = msgspec.msgpack.decode(session_pb2.CallReply.FromString(told).body)
    return answer == {} or (isinstance(answer, list) and all(isinstance(one, dict) and "code" in one for one in answer))


async def test_each_role_reaches_its_own_namespace_as_far_as_it_may(world: Victim, channel: grpc.aio.Channel) -> None:
    wrong, world.own = [], VICTIM
    for role in ROLES:
        caller = Caller(channel, world.keys[VICTIM, role])
        for said in everything(world, VICTIM):
            status, told = await caller.send(said)
            may = said.role is None or ROLES.index(role) >= ROLES.index(said.role)
            only_engine = b"only the engine sets this" in told
            if (status in ("UNAUTHENTICATED", "PERMISSION_DENIED") and not only_engine) is may:
                wrong.append(f"{role}: {said}: {status} {told[:200]!r}")
            if role is Role.VIEWER and said.role is role and said.names and status == "NOT_FOUND":
                wrong.append(f"{role}: {said}: is not found, so that the matrix proves nothing")
    assert not wrong, "\n".join(wrong)
