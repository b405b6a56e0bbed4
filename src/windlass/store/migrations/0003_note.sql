-- What attempts say while they run: three narrow tables beside the tasks, so that a note never rewrites a task's row.
--
-- progress     how far a task is; the last word counts. No column but the key is indexed and half of each page is free,
--              so that an update stays on its page and touches no index.
-- checkpoint   what the next attempt may go on from; the last word counts.
-- log_line     the last lines of an attempt: a line's place is its number modulo how many are kept.
--
-- They end with their task: see `delete_finished`.

create table windlass.progress (
    task_id   uuid        not null primary key,
    attempt   integer     not null,
    current   double precision not null,
    maximum   double precision,
    message   text        not null,
    at        timestamptz not null
) with (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);

create table windlass.checkpoint (
    task_id   uuid        not null primary key,
    attempt   integer     not null,
    data      bytea       not null,
    at        timestamptz not null
) with (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);

create table windlass.log_line (
    task_id   uuid        not null,
    attempt   integer     not null,
    place     smallint    not null,
    number    integer     not null,
    level     text        not null,
    message   text        not null,
    at        timestamptz not null,
    primary key (task_id, attempt, place)
);
