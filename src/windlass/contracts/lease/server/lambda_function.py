"""Calls functions of AWS Lambda asynchronously: a function reports its outcome over `/internal`.

AWS queues such a call and would retry it by itself. Its retries have to be off, because the engine counts attempts.
"""

from __future__ import annotations

from windlass.contracts.lease.wakeups.carriers.aws import AwsClient, ClientError, code_of
from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions
from windlass.contracts.lease.wakeups.carriers.port import CarrierUnavailable
from windlass.engine.send.outbox import NotNow, Undeliverable

BUSY_AGAIN_S = 2.0
NEVER = {"RequestTooLargeException", "RequestEntityTooLargeException", "InvalidRequestContentException"}
RETRIES_DEFAULT = 2  # the default of AWS


class NotCalled(Exception):
    """AWS refused the call."""


class Lambda:
    def __init__(self, options: CarrierOptions) -> None:
        self._client = AwsClient("lambda", options)

    async def call(self, function: str, body: bytes) -> None:
        try:
            answer = await self._client.call("invoke", FunctionName=function, InvocationType="Event", Payload=body)
        except CarrierUnavailable as error:
            raise NotNow(str(error), BUSY_AGAIN_S) from None
        except ClientError as error:
            if code_of(error) in NEVER:
                raise Undeliverable(f"Lambda: {error}") from None
            raise NotCalled(f"Lambda: {error}") from None
        if answer["StatusCode"] != 202:
            raise NotCalled(f"Lambda answered {answer['StatusCode']}")

    async def retries(self, function: str) -> int:
        """How often AWS itself retries a failed call. It should be 0."""
        try:
            config = await self._client.call("get_function_event_invoke_config", FunctionName=function)
        except ClientError as error:
            if code_of(error) != "ResourceNotFoundException":
                raise CarrierUnavailable(f"Lambda: {error}") from None
            return RETRIES_DEFAULT
        return int(config.get("MaximumRetryAttempts", RETRIES_DEFAULT))

    async def close(self) -> None:
        await self._client.close()
