"""Checks the carriers of wake-ups and the Lambda functions that queues use, for `windlass doctor`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from windlass.contracts.lease.delivery import Invoke, Wakeup
from windlass.contracts.lease.wakeups.addresses import POSTGRES
from windlass.contracts.lease.wakeups.carriers.drivers import DRIVERS
from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions
from windlass.core.delivery import Delivery
from windlass.engine.read.doctor import Finding, Level
from windlass.errors import WindlassError


async def examine_carriers(deliveries: Iterable[Delivery], dead: int, options: CarrierOptions) -> list[Finding]:
    """One finding for each carrier and function that a queue uses. `dead` is the number of dead letters."""
    used = list(deliveries)
    carriers = sorted({delivery.carrier for delivery in used if isinstance(delivery, Wakeup)})
    functions = sorted({d.function for d in used if isinstance(d, Invoke) and d.function is not None})
    found = [await _carrier(name, options) for name in carriers]
    found += [finding async for finding in _functions(functions, options)]
    if dead:
        found.append(
            Finding("letters", Level.NOTE, f"{dead} messages to workers are dead letters", "windlass dead-letters list")
        )
    return found


async def _carrier(name: str, options: CarrierOptions) -> Finding:
    if name == POSTGRES:
        return Finding("carrier", Level.OK, "wake-ups go through the database")
    driver = DRIVERS[name]
    try:
        sender = driver.sides().sender(options)
        try:
            return Finding("carrier", Level.OK, await sender.check())
        finally:
            await sender.close()
    except WindlassError as error:
        return Finding(
            "carrier", Level.WRONG, f"{name} carries wake-ups and cannot be used: {error.message}",
            f"set WINDLASS_{driver.setting.upper()} where servers run, and check that it answers there",
        )  # fmt: skip


async def _functions(names: list[str], options: CarrierOptions) -> AsyncIterator[Finding]:
    """Retries of AWS must be off: it would repeat a call by itself, and the task would run twice at once."""
    if not names:
        return
    try:
        from windlass.contracts.lease.server.lambda_function import Lambda

        client = Lambda(options)
    except WindlassError as error:
        yield Finding("lambda", Level.WRONG, f"functions cannot be called: {error.message}", "set WINDLASS_AWS_REGION")
        return
    try:
        for name in names:
            try:
                retries = await client.retries(name)
            except WindlassError as error:
                yield Finding(
                    "lambda",
                    Level.NOTE,
                    f"{name} cannot be checked: {error.message}",
                    "check that AWS answers and lets this server read it",
                )
                continue
            if retries:
                yield Finding(
                    "lambda", Level.WRONG, f"AWS retries {name} by itself, up to {retries} times",
                    f"aws lambda put-function-event-invoke-config --function-name {name} --maximum-retry-attempts 0",
                )  # fmt: skip
            else:
                yield Finding("lambda", Level.OK, f"{name} is retried by the engine only")
    finally:
        await client.close()
