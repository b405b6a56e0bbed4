"""Group commit on its own: who shares a batch, in which order, and who gets which outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.kit.work import soon, until

from windlass import Conflict, Draining, StoreBusy, WindlassError
from windlass.engine.commit.committer import Committer


class Journal:
    """A store that notes its batches, and can be held up, be away, or refuse."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.away = 0
        self.poison: set[Any] = set()
        self.pauses: list[float] = []

    async def commit(self, batch: Sequence[Any]) -> list[Any]:
        self.batches.append(list(batch))
        await asyncio.sleep(0)
        await self.open.wait()
        if self.away:
            self.away -= 1
            raise StoreBusy
        if self.poison & set(batch):
            raise ValueError(f"one of {len(batch)} cannot be written")
        return [Conflict(str(c)) if str(c).startswith("refused") else f"did {c}" for c in batch]

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def ledger() -> Journal:
    return Journal()


@pytest.fixture
def committer(ledger: Journal) -> Committer[Any, Any]:
    return Committer(ledger.commit, batch_max=10, retry_for_s=3.0, pause=ledger.pause)


async def calls(committer: Committer[Any, Any], commands: Sequence[Any]) -> list[Any]:
    return await soon(asyncio.gather(*map(committer.call, commands), return_exceptions=True))


async def test_a_lone_call_is_carried_out_at_once_without_any_timer(
    committer: Committer[Any, Any], ledger: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_timers(*_: object, **__: object) -> None:
        raise AssertionError("a lone call waits for nothing")

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", no_timers)
    monkeypatch.setattr(asyncio.get_running_loop(), "call_at", no_timers)
    assert await committer.call("a") == "did a"
    assert ledger.batches == [["a"]]
    assert ledger.pauses == []


async def test_while_one_batch_is_under_way_the_next_one_gathers(
    committer: Committer[Any, Any], ledger: Journal
) -> None:
    ledger.open.clear()
    first = asyncio.create_task(committer.call("first"))
    await until(lambda: ledger.batches != [])
    others = [asyncio.create_task(committer.call(i)) for i in range(8)]
    await asyncio.sleep(0)
    ledger.open.set()
    assert await soon(asyncio.gather(first, *others)) == ["did first", *(f"did {i}" for i in range(8))]
    assert ledger.batches == [["first"], list(range(8))]


async def test_a_batch_has_its_limit_and_the_order_is_kept(committer: Committer[Any, Any], ledger: Journal) -> None:
    assert await calls(committer, range(35)) == [f"did {i}" for i in range(35)]
    assert [command for batch in ledger.batches for command in batch] == list(range(35))
    assert max(map(len, ledger.batches)) == 10
    assert len(ledger.batches) <= 5


async def test_the_commands_of_one_caller_are_never_torn_apart(committer: Committer[Any, Any], ledger: Journal) -> None:
    groups = [[f"{caller} {i}" for i in range(4)] for caller in range(6)]
    outcomes = await soon(asyncio.gather(*map(committer.call_all, groups)))
    assert outcomes == [[f"did {command}" for command in group] for group in groups]
    for group in groups:
        assert sum(set(group) <= set(batch) for batch in ledger.batches) == 1


async def test_a_caller_with_more_than_a_batch_is_carried_out_as_one(
    committer: Committer[Any, Any], ledger: Journal
) -> None:
    await committer.call_all(list(range(25)))
    assert ledger.batches == [list(range(25))]


async def test_no_commands_need_no_transaction(committer: Committer[Any, Any], ledger: Journal) -> None:
    assert await committer.call_all([]) == []
    assert ledger.batches == []


async def test_a_refusal_is_for_its_caller_alone(committer: Committer[Any, Any]) -> None:
    outcomes = await calls(committer, ["a", "refused b", "c"])
    assert [type(outcome) for outcome in outcomes] == [str, Conflict, str]


async def test_errors_of_a_group_are_values_in_their_places(committer: Committer[Any, Any]) -> None:
    first, second = await committer.call_all(["refused a", "b"])
    assert isinstance(first, WindlassError)
    assert second == "did b"


async def test_a_bad_command_fails_alone_however_large_the_batch(
    committer: Committer[Any, Any], ledger: Journal
) -> None:
    ledger.poison = {5}
    outcomes = await calls(committer, range(11))
    assert [i for i, outcome in enumerate(outcomes) if isinstance(outcome, ValueError)] == [5]
    assert [outcome for i, outcome in enumerate(outcomes) if i != 5] == [f"did {i}" for i in range(11) if i != 5]


async def test_a_store_that_is_away_for_a_while_is_asked_again_with_the_same_commands(
    committer: Committer[Any, Any], ledger: Journal
) -> None:
    ledger.away = 4
    assert await soon(committer.call("a")) == "did a"
    assert ledger.batches == [["a"]] * 5
    assert ledger.pauses == sorted(ledger.pauses), "and is left alone for longer each time"


async def test_who_comes_while_the_store_is_away_keeps_the_order(
    committer: Committer[Any, Any], ledger: Journal
) -> None:
    ledger.away = 3
    assert await calls(committer, range(5)) == [f"did {i}" for i in range(5)]
    carried_out = [batch for i, batch in enumerate(ledger.batches) if i >= 3]
    assert [command for batch in carried_out for command in batch] == list(range(5))


async def test_patience_ends_with_an_error_and_the_next_call_is_tried_again(
    committer: Committer[Any, Any], ledger: Journal
) -> None:
    ledger.away = 1000
    with pytest.raises(StoreBusy):
        await soon(committer.call("a"))
    assert 3.0 <= sum(ledger.pauses) < 10.0
    ledger.away = 0
    assert await committer.call("b") == "did b"


async def test_a_cancelled_caller_does_no_harm_to_the_others(committer: Committer[Any, Any], ledger: Journal) -> None:
    ledger.open.clear()
    callers = [asyncio.create_task(committer.call(i)) for i in range(4)]
    await until(lambda: ledger.batches != [])
    await asyncio.sleep(0)
    callers[2].cancel()
    ledger.open.set()
    outcomes = await soon(asyncio.gather(*callers, return_exceptions=True))
    assert [outcome for i, outcome in enumerate(outcomes) if i != 2] == ["did 0", "did 1", "did 3"]
    assert await soon(committer.call("next")) == "did next"


async def test_a_cancelled_caller_who_was_first_does_no_harm_to_the_others(
    committer: Committer[Any, Any], ledger: Journal
) -> None:
    ledger.open.clear()
    callers = [asyncio.create_task(committer.call(i)) for i in range(4)]
    await until(lambda: ledger.batches != [])
    await asyncio.sleep(0)
    callers[0].cancel()
    ledger.open.set()
    outcomes = await soon(asyncio.gather(*callers, return_exceptions=True))
    assert outcomes[1:] == ["did 1", "did 2", "did 3"]
    assert await soon(committer.call("next")) == "did next"


async def test_a_defect_does_not_stop_the_line(committer: Committer[Any, Any], ledger: Journal) -> None:
    ledger.poison = {"bad"}
    with pytest.raises(ValueError, match="cannot be written"):
        await committer.call("bad")
    assert await committer.call("good") == "did good"


async def test_an_outcome_that_comes_later_keeps_only_its_caller_waiting() -> None:
    later: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def commit(batch: Sequence[str]) -> list[Any]:
        return [later if command == "slow" else f"did {command}" for command in batch]

    committer: Committer[str, str] = Committer(commit)
    slow = asyncio.create_task(committer.call("slow"))
    assert await soon(committer.call("fast")) == "did fast"
    assert not slow.done()
    later.set_result("did slow at last")
    assert await soon(slow) == "did slow at last"


async def test_a_caller_who_goes_does_not_cancel_what_comes_later() -> None:
    later: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def commit(batch: Sequence[str]) -> list[Any]:
        return [later]

    caller = asyncio.create_task(Committer(commit).call("slow"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    assert not later.cancelled()


async def test_closing_finishes_what_is_in_line_and_takes_nothing_more(
    committer: Committer[Any, Any], ledger: Journal
) -> None:
    ledger.open.clear()
    callers = [asyncio.create_task(committer.call(i)) for i in range(3)]
    await until(lambda: ledger.batches != [])
    closing = asyncio.create_task(committer.close())
    await asyncio.sleep(0)
    with pytest.raises(Draining):
        await committer.call("late")
    assert not closing.done()
    ledger.open.set()
    await soon(closing)
    assert await soon(asyncio.gather(*callers)) == ["did 0", "did 1", "did 2"]
