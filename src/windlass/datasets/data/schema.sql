-- The data database, as a new one gets it (version 1). It may be the state's own. Nothing in it is authority: which
-- version of a dataset is current is in the state database.
--
--   v_{version}        the rows of one version of a dataset, made at deploy and dropped by a purge
--   dataset_{uuid}     a view on the current version, for other tools
--   dataset_version    which tables there are, and the last cursor of each. The cursor outlives a purge
--   dataset_view       which version a view shows
--   sink_commit        the batches that are in their tables. Written with the rows, so that no batch is written twice

create table windlass_data.dataset_version (
    id            uuid        not null primary key,
    dataset_uuid  uuid        not null,
    cursor        bigint      not null default 0,
    published_at  timestamptz, -- of the newest batch that is in the table
    made_at       timestamptz not null default now()
) with (fillfactor = 50);

create table windlass_data.dataset_view (
    dataset_uuid     uuid not null primary key,
    dataset_version  uuid not null
);

create table windlass_data.sink_commit (
    publish_id       uuid        not null primary key,
    dataset_version  uuid        not null,
    rows_in          bigint      not null,
    rows_new         bigint      not null,
    cursor           bigint      not null,
    published_at     timestamptz not null,
    at               timestamptz not null default now()
);
create index sink_commit_version on windlass_data.sink_commit (dataset_version, cursor);
