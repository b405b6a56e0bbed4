-- Tasks that workers are told of by their id, and claim one by one.
--
-- heartbeat   an attempt that somebody holds has a row as well; `caller` is the fingerprint of the certificate that was
--             last heard of.
-- event       data that tasks have made, and when they told of it. One that was not declared is kept for audit only.
-- publish     batches of records that tasks have handed over, to be written to the table of their dataset.

alter table windlass.heartbeat add column caller text;

create table windlass.event (
    id               uuid        not null primary key,
    namespace        text collate "C" not null,
    task_id          uuid        not null,
    attempt          integer     not null,
    dataset_uuid     uuid        not null,
    dataset_version  uuid        not null,
    cursor           bigint,
    partition_key    text,
    first            bigint,
    last             bigint,
    declared         boolean     not null,
    caller           text        not null,
    at               timestamptz not null,
    routed_at        timestamptz
);
create index event_task on windlass.event (task_id, at);

create table windlass.publish (
    id               uuid        not null primary key,
    namespace        text collate "C" not null,
    task_id          uuid        not null,
    attempt          integer     not null,
    dataset_uuid     uuid        not null,
    dataset_version  uuid        not null,
    batch_uri        text        not null,
    record_count     bigint      not null,
    caller           text        not null,
    at               timestamptz not null,
    queued_at        timestamptz
);
create index publish_task on windlass.publish (task_id, at);
