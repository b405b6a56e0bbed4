-- The registry of workers, of every kind, and what a workflow tells of each try at a step.
--
-- worker        who works here: one row per worker, kept for a while after it went. Whether it is alive is said by its
--               lease alone; a new incarnation (the same host, process, queue and namespace registering again) is the
--               same worker under a new lease. Only what is counted changes with a heartbeat, and no index holds it.
-- step_attempt  one row per try at a step that was begun over the registry's wire. The record of the step itself is in
--               `step`, and is all that a replay reads.

-- A worker that drains gets no new tasks; when this moment has come and it is still there, it is gone.
alter table windlass.lease add column draining_until timestamptz;

create table windlass.worker (
    id               uuid        not null primary key,
    lease_id         uuid        not null,
    namespace        text collate "C" not null,
    contract         text collate "C" not null,
    name             text        not null,
    queues           text[]      not null,
    kinds            text[],
    labels           jsonb       not null default '{}',
    host             text collate "C" not null default '',
    pid              integer     not null default 0,
    version          text        not null default '',
    max_running      integer     not null default 0,
    incarnation      integer     not null default 1,
    registered_at    timestamptz not null,
    heartbeat_at     timestamptz not null,
    offline_at       timestamptz,
    reported         integer     not null default 0,
    completed        bigint      not null default 0,
    failed           bigint      not null default 0
) with (fillfactor = 60, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);

create unique index worker_identity on windlass.worker (namespace, (queues[1]), host, pid)
    where contract = 'registry' and host <> '' and pid <> 0;
create index worker_list on windlass.worker (namespace, id);
create index worker_lease on windlass.worker (lease_id);
create index worker_offline on windlass.worker (offline_at) where offline_at is not null;

insert into windlass.worker (id, lease_id, namespace, contract, name, queues, kinds, labels, host, pid, version,
                             registered_at, heartbeat_at)
select l.id, l.id, l.namespace, 'session', l.worker, l.queues, l.kinds,
       coalesce((select jsonb_object_agg(label, '') from unnest(l.labels) as label), '{}'), l.host, l.pid, l.version,
       l.created_at, l.expires_at - l.ttl_s * interval '1 second'
  from windlass.lease l;

-- Workers as they are at this moment.
create view windlass.worker_now as
select w.id, w.lease_id, w.namespace, w.contract, w.name, w.queues, w.kinds, w.labels, w.host, w.pid, w.version,
       w.max_running, w.incarnation, w.registered_at,
       greatest(w.heartbeat_at, l.expires_at - l.ttl_s * interval '1 second') as heartbeat_at, w.offline_at, w.completed,
       w.failed,
       case when l.id is null or l.expires_at <= windlass.now() or l.draining_until <= windlass.now() then 'offline'
            when l.draining_until is not null then 'draining' else 'online' end as state,
       coalesce(l.ttl_s, 0) as lease_s, coalesce(l.expires_at, w.offline_at, w.heartbeat_at) as expires_at, w.reported
  from windlass.worker w left join windlass.lease l on l.id = w.lease_id;

create table windlass.step_attempt (
    id           uuid        not null primary key,
    task_id      uuid        not null,
    name         text collate "C" not null,
    occurrence   integer     not null,
    number       integer     not null,
    attempt      integer     not null,
    tries        integer     not null,
    state        text collate "C" not null,
    begun_at     timestamptz not null,
    ended_at     timestamptz,
    policy       jsonb,
    final        text[],
    error        jsonb,
    input        bytea,
    constraint step_attempt_number unique (task_id, name, occurrence, number),
    constraint step_attempt_state check (state in ('running', 'succeeded', 'retrying', 'failed'))
) with (autovacuum_vacuum_scale_factor = 0.05);
