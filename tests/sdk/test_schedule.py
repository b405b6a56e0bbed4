"""Schedules of an app: declared in code, made when its worker starts, fired by the engine."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.kit.work import soon
from tests.sdk.conftest import Working

from windlass import Conflict, Engine, Invalid, NotFound, Policy, Unavailable
from windlass.core.schedule import Overlap, ScheduleSpec
from windlass.sdk import WorkflowContext
from windlass.sdk.schedule import Declaration
from windlass.serve import App, open_engine, open_sessions
from windlass.testing.kit import OpenKit

pytestmark = pytest.mark.slow


async def test_a_worker_declares_the_schedules_of_its_app_and_they_fire(
    app: App, working: Working, live_engine: Engine
) -> None:
    ran = asyncio.Event()

    @app.schedule("* * * * * *", name="tick", overlap="skip", max_catchup=3, arguments={"to": "ada"})
    @app.task(queue="mail", max_attempts=2, priority=4, concurrency_key=lambda to: to)
    async def remind(to: str) -> None:
        assert to == "ada"
        ran.set()

    async with working():
        await soon(ran.wait())
        made = await live_engine.schedules.get("tick")
    assert (made.app, made.queue, made.priority, made.concurrency_key) == ("shop", "mail", 4, "ada")
    assert made.policy is not None
    assert (made.policy.max_attempts, made.overlap, made.max_catchup) == (2, Overlap.SKIP, 3)
    await live_engine.schedules.pause(made.id)


async def test_a_name_that_somebody_else_has_keeps_the_worker_from_starting(
    app: App, working: Working, live_engine: Engine
) -> None:
    await live_engine.schedules.create(ScheduleSpec(kind="x", cron="@daily", name="nightly"))

    @app.schedule("@daily", name="nightly")
    @app.task
    async def tidy() -> None: ...

    async with app:
        with pytest.raises(Conflict, match="nightly"):
            await soon(app.worker().run())


async def test_a_worker_far_from_the_database_declares_schedules_too(database: str) -> None:
    async with open_engine(database) as engine, open_sessions(engine, grpc="127.0.0.1:0", api_key="wl_key") as url:
        app = App("far", server=url, api_key="wl_key")

        @app.schedule("0 9 * * MON", timezone="Europe/Rome")
        @app.task
        async def report() -> None: ...

        async with app:
            worker = app.worker()
            lease_opened = asyncio.Event()
            worker.on_lease = lambda _: lease_opened.set()  # by then it has declared what there is
            running = asyncio.create_task(worker.run())
            await soon(lease_opened.wait())
            worker.stop()
            await running
        made = await engine.schedules.get("far.report")
    assert (made.cron, made.timezone, made.app, made.policy) == ("0 9 * * MON", "Europe/Rome", "far", None)


class Answers:
    """A server that answers what it is told to."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers, self.heard = list(answers), list[tuple[list[str | None], bool]]()

    async def declare_schedules(
        self, app: str, specs: list[ScheduleSpec], *, namespace: str = "default", anew: bool = True
    ) -> int:
        self.heard.append(([spec.name for spec in specs], anew))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_declaration_is_said_until_it_is_heard_and_then_kept_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.sdk.schedule.AFTER_ERROR_S", 0)
    monkeypatch.setattr("windlass.sdk.schedule.AGAIN_S", 0)
    calendar = Answers(Unavailable(), 1, Unavailable(), Invalid(), 1, 0)
    declaration = Declaration(calendar, "shop", "default", [])
    await declaration.begin()
    await soon(declaration.keep())
    assert calendar.heard == [([], True), ([], True), *[([], False)] * 4], "until nothing is left of what once was"


async def test_a_server_that_knows_no_schedules_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    calendar = Answers(NotFound())
    declaration = Declaration(calendar, "shop", "default", [ScheduleSpec(kind="x", cron="@daily", name="x")])
    with caplog.at_level(logging.WARNING):
        await declaration.begin()
        await soon(declaration.keep())
    assert "do not fire" in caplog.text


async def test_in_the_test_kit_schedules_fire_while_time_goes_by(app: App, windlass_kit: OpenKit) -> None:
    ran: list[str] = []

    @app.schedule("30 6 * * *", timezone="America/New_York")
    @app.task
    async def daily() -> None:
        ran.append("daily")

    @app.workflow
    async def long(ctx: WorkflowContext) -> None:
        await ctx.sleep("1d")

    async with windlass_kit(app) as kit:
        await kit.advance("30d")
        assert len(ran) == 30
        await kit.result(await long.submit())
        assert len(ran) in (30, 31, 32)


async def test_the_options_of_a_handler_hold_for_tasks_that_are_submitted_by_name(
    app: App, working: Working, live_engine: Engine
) -> None:
    @app.task(kind="once", max_attempts=1, timeout="1m")
    async def once() -> None: ...

    @app.task(kind="plain")
    async def plain() -> None: ...

    async with working() as worker:
        began = asyncio.Event()
        worker.on_lease = lambda _: began.set()
        await soon(began.wait())
        declared = await live_engine.parts.kinds.policies([("default", "once"), ("default", "plain")])
    assert declared == {("default", "once"): Policy(max_attempts=1, timeout_s=60.0)}
