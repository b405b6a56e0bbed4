"""Services that take pushes with the SDK, for tests: `python service.py asgi|fastapi|starlette|wsgi` prints its port.

Run as a program, in a process of its own, under a real server.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from socketserver import ThreadingMixIn
from urllib.request import urlopen
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from windlass import App, Context, current
from windlass.contracts.callback.worker import CallbackWorker

app = App("service", threads=64)


def probe(url: str) -> None:
    if url:
        urlopen(url, b"", 10).close()


async def work(work_ms: int, probe_url: str) -> None:
    ctx = current()
    for piece in range(work_ms // 20):
        ctx.progress(piece, work_ms // 20, f"piece {piece}")
        await asyncio.to_thread(probe, probe_url)
        await asyncio.sleep(0.02)


@app.task(kind="conformance")
async def rehearse(work_ms: int = 0, outcome: str = "SUCCEEDED", probe_url: str = "") -> dict[str, int]:
    await work(work_ms, probe_url)
    if outcome == "FAILED":
        raise RuntimeError("asked to fail")
    return {"ms": work_ms}


@app.task(kind="in_thread")
def rehearse_in_thread(
    ctx: Context, work_ms: int = 0, outcome: str = "SUCCEEDED", probe_url: str = ""
) -> dict[str, int]:
    for piece in range(work_ms // 20):
        probe(probe_url)
        if ctx.cancelled:
            raise RuntimeError("stopped")
        ctx.progress(piece, work_ms // 20)
        time.sleep(0.02)
    if outcome == "FAILED":
        raise RuntimeError("asked to fail")
    return {"ms": work_ms}


def main(kind: str) -> None:
    worker = app.callback_worker(secret=os.environ["WINDLASS_SIGNING_SECRET"].split(), concurrency=64, drain="5s")
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    if kind == "wsgi":
        serve_wsgi(worker, listener)
        return
    import uvicorn

    config = uvicorn.Config(application(kind, worker), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


def application(kind: str, worker: CallbackWorker) -> object:
    if kind == "fastapi":
        from fastapi import FastAPI

        api = FastAPI()
        api.include_router(worker.router("/push"))
        return api
    if kind == "starlette":
        from starlette.applications import Starlette
        from starlette.routing import Route

        return Starlette(routes=[Route("/push", worker)], lifespan=worker.lifespan)
    return worker


def serve_wsgi(worker: CallbackWorker, listener: socket.socket) -> None:
    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Quiet, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_name, server.server_port = listener.getsockname()
    server.setup_environ()
    server.set_app(worker.wsgi)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as gunicorn ends its workers
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
