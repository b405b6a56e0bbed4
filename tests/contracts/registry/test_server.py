"""How the service is reached: health, reflection, TLS, and without a key where that was asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from tests.contracts.registry.client import Client, Refused
from tests.kit.world import KEY

from windlass import Engine
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.session.client.remote import connect as connect_remote
from windlass.errors import Invalid
from windlass.serve import open_sessions

pytestmark = pytest.mark.slow


async def test_health_is_told_in_both_ways(client: Client, live_engine: Engine) -> None:
    own = await client.HealthCheck(service="whatever")
    standard = await health_pb2_grpc.HealthStub(client.channel).Check(
        health_pb2.HealthCheckRequest(service="kagzi.WorkflowService")
    )

    assert own.status == pb.HealthCheckResponse.SERVING
    assert own.timestamp.seconds > 0
    assert own.timestamp.nanos == 0
    assert standard.status == health_pb2.HealthCheckResponse.SERVING


async def test_health_without_a_database_is_told_too(
    client: Client, live_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        from windlass.errors import StoreBusy

        raise StoreBusy

    monkeypatch.setattr(live_engine.tasks, "time", away)

    assert (await client.HealthCheck()).status == pb.HealthCheckResponse.NOT_SERVING


async def test_without_a_database_calls_say_unavailable(
    client: Client, live_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from windlass.errors import StoreBusy

    async def away(*_: Any, **__: Any) -> None:
        raise StoreBusy

    monkeypatch.setattr(live_engine.tasks, "page", away)

    with Refused("UNAVAILABLE", "UNAVAILABLE") as refused:
        await client.ListWorkflowRuns()
    assert not refused.detail.non_retryable


async def test_a_defect_is_told_as_such_and_shows_nothing(
    client: Client, live_engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(live_engine.tasks, "page", broken)

    with Refused("INTERNAL", "INTERNAL") as refused:
        await client.ListWorkflowRuns()
    assert "secret" not in refused.detail.message
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_every_service_is_found_by_reflection(client: Client, version: str) -> None:
    """As grpcurl does: ask which there are, then for the files of each, from which its messages can be built."""
    ask = client.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    [listed] = [
        answer
        async for answer in ask(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), metadata=client.metadata
        )
    ]
    names = [service.name for service in listed.list_services_response.service]
    asked = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in names]

    assert set(names) == {
        "kagzi.WorkflowService", "windlass.v1.Worker", "windlass.v1.Client", "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
    }  # fmt: skip
    for name, answer in zip(names, [one async for one in ask(iter(asked), metadata=client.metadata)], strict=True):
        pool = DescriptorPool()
        for file in reversed(answer.file_descriptor_response.file_descriptor_proto):
            pool.AddSerializedFile(file)
        [method, *_] = pool.FindServiceByName(name).methods
        assert method.input_type.fields


async def test_reflection_says_what_it_does_not_know(client: Client) -> None:
    ask = client.channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = [reflection_pb2.ServerReflectionRequest(file_containing_symbol="nobody.Knows")]

    [answer] = [one async for one in ask(iter(asked), metadata=client.metadata)]

    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_open_on_loopback_needs_no_key(live_engine: Engine, connect: Any) -> None:
    async with open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY, registry={"open": True}) as url:
        stranger = connect(url, key=None)
        run_id = await stranger.start()
        worker_id = await stranger.register()

        assert (await stranger.poll(worker_id)).run_id == run_id
        with Refused("UNAUTHENTICATED", "UNAUTHORIZED"):  # who shows a key shows a right one
            await connect(url, key="wl_wrong").start()


async def test_open_elsewhere_is_refused(live_engine: Engine) -> None:
    with pytest.raises(Invalid, match="loopback"):
        async with open_sessions(live_engine, grpc="0.0.0.0:0", registry={"open": True}):
            pass


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    files = tmp_path / "server.pem", tmp_path / "server.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-out", str(files[0]), "-keyout", str(files[1])],
        check=True, capture_output=True,
    )  # fmt: skip
    return files


async def test_both_services_speak_tls(
    live_engine: Engine, certificate: tuple[Path, Path], stubs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem, key = certificate
    async with open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY, certificate=pem, key=key) as url:
        assert url.startswith("https://")
        credentials = grpc.ssl_channel_credentials(pem.read_bytes())
        async with grpc.aio.secure_channel(url.removeprefix("https://"), credentials) as channel:
            client = Client(stubs.WorkflowServiceStub(channel), channel, KEY, {})
            assert await client.status(await client.start()) == "PENDING"
        plain = connect_remote(url.replace("https://", "http://"), KEY)
        async with plain as remote:
            with pytest.raises(Exception, match=r"UNAVAILABLE|closed|reach"):
                await remote.open_lease("far", ["q"], ttl_s=1.0)
        monkeypatch.setattr(grpc, "ssl_channel_credentials", lambda: credentials)
        async with connect_remote(url, KEY) as remote:
            assert (await remote.open_lease("far", ["q"])).worker == "far"


@pytest.mark.parametrize(("first", "says"), [(b"", "not PEM"), (None, "cannot be read")])
async def test_a_certificate_that_is_none_is_named(
    live_engine: Engine, tmp_path: Path, first: bytes | None, says: str
) -> None:
    pem = tmp_path / "server.pem"
    if first is not None:
        pem.write_bytes(first)
    with pytest.raises(Invalid, match=says):
        async with open_sessions(live_engine, grpc="127.0.0.1:0", certificate=pem, key=pem):
            pass
    with pytest.raises(Invalid, match="go together"):
        async with open_sessions(live_engine, grpc="127.0.0.1:0", certificate=pem):
            pass
