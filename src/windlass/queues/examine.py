"""What is wrong with the carriers of wake-ups and with functions, as far as queues use them, and what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from windlass.core.carrier import POSTGRES
from windlass.core.delivery import Delivery, Invoke, Wakeup
from windlass.core.error import WindlassError
from windlass.engine.doctor import Finding, Level
from windlass.queues.driver import DRIVERS
from windlass.queues.option import CarrierOptions


async def examine_carriers(deliveries: Iterable[Delivery], letters: int, options: CarrierOptions) -> list[Finding]:
    """One finding for each carrier and each function that some queue uses; `letters` is how many were buried."""
    used = list(deliveries)
    carriers = sorted({one.carrier for one in used if isinstance(one, Wakeup)})
    functions = sorted({one.function for one in used if isinstance(one, Invoke) and one.function is not None})
    found = [await _carrier(name, options) for name in carriers]
    found += [finding async for finding in _functions(functions, options)]
    if letters:
        found.append(
            Finding("letters", Level.NOTE, f"{letters} messages to workers were given up", "windlass letters list")
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
            f"set WINDLASS_{driver.setting.upper()} where servers run, and see that it answers there",
        )  # fmt: skip


async def _functions(names: list[str], options: CarrierOptions) -> AsyncIterator[Finding]:
    """AWS would try a call again by itself, and the task would run twice at once."""
    if not names:
        return
    try:
        from windlass.queues.function import Lambda

        client = Lambda(options)
    except WindlassError as error:
        yield Finding("lambda", Level.WRONG, f"functions cannot be called: {error.message}", "set WINDLASS_AWS_REGION")
        return
    try:
        for name in names:
            try:
                retries = await client.retries(name)
            except WindlassError as error:
                yield Finding("lambda", Level.NOTE, f"nothing is known of {name}: {error.message}", "see what AWS says")
                continue
            if retries:
                yield Finding(
                    "lambda", Level.WRONG, f"AWS tries {name} again by itself, up to {retries} times",
                    f"aws lambda put-function-event-invoke-config --function-name {name} --maximum-retry-attempts 0",
                )  # fmt: skip
            else:
                yield Finding("lambda", Level.OK, f"{name} is tried again by the engine alone")
    finally:
        await client.close()
