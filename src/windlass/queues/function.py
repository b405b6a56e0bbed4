"""Functions of AWS Lambda, called through its API without waiting for their end: who runs reports over `/internal`.

Such a call is queued by AWS, which would try it again by itself: that has to be off, since attempts are ours to count.
"""

from __future__ import annotations

from windlass.engine.outbox import NotNow, Undeliverable
from windlass.queues.aws import AwsClient, ClientError, code_of
from windlass.queues.option import CarrierOptions
from windlass.queues.port import CarrierAway

BUSY_AGAIN_S = 2.0
NEVER = {"RequestTooLargeException", "RequestEntityTooLargeException", "InvalidRequestContentException"}
RETRIES_DEFAULT = 2  # of AWS, where nobody set anything


class NotCalled(Exception):
    """AWS did not take the call."""


class Lambda:
    def __init__(self, options: CarrierOptions) -> None:
        self._client = AwsClient("lambda", options)

    async def call(self, function: str, body: bytes) -> None:
        try:
            answer = await self._client.call("invoke", FunctionName=function, InvocationType="Event", Payload=body)
        except CarrierAway as error:
            raise NotNow(str(error), BUSY_AGAIN_S) from None
        except ClientError as error:
            if code_of(error) in NEVER:
                raise Undeliverable(f"Lambda: {error}") from None
            raise NotCalled(f"Lambda: {error}") from None
        if answer["StatusCode"] != 202:
            raise NotCalled(f"Lambda answered {answer['StatusCode']}")

    async def retries(self, function: str) -> int:
        """How often AWS itself tries a call again that failed; it should be 0."""
        try:
            told = await self._client.call("get_function_event_invoke_config", FunctionName=function)
        except ClientError as error:
            if code_of(error) != "ResourceNotFoundException":
                raise CarrierAway(f"Lambda: {error}") from None
            return RETRIES_DEFAULT
        return int(told.get("MaximumRetryAttempts", RETRIES_DEFAULT))

    async def close(self) -> None:
        await self._client.close()
