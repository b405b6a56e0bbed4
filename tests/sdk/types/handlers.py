"""What a type checker says about handlers. A line that ends in `# E: code` must be an error of that kind, no other may.

Read by test_types.py, never run.
"""

from dataclasses import dataclass
from typing import assert_type

from windlass import App, Context, TaskHandle, WorkflowContext, chain, group
from windlass.sdk import ChainHandle, GroupHandle, Handler

app = App("shop")


@dataclass
class Address:
    name: str


@app.task(queue="mail", max_attempts=6, timeout="10m")
async def send(to: Address, copies: int = 1) -> str:
    return to.name * copies


@app.task
def length(text: str) -> int:
    return len(text)


@app.task
async def total(ctx: Context, numbers: list[int]) -> float:
    return float(sum(numbers))


@app.workflow(max_losses=20)
async def checkout(ctx: WorkflowContext, order: int) -> str:
    return str(order)


app.task(tmeout="10m")  # E: call-overload


app.task(max_attempts="many")  # E: call-overload


async def calls() -> None:
    assert_type(await send(Address("ada")), str)
    assert_type(length("ada"), int)
    await send("ada")  # E: arg-type
    length(3)  # E: arg-type


async def submits() -> None:
    handle = await send.submit(Address("ada"), copies=2)
    assert_type(handle, TaskHandle[str])
    assert_type(await handle.result("30s"), str)
    assert_type(send.submit_sync(Address("ada")), TaskHandle[str])
    assert_type(await (await total.submit([1, 2])).result(), float)
    assert_type(await (await checkout.submit(7)).result(), str)
    await checkout.submit("seven")  # E: arg-type
    await send.submit("ada")  # E: arg-type
    await send.submit()  # E: call-arg
    await send.submit(Address("ada"), colour="red")  # E: call-arg
    await send.options(delay="5m").submit(3)  # E: arg-type
    await send.options(priority="high").submit(Address("ada"))  # E: arg-type
    await handle.result(timeout=object())  # E: arg-type


async def together() -> None:
    lengths = await length.map(["a", "bc"])
    assert_type(lengths, GroupHandle[int])
    assert_type(await lengths.results(), list[int])
    await length.map([1, 2])  # E: list-item
    some = group(length.bind("a"), length.bind("b"))
    assert_type(await (await some.submit()).results(), list[int])
    length.bind(1)  # E: arg-type
    done = await chain(send.bind(Address("ada")), length).submit()
    assert_type(done, ChainHandle[int])
    assert_type(await (await chain(some, total).submit()).result(), float)
    chain(length.bind("a"), length)  # E: misc


async def options(handler: Handler[[int], str]) -> None:
    await handler.submit(1)
    await handler.submit("1")  # E: arg-type
