"""What must hold for each row that is written to the task and lease tables, whatever else happens.

A checker is told of every row as it was committed, before and after. It knows the promises of the documentation, and
nothing of how the engine keeps them.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tests.sim.mirror import TERMINAL, Row, content, instant
from tests.sim.trace import short
from tests.sim.violation import Violation

from windlass.core.states import TABLE

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

MOVES = frozenset((before.value, after.value) for pairs in TABLE.values() for before, after in pairs)
DEFAULT_MAX_ATTEMPTS, DEFAULT_MAX_LOSSES, DEFAULT_GRACE_S = 5, 3, 30.0
FROZEN = ("state", "result", "error", "attempt", "failures", "losses", "outcome", "finished_at", "lease_id", "worker")
STOPPED_BY = {"lost": {"lost"}, "failed": {"failed", "timed_out"}}


class TaskChecker:
    def __init__(self, world: Simulation) -> None:
        self.world, self.mirror = world, world.mirror
        self.token_ids: dict[str, set[str]] = {}
        self.unblocked: set[str] = set()
        self.lease_of: dict[tuple[str, int], str] = {}

    def task(self, old: Row | None, new: Row | None, at: datetime) -> None:
        if old is None and new is not None:
            self._inserted(new)
        elif new is None and old is not None:
            self._removed(old, at)
        elif old is not None and new is not None:
            self._terminal_stays(old, new)
            self._moves(old, new)
            self._counts(old, new)
            self._results(old, new)
            self._reasons(old, new, at)

    # ----------------------------------------------------------------------------------------- there and gone

    def _inserted(self, row: Row) -> None:
        handed_off = (row["state"], row["attempt"]) == ("running", 1) and row["lease_id"] is not None
        waits = row["state"] in ("queued", "blocked") and row["attempt"] == 0
        require(waits or handed_off, row, "begins in the middle of its life")
        token = content(row["payload"])["token"]
        ids = self.token_ids.setdefault(token, set())
        kept = [id_ for id_ in ids if id_ in self.mirror.tasks]
        require(not kept, row, f"is the submission {token} once more: {kept} has it already")
        again = row["idempotency_key"] is not None or row["id"] in self.mirror.gone
        require(not ids or again, row, f"is the submission {token} for a second time")
        ids.add(row["id"])
        if row["id"] in self.mirror.gone:
            self._forget(row["id"])

    def _forget(self, task_id: str) -> None:
        """An id or key is good for as long as its task is kept; used again after that, it is a new task."""
        self.unblocked.discard(task_id)
        self.lease_of = {attempt: lease for attempt, lease in self.lease_of.items() if attempt[0] != task_id}
        self.world.model.cancelled.pop(task_id, None)
        self.world.model.results.pop(task_id, None)
        self.mirror.history.pop(task_id, None)

    def _removed(self, row: Row, at: datetime) -> None:
        require(row["state"] in TERMINAL, row, "was removed before its end")
        kept_until = instant(row["finished_at"]) + timedelta(seconds=self.world.plan.keep_finished_s)
        require(kept_until <= at, row, "was removed too early")

    # ----------------------------------------------------------------------------------------- forward only

    def _terminal_stays(self, old: Row, new: Row) -> None:
        if old["state"] in TERMINAL:
            changed = [name for name in FROZEN if old[name] != new[name]]
            require(not changed, old, f"had ended as {old['state']}, and then {changed} changed: {new}")

    def _moves(self, old: Row, new: Row) -> None:
        require((old["state"], new["state"]) in MOVES, old, f"cannot become {new['state']}")
        claimed = old["state"] == "queued" and new["state"] == "running"
        if claimed:
            self._claimed(old, new)
        else:
            require(old["attempt"] == new["attempt"], new, f"changed its attempt from {old['attempt']} without a claim")
            require(old["lease_id"] == new["lease_id"], new, "lost the lease of its attempt, which may still report")
        if (old["state"], new["state"]) == ("blocked", "queued"):
            self._released(new)
        if (old["state"], new["state"]) == ("running", "queued"):
            outcomes = ("lost", "failed", "timed_out", "released", "slept")
            require(new["outcome"] in outcomes, new, f"went back in line though its attempt is {new['outcome']}")
            require(new["cancel"] is None, new, "went back in line although it is to be cancelled")

    def _claimed(self, old: Row, new: Row) -> None:
        require(new["attempt"] == old["attempt"] + 1, new, f"was claimed as attempt {new['attempt']}")
        attempt = (new["id"], new["attempt"])
        lease = self.lease_of.setdefault(attempt, new["lease_id"])
        require(lease == new["lease_id"], new, f"attempt {attempt[1]} has two leases")
        known = self.world.model.cancelled.get(new["id"])
        require(known is None, new, f"runs again after its cancel was acknowledged at attempt {known}")
        require(new["cancel"] is None, new, "was claimed although it is to be cancelled")

    def _released(self, new: Row) -> None:
        require(new["id"] not in self.unblocked, new, "was released twice")
        self.unblocked.add(new["id"])
        submission = self.world.model.by_id.get(new["id"])
        for upstream_id in () if submission is None else submission.after:
            upstream = self.mirror.ever(upstream_id)
            state = None if upstream is None else upstream["state"]
            wanted = TERMINAL if submission.after_any_outcome else {"succeeded"}
            require(state in wanted, new, f"was released while {short(upstream_id)}, which it waits for, is {state}")

    # ----------------------------------------------------------------------------------------- counters

    def _counts(self, old: Row, new: Row) -> None:
        failures, losses = new["failures"] - old["failures"], new["losses"] - old["losses"]
        require(
            failures in (0, 1) and losses in (0, 1), new, f"counted {failures} failures and {losses} losses at once"
        )
        ended = new["outcome"] if old["outcome"] != new["outcome"] else None
        if failures:
            require(new["outcome"] in ("failed", "timed_out"), new, f"counted a failure as {new['outcome']}")
        if losses:
            require(new["outcome"] == "lost", new, f"counted a loss as {new['outcome']}")
        if ended == "lost":
            require(losses == 1, new, "was lost and did not count it")
        if ended in ("failed", "timed_out") and new["state"] == "queued":
            require(failures == 1, new, f"is tried again after {ended} and did not count it")
        policy = new["policy"] or {}
        attempts_max = policy.get("max_attempts", DEFAULT_MAX_ATTEMPTS)
        losses_max = max(1, policy.get("max_losses", DEFAULT_MAX_LOSSES))
        require(new["failures"] <= attempts_max, new, f"failed {new['failures']} times of {attempts_max}")
        require(new["losses"] <= losses_max, new, f"was lost {new['losses']} times of {losses_max}")
        if new["state"] == "queued":
            spent = new["failures"] >= attempts_max or new["losses"] >= losses_max
            require(not spent, new, f"is tried again with its budget spent: {new['failures']}, {new['losses']}")

    # ----------------------------------------------------------------------------------------- results and reasons

    def _results(self, old: Row, new: Row) -> None:
        """A result says which attempt made it, so that one of a superseded attempt gives itself away."""
        if new["state"] != "succeeded" or old["state"] == "succeeded":
            return
        said = content(new["result"])
        require(said is not None, new, "succeeded without the result that its worker reported")
        self.world.step_checker.ended(new)
        right = said["task"] == new["id"] and said["attempt"] == new["attempt"]
        require(right, new, f"took a result that is not of its attempt {new['attempt']}: {said}")

    def _reasons(self, old: Row, new: Row, at: datetime) -> None:
        """Nobody is given up before the time."""
        reason = (new["error"] or {}).get("reason")
        if new["outcome"] == "lost" and old["outcome"] != "lost" and reason in ("LEASE_EXPIRED", "CANCELLED"):
            lease = self.mirror.leases.get(old["lease_id"])
            early = lease is not None and instant(lease["expires_at"]) > at and reason == "LEASE_EXPIRED"
            require(not early, new, f"was taken from {new['worker']}, whose lease is good")
        if new["state"] == old["state"]:
            return
        policy = new["policy"] or {}
        if reason == "CANCEL_TIMEOUT" and new["state"] == "failed":
            signalled = (new["cancel"] or {}).get("signalled_at")
            require(signalled is not None, new, "timed out after a cancel that nobody was told of")
            due = instant(signalled) + timedelta(seconds=policy.get("cancel_grace_s", DEFAULT_GRACE_S))
            require(due <= at, new, f"was given up before its grace was over at {due}")
        if reason == "DEADLINE_EXCEEDED" and new["state"] == "failed":
            require(instant(new["deadline_at"]) <= at, new, "missed a deadline that has not come")

    def lease(self, old: Row | None, new: Row | None, at: datetime) -> None:
        if new is None and old is not None:
            require_lease(instant(old["expires_at"]) <= at, old, "was removed while it was good")
        elif old is not None and new is not None:
            dead = instant(old["expires_at"]) <= at
            alive = instant(new["expires_at"]) > at
            require_lease(not (dead and alive), old, "had run out and came back to life")

    # ----------------------------------------------------------------------------------------- at the end

    def check_end(self) -> None:
        """What the history tells and what the counters say is the same; the last attempt is told by the row."""
        for row in self.mirror.tasks.values():
            entries = self.mirror.history.get(row["id"], [])
            if instant(row["created_at"]) < self.world.now() - timedelta(seconds=self.world.plan.keep_finished_s):
                continue  # its history may be forgotten already
            for counter, whats in STOPPED_BY.items():
                told = sum(entry["what"] in whats for entry in entries)
                counted = row["losses" if counter == "lost" else "failures"]
                last = row["outcome"] in whats
                require(
                    told in (counted, counted - last), row, f"counts {counted} × {counter}, its history tells {told}"
                )


def require(promise: bool, row: Row, broken: str) -> None:
    if not promise:
        raise Violation(f"task {short(row['id'])} ({row['state']}, attempt {row['attempt']}) {broken}")


def require_lease(promise: bool, row: Row, broken: str) -> None:
    if not promise:
        raise Violation(f"lease {short(row['id'])} of {row['worker']} {broken}")
