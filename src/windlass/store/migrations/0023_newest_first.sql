-- Lists and retention go by the time at which a row was made. Ids of children, chains and keyed groups are derived, and
-- callers may give their own, so that an id says nothing about age.
--
-- The index on all tasks is the only new one. Its key never changes, but a task that changes its state gets a new entry in
-- it, as in the primary key: a quarter more log for each task, and some microseconds of the database's time.

create index task_created on windlass.task (namespace, created_at, id);

drop index windlass.task_rare;
create index task_rare on windlass.task (namespace, state, created_at, id)
    where state in ('blocked', 'sleeping', 'parked', 'failed', 'cancelled', 'skipped');

drop index windlass.task_run;
create index task_run on windlass.task (run_id, created_at, id) where run_id is not null;

drop index windlass.task_schedule;
create index task_schedule on windlass.task (schedule_id, created_at, id) where schedule_id is not null;

drop index windlass.run_list;
create index run_list on windlass.run (namespace, created_at, id);

drop index windlass.schedule_list;
create index schedule_list on windlass.schedule (namespace, created_at, id);

drop index windlass.outbox_dead;
create index outbox_dead on windlass.outbox (namespace, created_at, id) where dead_at is not null;

drop index windlass.dead_message_newest;
create index dead_message_newest on windlass.dead_message (namespace, dead_at, id);

-- `registered_at` changes when a worker registers again; its place in a list does not.
alter table windlass.worker add column created_at timestamptz;
update windlass.worker set created_at = registered_at;
alter table windlass.worker alter column created_at set default windlass.now(), alter column created_at set not null;
drop index windlass.worker_list;
create index worker_list on windlass.worker (namespace, created_at, id);
