"""Run as a program: Windlass without one contract, `python -m tests.shape.without_contract CONTRACT DATABASE_URL`.

Its package cannot be imported, and its line in `serve.py` is left out. The kernel runs a task, and the servers of all
other contracts answer. Prints the contracts that answered.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import tempfile
import types
import urllib.error
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

KEY = "k" * 40
PATHS = {"callback": "/v1/openapi.json", "machine": "/export/openapi.json"}


class Missing:
    """A finder that refuses one package."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name == self._package or name.startswith(f"{self._package}."):
            raise ModuleNotFoundError(f"{name} was removed")
        return None


def load_serve(contract: str) -> Any:
    import windlass

    path = Path(windlass.__file__).with_name("serve.py")
    line, source = f'    "{contract}",\n', path.read_text()
    assert source.count(line) == 1, f"serve.py has one line for {contract}"
    serve = types.ModuleType("windlass.serve")
    serve.__file__ = str(path)
    sys.modules[serve.__name__] = serve
    exec(compile(source.replace(line, ""), str(path), "exec"), serve.__dict__)
    return serve


def status(url: str, tls: ssl.SSLContext | None = None) -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {KEY}"})
    try:
        with urllib.request.urlopen(request, timeout=10, context=tls) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


async def main(contract: str, database_url: str) -> list[str]:
    sys.meta_path.insert(0, Missing(f"windlass.contracts.{contract}"))  # type: ignore[arg-type]
    serve = load_serve(contract)
    serve.load_servers()
    from windlass.core.states import State
    from windlass.core.submission import Submission

    answered = []
    async with serve.open_engine(database_url) as engine:
        task_id = await engine.submit(Submission(kind="job"))
        lease = await engine.open_lease("ada", ["default"])
        [claimed] = await engine.claim(lease)
        await engine.complete(claimed, b"1")
        assert (await engine.tasks.get(task_id)).task.state is State.SUCCEEDED
        async with serve.open_server(engine, http="127.0.0.1:0", api_key=KEY) as url, serve.open_carriers(engine):
            for name, path in PATHS.items():
                if await asyncio.to_thread(status, url + path) == 200:
                    answered.append(name)
        async with serve.open_sessions(engine, grpc="127.0.0.1:0", api_key=KEY) as url:
            for name in ("registry", "session"):
                if await knows(url, name):
                    answered.append(name)
        if contract != "lease" and await answers_over_mtls(serve, engine):
            answered.append("lease")
        if contract != "stdio" and await runs_a_program(serve, engine):
            answered.append("stdio")
    return answered


async def answers_over_mtls(serve: Any, engine: Any) -> bool:
    """Whether the internal port answers a client with a certificate."""
    from windlass.contracts.lease.tls import certificates

    now = datetime.now(UTC)
    with tempfile.TemporaryDirectory() as folder:
        names = ("ca", "server", "client")
        ca, server, client = (certificates.files_of(Path(folder), name) for name in names)
        authority = certificates.make_authority(now, 1)
        certificates.write(authority, ca)
        certificates.write(certificates.issue_server(authority, ("127.0.0.1",), now, 1), server)
        certificates.write(certificates.issue_client(authority, "ada", now, 1), client)
        tls = ssl.create_default_context(cafile=str(ca.certificate))
        tls.load_cert_chain(client.certificate, client.key)
        async with serve.open_internal(
            engine, internal="127.0.0.1:0", certificate=server.certificate, key=server.key, authority=ca.certificate
        ) as url:
            return await asyncio.to_thread(status, f"{url}/internal/openapi.json", tls) == 200


async def runs_a_program(serve: Any, engine: Any) -> bool:
    """Whether a child process completes a task of a stdio queue."""
    from windlass.contracts.stdio.delivery import Stdio, StdioHandler
    from windlass.core.queue import QueueConfig
    from windlass.core.submission import Submission

    programs = Stdio(handlers={"answer": StdioHandler(script="task.outputs['answer'] = 42")})
    await engine.queues.put("programs", delivery=programs, limits=QueueConfig())
    async with serve.open_pools(engine):
        task_id = await engine.submit(Submission(kind="answer", queue="programs"))
        await engine.wait(task_id, 30)
    return bool((await engine.results([task_id])).get(task_id) == b'{"answer":42}')


async def knows(url: str, contract: str) -> bool:
    """Whether a server has the service of a contract: one that it does not know is unimplemented."""
    import grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async with grpc.aio.insecure_channel(url.removeprefix("http://")) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([asked]), metadata=[("authorization", f"Bearer {KEY}")])
        names = [service.name async for answer in call for service in answer.list_services_response.service]
    return any({"registry": "kagzi", "session": "windlass"}[contract] in name.lower() for name in names)


if __name__ == "__main__":
    print(*sorted(asyncio.run(main(*sys.argv[1:]))))
