"""One trace from the submission through the attempts: a program that uses OpenTelemetry, and one that does not."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.kit.work import begin, job

from windlass import Engine, Invalid
from windlass.sdk.trace import traceparent

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from windlass import App, WorkflowContext

spans = InMemorySpanExporter()
if sys.argv[1] == "provider":
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
app, tries, charges = App("shop"), [], []


@app.task(queue="mail", retry_delay="0s")
async def send(to: str) -> str:
    tries.append(to)
    if len(tries) == 1:
        raise ConnectionError("not today")
    with trace.get_tracer("mine").start_as_current_span("inside"):
        return to


@app.task(queue="mail")
def blocking(to: str) -> str:
    with trace.get_tracer("mine").start_as_current_span("in a thread"):
        return to


async def charge(order: str) -> str:
    charges.append(order)
    if len(charges) == 1:
        raise ConnectionError("not today")
    return order


def ship(order: str) -> str:
    with trace.get_tracer("mine").start_as_current_span("inside a step"):
        return order


@app.workflow
async def checkout(order: str, ctx: WorkflowContext) -> str:
    await ctx.options(retry_delay="0s").step(charge, order)
    await ctx.sleep("2.5s")  # holds no worker: the workflow is run again from its beginning
    child = await ctx.submit(blocking, "child")
    await child.result()
    return await ctx.step(ship, order)


async def main():
    async with app:
        worker = app.worker()
        working = asyncio.create_task(worker.run())
        with trace.get_tracer("mine").start_as_current_span("request"):
            first, second = await send.submit("ada"), await blocking.submit("bob")
            many = await blocking.submit_many([("a",), ("b",)])
            order = await checkout.submit("A-17")
        for handle in (first, second, *many, order):
            await handle.result(timeout="60s")
        worker.stop()
        await working


asyncio.run(main())
shown = [{
    "name": span.name, "kind": span.kind.name, "status": span.status.status_code.name,
    "trace": span.context.trace_id, "id": span.context.span_id, "parent": span.parent and span.parent.span_id,
    "attributes": dict(span.attributes),
} for span in spans.get_finished_spans()]
print(json.dumps(shown))
"""


def run_program(database: str, provider: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, provider],
        env={**os.environ, "DATABASE_URL": database}, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


async def test_submission_attempts_steps_and_children_are_one_trace_and_spans_of_handlers_lie_below_them(
    database: str,
) -> None:
    spans = await asyncio.to_thread(run_program, database, "provider")

    assert len({span["trace"] for span in spans}) == 1
    by_id = {span["id"]: span for span in spans}

    def path(span: dict[str, Any]) -> list[str]:
        return [*(path(by_id[span["parent"]]) if span["parent"] else []), span["name"]]

    attempts = sum(span["name"] == "run shop.checkout" for span in spans)
    assert attempts > 1, "the sleep ends an attempt"
    paths = sorted(" > ".join(path(span)) for span in spans)
    workflow = "request > submit shop.checkout > run shop.checkout"
    assert paths == sorted(
        [
            "request",
            "request > submit shop.send",
            "request > submit shop.send > run shop.send",
            "request > submit shop.send > run shop.send",
            "request > submit shop.send > run shop.send > inside",
            *["request > submit shop.blocking"] * 2,
            *["request > submit shop.blocking > run shop.blocking"] * 3,
            *["request > submit shop.blocking > run shop.blocking > in a thread"] * 3,
            "request > submit shop.checkout",
            *[workflow] * attempts,
            *[f"{workflow} > step charge"] * 2,
            f"{workflow} > submit shop.blocking",
            f"{workflow} > submit shop.blocking > run shop.blocking",
            f"{workflow} > submit shop.blocking > run shop.blocking > in a thread",
            f"{workflow} > step ship",
            f"{workflow} > step ship > inside a step",
        ]
    )
    failed, worked = sorted(
        (span for span in spans if span["name"] == "run shop.send"),
        key=lambda span: int(span["attributes"]["windlass.task.attempt"]),
    )
    assert (failed["status"], worked["status"]) == ("ERROR", "UNSET")
    assert (worked["kind"], worked["attributes"]["messaging.destination.name"]) == ("CONSUMER", "mail")
    assert worked["attributes"]["windlass.task.attempt"] == 2
    assert {span["kind"] for span in spans if span["name"].startswith("submit")} == {"PRODUCER"}


async def test_without_a_provider_everything_works_and_nothing_is_carried(database: str) -> None:
    assert await asyncio.to_thread(run_program, database, "none") == []


def test_opentelemetry_is_not_imported_by_us() -> None:
    shown = (
        "import sys, windlass, windlass.sdk.trace, windlass.serve; print([m for m in sys.modules if 'telemetry' in m])"
    )
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_the_trace_of_a_submission_is_with_its_task_and_one_that_is_none_is_refused(engine: Engine) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    claimed = await begin(engine, trace=trace)
    assert claimed.task.trace == trace
    for bad in ("", "nonsense", trace.upper(), trace.replace("00-", "01-", 1), f"00-{'0' * 32}-{'1' * 16}-01"):
        with pytest.raises(Invalid, match="trace: must be a traceparent"):
            await engine.submit(job(trace=bad))


def test_a_span_without_an_identity_is_not_carried() -> None:
    class Nothing:
        is_valid = False

    assert traceparent(Nothing()) is None
