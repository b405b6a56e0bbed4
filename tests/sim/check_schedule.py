"""What must hold for schedules: each fire makes one task, none is left out but what an outage allows, none invented."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.sim.database import Change
from tests.sim.mirror import Row, instant
from tests.sim.violation import Violation

from windlass.core.cron import parse_cron
from windlass.core.cron_times import first_fires

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

FIRES_MAX = 100_000


class ScheduleChecker:
    def __init__(self, world: Simulation) -> None:
        self.world = world
        self.schedules: dict[str, Row] = {}
        self.outages: list[tuple[datetime, datetime]] = []
        self.fires: dict[str, dict[datetime, datetime]] = {}  # by schedule: when it fired, by what for

    def change(self, change: Change) -> None:
        if change.relation == "schedule" and change.new is not None:
            self._settled(change.old, change.new)
            self.schedules[change.new["id"]] = change.new
        elif change.relation == "scheduler" and change.new is not None:
            self.outages = [(instant(o["from_at"]), instant(o["to_at"])) for o in change.new["outages"]]
        elif change.relation == "task" and change.old is None and change.new["schedule_id"] is not None:
            self._fired(change.new)

    def _settled(self, old: Row | None, new: Row) -> None:
        if old is not None and instant(new["settled_at"]) < instant(old["settled_at"]):
            raise Violation(f"schedule {new['id']} went back in time")

    def _fired(self, row: Row) -> None:
        """The key says of which moment the task is."""
        _, schedule_id, fire_at = row["idempotency_key"].split(":", 2)
        at = datetime.fromisoformat(fire_at).replace(microsecond=0)  # they are at whole seconds
        made = self.fires.setdefault(schedule_id, {})
        if at in made:
            raise Violation(f"schedule {schedule_id} fired twice for {at}")
        made[at] = instant(row["created_at"])
        if at > self.world.now():
            raise Violation(f"schedule {schedule_id} fired for {at}, before its time")

    def behind(self) -> list[str]:
        """Schedules with fires that are due."""
        late = self.world.now() - timedelta(seconds=1)
        running = [s for s in self.schedules.values() if not s["paused"] and s["next_fire_at"] is not None]
        return [f"{s['id']} since {s['next_fire_at']}" for s in running if instant(s["next_fire_at"]) < late]

    def check_end(self) -> None:
        for schedule in self.schedules.values():
            self._complete(schedule)

    def _complete(self, schedule: Row) -> None:
        """Every fire since the beginning, up to where it is settled, is there; of an outage just the newest."""
        cron, since = parse_cron(schedule["cron"]), instant(schedule["created_at"])
        due = first_fires(cron, UTC, since, FIRES_MAX, instant(schedule["settled_at"]))
        made = self.fires.get(schedule["id"], {})
        if extra := made.keys() - set(due):
            raise Violation(f"schedule {schedule['id']} fired for {sorted(extra)}, which it does not say")
        most, wanted = schedule["max_catchup"], set(due)
        for begin, end in self.outages:
            missed = [at for at in due if begin < at <= end]
            wanted -= set(missed[: max(0, len(missed) - most)])
            made_up_for = [at for at in missed if at in made and made[at] >= end]
            if len(made_up_for) > most:
                raise Violation(f"schedule {schedule['id']} made up for {made_up_for}, which is more than {most}")
        if lost := wanted - made.keys():
            raise Violation(f"schedule {schedule['id']} left out {sorted(lost)}; outages {self.outages}")
