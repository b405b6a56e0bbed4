-- The live feed: what happened to tasks, kept for those who follow it and come back after a break.
--
-- change   one row per statement and kind of change, with all tasks that it moved. `tx` says when it became visible: a
--          reader's position is a snapshot, so that nothing is lost or told twice, however transactions overlap.
-- feed     one row: since which transaction changes are recorded, up to which they were forgotten, when somebody read.
--
-- The triggers are off until somebody follows the feed, so that nobody pays for what nobody reads. Switching them on
-- waits for all who write tasks just then (the lock of ALTER TABLE), so that recording has an exact beginning.

create table windlass.change (
    id          bigint      generated always as identity,
    tx          xid8        not null default pg_current_xact_id(),
    at          timestamptz not null,
    namespace   text collate "C" not null,
    queue       text collate "C" not null,
    kind        text collate "C" not null,
    state       text collate "C" not null,
    task_ids    uuid[]      not null,
    attempts    integer[]   not null
) with (autovacuum_vacuum_scale_factor = 0.02);
-- Ids are chance: compressing them would be work for nothing.
alter table windlass.change alter column task_ids set storage external, alter column attempts set storage external;
create index change_order on windlass.change (tx, id);

create table windlass.feed (
    since      xid8,
    forgotten  xid8        not null default '0',
    read_at    timestamptz not null
);
insert into windlass.feed (read_at) values (windlass.now());

create function windlass.record_new() returns trigger
language plpgsql
as $$
begin
    insert into windlass.change (at, namespace, queue, kind, state, task_ids, attempts)
    select windlass.now(), n.namespace, n.queue, n.kind, n.state, array_agg(n.id), array_agg(n.attempt)
      from new_tasks n group by n.namespace, n.queue, n.kind, n.state;
    return null;
end
$$;

create function windlass.record_moved() returns trigger
language plpgsql
as $$
begin
    insert into windlass.change (at, namespace, queue, kind, state, task_ids, attempts)
    select windlass.now(), n.namespace, n.queue, n.kind, n.state, array_agg(n.id), array_agg(n.attempt)
      from new_tasks n join old_tasks o on o.id = n.id
     where (o.state, o.attempt) is distinct from (n.state, n.attempt)
     group by n.namespace, n.queue, n.kind, n.state;
    return null;
end
$$;

create trigger record_new after insert on windlass.task
    referencing new table as new_tasks for each statement execute function windlass.record_new();
create trigger record_moved after update on windlass.task
    referencing new table as new_tasks old table as old_tasks for each statement execute function windlass.record_moved();
alter table windlass.task disable trigger record_new, disable trigger record_moved;
