"""A schedule: a report every second. The program ends after two of them. Any server that runs fires the schedule."""

import asyncio

from windlass import App

app = App("shop")  # DATABASE_URL if it is set, otherwise a PostgreSQL of its own in the folder .windlass
reports: asyncio.Queue[str] = asyncio.Queue()


@app.schedule("* * * * * *", overlap="skip", arguments={"city": "Rome"})  # six fields: the first one is for seconds
@app.task(max_attempts=2)
async def report(city: str) -> None:
    await reports.put(f"All is well in {city}.")


async def main() -> None:
    async with app:
        worker = app.worker()
        working = asyncio.create_task(worker.run())  # declares the schedule, then runs what it submits
        for _ in range(2):
            print(await reports.get())
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
