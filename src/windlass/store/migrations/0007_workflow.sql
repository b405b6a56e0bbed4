-- Workflows: the record of their steps, and the signals that were sent to them.
--
-- step     what a workflow has done so far, one row per step, keyed by its name and how often that name was asked for.
--          State, not history: a workflow that goes on for a year needs its first step. It is written under the lock of
--          the task's row, and goes with the task. Rows of one workflow are added beside each other, and are rewritten
--          only while they wait (for a time, a signal, a task, the next try).
-- signal   kept until the task is forgotten, also when it was consumed, so that one that is sent twice is one.

-- Whom to wake when this task ends: the workflow that submitted it.
alter table windlass.task add column parent_id uuid;

create table windlass.step (
    task_id      uuid        not null,
    name         text collate "C" not null,
    occurrence   integer     not null,
    position     integer     not null,
    kind         text collate "C" not null,
    state        text collate "C" not null,
    attempt      integer     not null,
    recorded_at  timestamptz not null,
    took_s       double precision not null default 0,
    failures     integer     not null default 0,
    wake_at      timestamptz,
    child_id     uuid,
    error        jsonb,
    result       bytea,
    constraint step_pkey primary key (task_id, name, occurrence),
    constraint step_state check (state in ('waiting', 'succeeded', 'failed'))
) with (autovacuum_vacuum_scale_factor = 0.05);

create table windlass.signal (
    id          uuid        not null primary key,
    number      bigint      generated always as identity,
    task_id     uuid        not null,
    name        text collate "C" not null,
    sent_at     timestamptz not null,
    consumed    boolean     not null default false,
    payload     bytea       not null
);
-- What was sent and not consumed, first come first served: numbers are given under the lock of the task's row.
create index signal_pending on windlass.signal (task_id, name, number) where not consumed;
create index signal_task on windlass.signal (task_id);
