"""Many idle workers in one process: `python -m bench.crowd polls|sessions HOST:PORT KEY COUNT`.

Prints a line when all of them wait. Each has its own connection, as workers on many machines have. Polling workers send
a heartbeat every 10 s, session workers as often as an idle SDK worker does, evenly spread.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from typing import Any

import grpc

from windlass.contracts.registry.wire import kagzi_pb2
from windlass.contracts.session.wire import session_pb2
from windlass.contracts.session.wire.methods import SESSION
from windlass.sdk.worker.worker import IDLE_HEARTBEATS_PER_LEASE

HEARTBEAT_S, POLL_S = 10.0, 70.0
LEASE_S = 30.0
AT_ONCE = 50
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


class Crowd:
    def __init__(self, address: str, key: str, count: int) -> None:
        self.address, self.metadata, self.count = address, (("authorization", f"Bearer {key}"),), count
        self.waiting = 0
        self.connecting = asyncio.Semaphore(AT_ONCE)

    def arrived(self) -> None:
        self.waiting += 1
        if self.waiting == self.count:
            print(f"{self.count} wait", flush=True)

    async def polls(self, number: int) -> None:
        """A worker of the registry contract: one long poll after the other, and heartbeats."""
        async with self.connecting:
            channel = grpc.aio.insecure_channel(self.address, options=OWN_CONNECTION)
            registered = await self._call(
                channel, "RegisterWorker", task_queue="idle", workflow_types=["idle"], hostname="bench", pid=number + 1
            )
        heartbeats = asyncio.ensure_future(self._send_heartbeats(channel, registered.worker_id))
        self.arrived()
        while not heartbeats.done():
            await self._call(
                channel, "PollActivity", worker_id=registered.worker_id, task_queue="idle",
                supported_workflow_types=["idle"], timeout=POLL_S,
            )  # fmt: skip
        await heartbeats

    async def _send_heartbeats(self, channel: Any, worker_id: str) -> None:
        await asyncio.sleep(HEARTBEAT_S * random.random())
        while True:
            await self._call(channel, "WorkerHeartbeat", worker_id=worker_id)
            await asyncio.sleep(HEARTBEAT_S)

    async def _call(self, channel: Any, name: str, timeout: float = 30.0, **fields: Any) -> Any:
        method = kagzi_pb2.DESCRIPTOR.services_by_name["WorkflowService"].methods_by_name[name]
        request, answer = (getattr(kagzi_pb2, kind.name) for kind in (method.input_type, method.output_type))
        call = channel.unary_unary(f"/kagzi.WorkflowService/{name}", request.SerializeToString, answer.FromString)
        return await call(request(**fields), metadata=self.metadata, timeout=timeout)

    async def sessions(self, number: int) -> None:
        """The traffic of a worker of our SDK: a stream with credit, and heartbeats."""
        pb = session_pb2
        async with self.connecting:
            channel = grpc.aio.insecure_channel(self.address, options=OWN_CONNECTION)
            open_stream = channel.stream_stream(SESSION, pb.FromWorker.SerializeToString, pb.ToWorker.FromString)
            stream = open_stream(metadata=self.metadata)
            hello = pb.Hello(worker=f"bench {number}", queues=["idle"], kinds=["idle"], lease_ttl_s=LEASE_S)
            await stream.write(pb.FromWorker(hello=hello))
            assert (await stream.read()).WhichOneof("message") == "welcome"
            await stream.write(pb.FromWorker(credit=pb.Credit(tasks=10)))
        self.arrived()
        heartbeat_s = LEASE_S / IDLE_HEARTBEATS_PER_LEASE
        await asyncio.sleep(heartbeat_s * random.random())
        for number in itertools.count(1):
            await stream.write(pb.FromWorker(heartbeat=pb.Heartbeat(number=number)))
            while (await stream.read()).WhichOneof("message") != "extended":
                pass
            await asyncio.sleep(heartbeat_s)


async def main(kind: str, address: str, key: str, count: str) -> None:
    crowd = Crowd(address, key, int(count))
    await asyncio.gather(*(getattr(crowd, kind)(number) for number in range(crowd.count)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
