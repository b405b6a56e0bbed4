-- Wake-ups: messages with the id of a task, for workers that claim by it.
--
-- wakeup        one row for each task that a message was sent for and that nobody has claimed since. It says when that is
--               done again, or that the message was buried. Removed when its task has moved on.
-- message       what PostgreSQL carries. Who received a message is told by how often it was delivered.
-- dead_message  messages of any carrier that nobody could do anything with, until a person has looked at them.

create table windlass.wakeup (
    task_id     uuid        not null primary key,
    attempt     integer     not null,
    namespace   text collate "C" not null,
    queue       text collate "C" not null,
    times       integer     not null,
    again_at    timestamptz not null,
    dead_at     timestamptz
) with (fillfactor = 70, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);
create index wakeup_queue on windlass.wakeup (namespace, queue);

create table windlass.message (
    id          uuid        not null primary key,
    namespace   text collate "C" not null,
    queue       text collate "C" not null,
    body        bytea       not null,
    deliveries  integer     not null default 0,
    visible_at  timestamptz not null,
    created_at  timestamptz not null
) with (fillfactor = 70, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);
create index message_visible on windlass.message (namespace, queue, visible_at);

create table windlass.dead_message (
    id          uuid        not null primary key,
    namespace   text collate "C" not null,
    queue       text collate "C" not null,
    message_id  text        not null,
    task_id     uuid,
    body        bytea       not null,
    deliveries  integer     not null,
    reason      text        not null,
    dead_at     timestamptz not null,
    unique (namespace, queue, message_id)
);
create index dead_message_newest on windlass.dead_message (namespace, id);
