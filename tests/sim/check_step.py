"""What must hold for the steps and signals of workflows: recorded once, by the attempt that holds the task, never done
again; each signal for one wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.sim.database import Change
from tests.sim.mirror import TERMINAL, Row, content, instant
from tests.sim.trace import short
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

DONE = frozenset({"succeeded", "failed"})
FIXED = ("kind", "position", "state", "attempt", "result", "error", "child_id")


class StepChecker:
    done = DONE  # what stays as it is

    def __init__(self, world: Simulation) -> None:
        self.world, self.mirror = world, world.mirror

    # ----------------------------------------------------------------------------------------- what is done

    def ran(self, task_id: UUID, attempt: int, name: str) -> None:
        """A step's function is called. What an earlier attempt has recorded is not called again; an attempt that was
        given up and does not know it may still be at it."""
        known = self.mirror.steps.get((str(task_id), name, 1))
        if known is not None and known["state"] in self.done and known["attempt"] < attempt:
            again = f"{short(task_id)} #{attempt} does {name} again, which #{known['attempt']} has recorded"
            self.world.fail(again)  # raised here, it would be a failure of the step

    # ----------------------------------------------------------------------------------------- what is written

    def step(self, old: Row | None, new: Row | None) -> None:
        if new is None:
            self._removed(old)
            return
        holder = self.mirror.tasks.get(new["task_id"])
        require(holder is not None, new, "is of a task that is not there")
        assert holder is not None
        require(new["attempt"] == holder["attempt"], new, f"was written while attempt {holder['attempt']} had the task")
        if old is not None and old["state"] in self.done:
            changed = [name for name in FIXED if old[name] != new[name]]
            require(not changed, new, f"was done, and then {changed} changed")
        if new["kind"] == "step" and new["state"] == "succeeded":
            by = content(new["result"])["attempt"]
            require(by == new["attempt"], new, f"was recorded with what attempt {by} made of it")
        if new["kind"] == "signal" and new["state"] == "failed" and (old is None or old["state"] != "failed"):
            waiting = [s for s in self._pending(new) if instant(s["sent_at"]) < instant(new["wake_at"])]
            require(not waiting, new, f"timed out although {len(waiting)} signals had come")

    def _removed(self, old: Row | None) -> None:
        assert old is not None
        holder = self.mirror.tasks.get(old["task_id"])
        require(holder is None or holder["finished_at"] is not None, old, "was removed while its workflow goes on")

    def _pending(self, step: Row) -> list[Row]:
        name = step["name"].removeprefix("signal:")
        return [s for s in self.mirror.signals.values()
                if s["task_id"] == step["task_id"] and s["name"] == name and not s["consumed"]]  # fmt: skip

    def signal(self, old: Row | None, new: Row | None) -> None:
        if old is not None and new is not None and old["consumed"]:
            raise Violation(f"signal {short(new['id'])} was consumed a second time")

    def after(self, changes: list[Change]) -> None:
        """Between two commits no workflow sleeps although what it waits for has come."""
        if not any(change.relation in ("task", "step", "signal", "outbox") for change in changes):
            return
        for key, step in self.mirror.steps.items():
            holder = self.mirror.tasks.get(key[0])
            if step["state"] == "waiting" and holder is not None and holder["state"] == "sleeping":
                self._still_waits(step)
        for task_id in {change.new["task_id"] for change in changes if change.relation == "step" and change.new}:
            self._consumed(task_id)

    def _still_waits(self, step: Row) -> None:
        if step["kind"] == "signal":
            require(not self._pending(step), step, "is slept for, and its signal is there")
        if step["kind"] == "task":
            child = self.mirror.ever(step["child_id"])
            over = child is not None and child["state"] in TERMINAL
            told = any(e["kind"] == "wake" for e in self._effects(step["child_id"]))
            require(not over or told, step, "is slept for, its task has ended, and nobody will tell")

    def _effects(self, task_id: str) -> list[Row]:
        effects = [self.mirror.outbox[id_] for id_ in self.mirror.effects_by_task.get(task_id, ())]
        return [effect for effect in effects if effect["dead_at"] is None]

    def _consumed(self, task_id: str) -> None:
        """Each wait that was ended by a signal has used up one."""
        ended = [s for s in self.mirror.steps.values()
                 if s["task_id"] == task_id and s["kind"] == "signal" and s["state"] == "succeeded"]  # fmt: skip
        used = [s for s in self.mirror.signals.values() if s["task_id"] == task_id and s["consumed"]]
        if len(ended) != len(used):
            raise Violation(f"{short(task_id)} has {len(ended)} waits that a signal ended, and used up {len(used)}")

    def ended(self, row: Row) -> None:
        """What a workflow has seen is what is recorded."""
        said = content(row["result"])
        for key, value in said.get("seen", {}).items():
            name, _, occurrence = key.rpartition("#")
            step = self.mirror.steps.get((row["id"], name, int(occurrence)))
            kept: Any = None if step is None else content(step["result"])
            if step is None or (kept != value and value is not None):
                raise Violation(f"workflow {short(row['id'])} saw {value} of {key}; recorded is {kept}")

    def heard(self, task_id: UUID, signal_id: UUID) -> None:
        """A signal was acknowledged: it is there."""
        if str(signal_id) not in self.mirror.signals and str(task_id) in self.mirror.tasks:
            raise Violation(f"signal {short(signal_id)} to {short(task_id)} was acknowledged, and is not there")


def require(promise: bool, row: Row, broken: str) -> None:
    if not promise:
        raise Violation(f"step {row['name']} of {short(row['task_id'])} ({row['state']}, #{row['attempt']}) {broken}")
