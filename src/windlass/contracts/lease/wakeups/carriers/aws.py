"""Clients of AWS. The library blocks, so its calls run in a few threads. It tries each call once: callers retry."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions, not_installed, not_set
from windlass.contracts.lease.wakeups.carriers.port import CarrierUnavailable

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError
except ImportError:
    raise not_installed("aws") from None

__all__ = ["AwsClient", "ClientError", "code_of", "translate_errors"]

CONNECT_S, ANSWER_S = 5, 30
THREADS = 8


class AwsClient:
    """A client of one AWS service."""

    def __init__(self, service: str, options: CarrierOptions) -> None:
        if options.aws_region is None:
            raise not_set("aws_region", "AWS")
        config = Config(
            connect_timeout=CONNECT_S,
            read_timeout=ANSWER_S,
            retries={"total_max_attempts": 1},
            max_pool_connections=THREADS,
        )
        self._client: Any = _session().client(
            service, region_name=options.aws_region, endpoint_url=options.aws_endpoint_url, config=config
        )
        self._threads = _Threads(f"windlass-{service}", self._client.close)

    async def call(self, operation: str, **arguments: Any) -> Any:
        """Run an operation. Raises ClientError if AWS refuses it, and CarrierUnavailable if AWS does not answer."""
        with translate_errors():
            return await asyncio.wrap_future(self.begin(operation, **arguments))

    def begin(self, operation: str, **arguments: Any) -> Future[Any]:
        """Start an operation in a thread. Raises CarrierUnavailable after `close`."""
        return self._threads.begin(functools.partial(self.now, operation, **arguments))

    def now(self, operation: str, **arguments: Any) -> Any:
        """Run an operation in the caller's thread."""
        return getattr(self._client, operation)(**arguments)

    async def close(self) -> None:
        """Start no more operations. Connections are closed after the running ones have ended: a thread that still reads
        would keep its connection open, or open a new one."""
        self._threads.close()


class _Threads:
    """A few daemon threads, each started when it is first needed. The process ends without waiting for them: a long
    poll may take half a minute. The last thread that ends calls `at_last`."""

    def __init__(self, name: str, at_last: Callable[[], None]) -> None:
        self._name, self._at_last = name, at_last
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._alive, self._busy, self._closed = 0, 0, False

    def begin(self, job: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise CarrierUnavailable("AWS: this client was closed")
            self._busy += 1
            if self._busy > self._alive and self._alive < THREADS:
                self._alive += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._jobs.put((done, job))
        return done

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(self._alive):
                self._jobs.put(None)
            idle = self._alive == 0
        if idle:
            self._at_last()

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            self._do(*entry)
            with self._lock:
                self._busy -= 1
        with self._lock:
            self._alive -= 1
            last = self._alive == 0
        if last:
            self._at_last()

    def _do(self, done: Future[Any], job: Callable[[], Any]) -> None:
        if self._closed:
            done.cancel()
        if not done.set_running_or_notify_cancel():
            return
        try:
            done.set_result(job())
        except BaseException as error:
            done.set_exception(error)


@functools.cache
def _session() -> Any:
    """One session for all clients: loading the description of AWS takes longer than everything else."""
    return boto3.session.Session()


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Raise CarrierUnavailable for errors of AWS after which a later try may succeed."""
    try:
        yield
    except ClientError as error:
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if status >= 500 or "Throttl" in code_of(error) or code_of(error) == "TooManyRequestsException":
            raise CarrierUnavailable(f"AWS: {error}") from None
        raise
    except BotoCoreError as error:
        raise CarrierUnavailable(f"AWS: {error}") from None


def code_of(error: ClientError) -> str:
    """The error code without its prefix: `QueueDoesNotExist` has an older, longer spelling."""
    return str(error.response.get("Error", {}).get("Code", "")).rpartition(".")[2]
