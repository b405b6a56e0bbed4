"""Clients of AWS, whose library waits in threads: few of them, and no retries of its own beyond one, since what is sent
out by us is tried again by us."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from windlass.queues.option import CarrierOptions, not_installed, not_set
from windlass.queues.port import CarrierAway

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError
except ImportError:
    raise not_installed("aws") from None

__all__ = ["AwsClient", "ClientError", "code_of", "told"]

CONNECT_S, ANSWER_S = 5, 30
THREADS = 8


class AwsClient:
    """One service of AWS. `call` runs one of its operations."""

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
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=f"windlass-{service}")

    async def call(self, operation: str, **arguments: Any) -> Any:
        """Raises ClientError for what AWS refuses, CarrierAway where it does not answer."""
        with told():
            return await asyncio.wrap_future(self.begin(operation, **arguments))

    def begin(self, operation: str, **arguments: Any) -> Any:
        """In a thread; a future of it."""
        method: Callable[..., Any] = getattr(self._client, operation)
        return self._threads.submit(functools.partial(method, **arguments))

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()


@functools.cache
def _session() -> Any:
    """One for all clients: it reads what it knows of AWS once, which takes as long as all else."""
    return boto3.session.Session()


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Errors of AWS that mean: later."""
    try:
        yield
    except ClientError as error:
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if status >= 500 or "Throttl" in code_of(error) or code_of(error) == "TooManyRequestsException":
            raise CarrierAway(f"AWS: {error}") from None
        raise
    except BotoCoreError as error:
        raise CarrierAway(f"AWS: {error}") from None


def code_of(error: ClientError) -> str:
    """`QueueDoesNotExist` and its older, longer spelling are told apart by nobody."""
    return str(error.response.get("Error", {}).get("Code", "")).rpartition(".")[2]
