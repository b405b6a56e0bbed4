"""A workflow: it charges, waits for a person, sleeps, and ships. Kill it at any moment: the next start continues it."""

import asyncio

from windlass import App, WorkflowContext

app = App("shop")  # DATABASE_URL if it is set, otherwise a PostgreSQL of its own in the folder .windlass


async def charge(order: int) -> str:
    print(f"charging order {order}")
    return f"receipt {order}"


async def ship(receipt: str) -> str:
    print(f"shipping for {receipt}")
    return "shipped"


@app.workflow(max_losses=20)
async def checkout(ctx: WorkflowContext, order: int) -> str:
    receipt = await ctx.step(charge, order)  # recorded: a crash cannot charge twice
    approved = await ctx.wait_signal("approval", type=bool, timeout="3d")  # holds no worker
    await ctx.sleep("1s")
    return await ctx.step(ship, receipt) if approved else "refused"


async def main() -> None:
    async with app:
        worker = app.worker()
        working = asyncio.create_task(worker.run())
        handle = await checkout.submit(7)
        await handle.signal("approval", True)
        print(await handle.result(timeout="30s"))
        worker.stop()
        await working


asyncio.run(main())
