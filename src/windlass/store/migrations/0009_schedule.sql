-- Schedules, and the tasks that they submitted.
--
-- schedule    one row per schedule; its lock is held while it fires, so that any number of engines may look for what is due.
-- scheduler   one row: when an engine last looked, and the whiles in which none did. Written every few seconds, while there
--             are schedules at all.
--
-- Lock order: schedule before all others.

create table windlass.schedule (
    id               uuid        not null primary key,
    namespace        text collate "C" not null,
    name             text collate "C",
    app              text collate "C",
    kind             text        not null,
    queue            text        not null,
    cron             text        not null,
    timezone         text        not null,
    payload          bytea       not null,
    priority         smallint    not null,
    concurrency_key  text        not null,
    policy           jsonb,
    wire             bytea,
    overlap          text        not null check (overlap in ('allow', 'skip', 'queue', 'cancel')),
    max_catchup      integer     not null,
    paused           boolean     not null,
    settled_at       timestamptz not null,
    next_fire_at     timestamptz,
    last_fire_at     timestamptz,
    last_task_id     uuid,
    fired            bigint      not null default 0,
    skipped          bigint      not null default 0,
    problem          text,
    created_at       timestamptz not null,
    updated_at       timestamptz not null,
    declared_at      timestamptz,
    request_key      text
) with (fillfactor = 70, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);
create unique index schedule_name on windlass.schedule (namespace, name) where name is not null;
-- A repeat of the request that made it finds it.
create unique index schedule_request on windlass.schedule (namespace, request_key) where request_key is not null;
create index schedule_list on windlass.schedule (namespace, id);
create index schedule_due on windlass.schedule (next_fire_at) where not paused and next_fire_at is not null;

create table windlass.scheduler (
    only_one   boolean     not null primary key default true check (only_one),
    ticked_at  timestamptz not null,
    outages    jsonb       not null default '[]'
) with (fillfactor = 50);
insert into windlass.scheduler (ticked_at) values (windlass.now());

alter table windlass.task add column schedule_id uuid;
-- What a schedule has submitted, newest first; and what of it has not ended. Both empty for all other tasks.
create index task_schedule on windlass.task (schedule_id, id) where schedule_id is not null;
create index task_schedule_open on windlass.task (schedule_id) where schedule_id is not null and finished_at is null;
