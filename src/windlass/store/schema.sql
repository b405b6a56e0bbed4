-- The tables of Windlass, as a new database gets them (version 1). A released schema changes by migrations only.
--
-- The kernel
--   task         one row per task, from its submission until retention removes it. Its columns hold the submission and
--                the last attempt; `history` holds only what happened in between.
--   history      append-only, partitioned by time; retention drops partitions.
--   lease        one row per live worker session. Liveness is stored here and not in the task, so that a heartbeat
--                rewrites one narrow row and touches no index.
--   worker       one row per worker, kept for a while after it went offline. Its lease tells whether it is alive.
--   heartbeat    one row per attempt that was sent to a worker or claimed by id, with its own timeout.
--   queue        the settings of a queue. Its row is the lock under which limits are decided.
--   rate_start   starts of tasks in queues with a rate limit.
--   kind         the policy that the code of workers declares for a kind.
--   run, edge    groups of tasks, and which task waits for which.
--   idempotency  keys of submissions.
--   step, signal the records of a workflow, and the signals that were sent to it.
--   schedule     which tasks are submitted at which times.
--   outbox       effects to carry out after the commit that decided them.
--   progress, checkpoint, log_line   what attempts report while they run.
--   blob_store   which blob store holds payloads and results that are too long for a row.
--   namespace, api_key, token_key    access control.
--   change, feed the change feed.
-- Contracts
--   step_attempt                     registry
--   wakeup, message, dead_message    lease
--   installation, machine, export_object   machine
-- Datasets
--   dag, deployment, deployment_job, deployment_edge, deployment_pointer   DAG files, and what each version of one runs
--   job, job_task, job_cursor, consumption      consumers of data: their tasks, and what they have been given
--   dataset, dataset_version, partition, partition_revision, cursor_commit, high_water
--                                    data, and which part of it is committed
--   lake         which store is the lake, and how far its clean-up has come.
--   event, publish                   what tasks have reported
--   backfill, backfill_job, backfill_task       partitions that are made again, and the tasks that make them
--   invalidation, invalidation_task             data that was wrong, and the tasks of the jobs that have read it
--
-- Rules for all of them:
--   - Names are compared byte by byte (collation "C"): this is cheap, the same on every server, and the order in which
--     Python sorts.
--   - Transactions take locks in the order schedule, queue, dag, job, run, lease, task.
--   - `windlass.now()` is the only clock.
--   - Tables whose rows change often leave room on their pages (fillfactor) and are vacuumed early, so that an update
--     stays on its page and touches no index.

create schema if not exists windlass;

-- Returns the time of the statement. That is later than the moment at which earlier statements got their locks.
-- STABLE, so that it may bound an index scan. The test kit replaces its body to read a clock table.
create function windlass.now() returns timestamptz
language sql stable parallel safe
as $$ select statement_timestamp() $$;

-- --------------------------------------------------------------------------------------------------------------- tasks

create table windlass.task (
    id               uuid        not null,
    namespace        text collate "C" not null,
    queue            text collate "C" not null,
    kind             text collate "C" not null,
    state            text collate "C" not null,
    available_at     timestamptz not null,
    priority         smallint    not null default 0,
    concurrency_key  text collate "C" not null default '',
    attempt          integer     not null default 0,
    failures         integer     not null default 0,
    losses           integer     not null default 0,
    outcome          text,
    lease_id         uuid,
    worker           text,
    created_at       timestamptz not null,
    started_at       timestamptz,
    finished_at      timestamptz,
    deadline_at      timestamptz,
    timer_at         timestamptz, -- the next deadline, timeout, wake-up or end of a grace period
    run_id           uuid,
    parent_id        uuid,        -- the workflow that submitted it; it wakes when this task ends
    schedule_id      uuid,
    job_id           uuid,        -- the job of a DAG that it runs; the job moves on when this task ends
    replay_of        uuid,        -- the ended task that this one runs again
    claim_id         uuid,        -- the claim that began the current attempt: finds it after a lost reply
    has_dependents   boolean     not null default false,
    awaited          boolean     not null default false,
    requires         text[],
    idempotency_key  text,
    trace            text,        -- the span that submitted it (W3C Trace Context)
    cancel           jsonb,
    policy           jsonb,
    error            jsonb,
    wire             bytea,       -- data that only one contract reads
    payload          bytea       not null,
    result           bytea,
    constraint task_pkey primary key (id),
    constraint task_state check (state in ('blocked', 'queued', 'running', 'sleeping', 'parked',
                                           'succeeded', 'failed', 'cancelled', 'skipped'))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

-- Tasks that can be claimed. A lane is (queue, priority, concurrency key). Within a lane, tasks that are not due yet
-- come after those that are, so that no claim scans past them. Tasks of one transaction have equal index keys, which
-- B-tree deduplication stores as one; their order is that of their rows in the table.
create index task_ready on windlass.task (namespace, queue, priority, concurrency_key, available_at)
    where state = 'queued';
-- Running tasks by start. The tasks of one claim have equal index keys, stored as one; new keys go to the end.
create index task_running on windlass.task (namespace, queue, started_at) where state = 'running';
-- Running tasks with a cancel request: nearly always empty.
create index task_cancelling on windlass.task (lease_id) where state = 'running' and cancel is not null;
-- Only tasks that have a timer.
create index task_timer on windlass.task (timer_at) where timer_at is not null;
-- For lists and retention, which go by age. Ids do not tell the age: they may be derived, or chosen by the caller.
-- The key never changes, but each change of state writes a new index entry, which adds a quarter to the WAL of a
-- task.
create index task_created on windlass.task (namespace, created_at, id);
-- For lists of states that most tasks never have. Other tasks have no entry and no cost.
create index task_rare on windlass.task (namespace, state, created_at, id)
    where state in ('blocked', 'sleeping', 'parked', 'failed', 'cancelled', 'skipped');
create index task_run on windlass.task (run_id, created_at, id) where run_id is not null;
-- The tasks of a schedule, and those of them that have not ended.
create index task_schedule on windlass.task (schedule_id, created_at, id) where schedule_id is not null;
create index task_schedule_open on windlass.task (schedule_id) where schedule_id is not null and finished_at is null;
-- The tasks of a job, and those of them that have not ended.
create index task_job on windlass.task (job_id, created_at, id) where job_id is not null;
create index task_job_open on windlass.task (job_id, state) where job_id is not null and finished_at is null;

-- Not partitioned: a key is unique for as long as its task is kept.
create table windlass.idempotency (
    namespace   text not null,
    key         text not null,
    task_id     uuid not null,
    primary key (namespace, key)
);

create table windlass.history (
    task_id   uuid        not null,
    at        timestamptz not null,
    attempt   integer     not null,
    what      text        not null,
    worker    text,
    detail    jsonb
) partition by range (at);
create index history_task on windlass.history (task_id, at);
-- Holds entries that have no partition (the clock was changed, or the retention loop did not run).
create table windlass.history_default partition of windlass.history default;

-- ------------------------------------------------------------------------------------------------------------- workers

-- A worker that drains gets no new tasks; its lease ends at `draining_until`. `delivery` is how tasks reach it.
create table windlass.lease (
    id              uuid        not null primary key,
    namespace       text        not null,
    worker          text        not null,
    queues          text[]      not null,
    kinds           text[],
    labels          text[]      not null default '{}',
    ttl_s           double precision not null,
    expires_at      timestamptz not null,
    created_at      timestamptz not null,
    host            text        not null default '',
    pid             integer     not null default 0,
    version         text        not null default '',
    draining_until  timestamptz,
    delivery        text collate "C" not null default 'pull'
) with (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);

-- If the same host, process, queue and namespace registers again, it is the same worker with a new lease and the next
-- incarnation. `registered_at` changes then; `created_at` does not, so that its place in a list stays.
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
    created_at       timestamptz not null default windlass.now(),
    registered_at    timestamptz not null,
    heartbeat_at     timestamptz not null,
    offline_at       timestamptz,
    reported         integer     not null default 0,
    completed        bigint      not null default 0,
    failed           bigint      not null default 0
) with (fillfactor = 60, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);
create unique index worker_identity on windlass.worker (namespace, (queues[1]), host, pid)
    where contract = 'registry' and host <> '' and pid <> 0;
create index worker_list on windlass.worker (namespace, created_at, id);
create index worker_lease on windlass.worker (lease_id);
create index worker_offline on windlass.worker (offline_at) where offline_at is not null;

-- Workers with their current state.
create view windlass.worker_now as
select w.id, w.lease_id, w.namespace, w.contract, w.name, w.queues, w.kinds, w.labels, w.host, w.pid, w.version,
       w.max_running, w.incarnation, w.registered_at,
       greatest(w.heartbeat_at, l.expires_at - l.ttl_s * interval '1 second') as heartbeat_at, w.offline_at, w.completed,
       w.failed,
       case when l.id is null or l.expires_at <= windlass.now() or l.draining_until <= windlass.now() then 'offline'
            when l.draining_until is not null then 'draining' else 'online' end as state,
       coalesce(l.ttl_s, 0) as lease_s, coalesce(l.expires_at, w.offline_at, w.heartbeat_at) as expires_at, w.reported
  from windlass.worker w left join windlass.lease l on l.id = w.lease_id;

-- `expires_at` is `infinity` until the attempt is delivered; until then the outbox is responsible for it. A row may
-- stay after its attempt, until it expires. `caller` is the fingerprint of the certificate of the last heartbeat.
create table windlass.heartbeat (
    task_id       uuid        not null primary key,
    attempt       integer     not null,
    timeout_ms    bigint      not null,
    slack_ms      bigint      not null,
    expires_at    timestamptz not null,
    heartbeat_at  timestamptz,
    caller        text
) with (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);

-- ---------------------------------------------------------------------------------------------------- queues and kinds

-- Limits (`config`), how tasks reach workers (`delivery`), the default policy of its tasks (`policy`), and the
-- secrets that sign pushes. During a rotation the previous secret signs too.
create table windlass.queue (
    namespace        text not null,
    name             text not null,
    config           jsonb not null default '{}',
    delivery         jsonb,
    policy           jsonb,
    signing_secret   text,
    previous_secret  text,
    secret_until     timestamptz,
    primary key (namespace, name)
);

-- One row per claim, kept while it lies in the window of the queue's rate.
create table windlass.rate_start (
    namespace   text        not null,
    queue       text        not null,
    at          timestamptz not null,
    count       integer     not null
);
create index rate_start_window on windlass.rate_start (namespace, queue, at);

-- The policy for tasks that are submitted by name, by programs that do not have the code.
create table windlass.kind (
    namespace    text collate "C" not null,
    name         text collate "C" not null,
    app          text        not null,
    policy       jsonb       not null,
    declared_at  timestamptz not null,
    primary key (namespace, name)
);

-- ---------------------------------------------------------------------------------------------------------------- runs

create table windlass.run (
    id          uuid        not null primary key,
    namespace   text        not null,
    created_at  timestamptz not null
);
create index run_list on windlass.run (namespace, created_at, id);

-- A settled edge is deleted.
create table windlass.edge (
    task_id      uuid    not null,
    upstream_id  uuid    not null,
    run_id       uuid    not null,
    any_outcome  boolean not null default false,
    primary key (upstream_id, task_id)
);
create index edge_task on windlass.edge (task_id);

-- ----------------------------------------------------------------------------------------------------------- workflows

-- State, not history: a workflow that runs for a year still needs its first step. One row per step, identified by its
-- name and how often that name was used before. Written under the lock of the task, and removed with the task. A row
-- is rewritten only while its step waits (for a time, a signal, a task, the next try).
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

-- A signal is kept until its task is removed, even after it was consumed, so that a repeated signal is recognized.
create table windlass.signal (
    id          uuid        not null primary key,
    number      bigint      generated always as identity,
    task_id     uuid        not null,
    name        text collate "C" not null,
    sent_at     timestamptz not null,
    consumed    boolean     not null default false,
    payload     bytea       not null
);
-- Signals that are not consumed, in the order of arrival: a signal gets its number under the lock of the task.
create index signal_pending on windlass.signal (task_id, name, number) where not consumed;
create index signal_task on windlass.signal (task_id);

-- ----------------------------------------------------------------------------------------------------------- schedules

-- An engine locks the row while it fires, so that any number of engines may look for due schedules. `extra_fire_at`
-- is the next fire if a person set it; the cron expression need not contain that instant.
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
    extra_fire_at    timestamptz,
    last_fire_at     timestamptz,
    last_task_id     uuid,
    fired            bigint      not null default 0,
    skipped          bigint      not null default 0,
    problem          text,
    created_at       timestamptz not null,
    updated_at       timestamptz not null,
    declared_at      timestamptz,
    request_key      text,
    job_id           uuid         -- the job of a DAG that its tasks run
) with (fillfactor = 70, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);
create unique index schedule_name on windlass.schedule (namespace, name) where name is not null;
-- A repeated request finds the schedule that it created.
create unique index schedule_request on windlass.schedule (namespace, request_key) where request_key is not null;
create index schedule_list on windlass.schedule (namespace, created_at, id);
create index schedule_due on windlass.schedule (next_fire_at) where not paused and next_fire_at is not null;

-- One row: when an engine last looked for due schedules, and the periods in which none did.
create table windlass.scheduler (
    only_one   boolean     not null primary key default true check (only_one),
    ticked_at  timestamptz not null,
    outages    jsonb       not null default '[]'
) with (fillfactor = 50);
insert into windlass.scheduler (ticked_at) values (windlass.now());

-- ------------------------------------------------------------------------------------------------ effects and payloads

create table windlass.outbox (
    id            uuid        not null primary key,
    kind          text        not null,
    namespace     text        not null,
    task_id       uuid        not null,
    attempt       integer     not null,
    body          jsonb       not null,
    tries         integer     not null default 0,
    available_at  timestamptz not null,
    created_at    timestamptz not null,
    dead_at       timestamptz,
    error         text
) with (fillfactor = 70, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);
create index outbox_due on windlass.outbox (kind, available_at) where dead_at is null;
create index outbox_task on windlass.outbox (task_id);
-- For the list of dead effects: nearly always empty.
create index outbox_dead on windlass.outbox (namespace, created_at, id) where dead_at is not null;

-- One row. All processes on this database must use the same store, so its id is kept both here and in the store. The
-- URL is for people and contains no secret.
create table windlass.blob_store (
    only_one    boolean     not null default true primary key check (only_one),
    id          uuid        not null,
    url         text        not null,
    created_at  timestamptz not null
);

-- ------------------------------------------------------------------------------------------------------------ progress

-- Narrow tables, so that progress never rewrites the row of a task. Their rows are removed with the task.

-- The latest progress of a task.
create table windlass.progress (
    task_id   uuid        not null primary key,
    attempt   integer     not null,
    current   double precision not null,
    maximum   double precision,
    message   text        not null,
    at        timestamptz not null
) with (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);

-- The latest checkpoint, from which the next attempt may continue.
create table windlass.checkpoint (
    task_id   uuid        not null primary key,
    attempt   integer     not null,
    data      bytea       not null,
    at        timestamptz not null
) with (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);

-- The last log lines of an attempt, as a ring: the place of a line is its number modulo the number of lines kept.
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

-- -------------------------------------------------------------------------------------------------------------- access

-- Namespaces that were declared, or used through the API. A namespace needs no row to be used.
create table windlass.namespace (
    name        text collate "C" not null primary key,
    created_at  timestamptz not null
);
insert into windlass.namespace values ('default', windlass.now());

-- Only a hash of each key is stored, so that a reader of this table cannot use the keys.
create table windlass.api_key (
    id          uuid        not null primary key,
    hash        bytea       not null unique,
    hint        text        not null,
    name        text        not null,
    role        text        not null check (role in ('viewer', 'submitter', 'operator', 'admin')),
    namespace   text,
    groups      text[]      not null default '{}',
    created_at  timestamptz not null,
    revoked_at  timestamptz
);

-- The keys that sign the tokens of workers. The newest signs; tokens of the one before it are still accepted.
create table windlass.token_key (
    id          uuid        not null primary key,
    secret      bytea       not null,
    created_at  timestamptz not null
);

-- ----------------------------------------------------------------------------------------------------- the change feed

-- One row per statement and kind of change, with all tasks that it changed. `tx` tells when the row became visible.
-- The position of a reader is a snapshot, so that it misses no row and reads none twice, however transactions
-- overlap. Triggers write the rows; they exist only while the feed has readers (`record_changes`).
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
-- Ids are random, so that compression would gain nothing.
alter table windlass.change alter column task_ids set storage external, alter column attempts set storage external;
create index change_order on windlass.change (tx, id);

-- One row: the transaction since which changes are recorded, the one up to which they were deleted, and the last
-- read.
create table windlass.feed (
    since      xid8,
    forgotten  xid8        not null default '0',
    read_at    timestamptz not null
);
insert into windlass.feed (read_at) values (windlass.now());

-- -------------------------------------------------------------------------------------------------- contract: registry

-- One row per try at a step that a worker has begun. The record of the step is in `step`; a replay reads only that.
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

-- ----------------------------------------------------------------------------------------------------- contract: lease

-- One row per task that was announced by a wake-up message and not claimed since: the number of messages, when the
-- last was sent, when the next is due, and whether it became a dead letter. Removed once the task no longer needs a
-- message.
create table windlass.wakeup (
    task_id     uuid        not null primary key,
    attempt     integer     not null,
    namespace   text collate "C" not null,
    queue       text collate "C" not null,
    times       integer     not null,
    sent_at     timestamptz not null default now(),
    again_at    timestamptz not null,
    dead_at     timestamptz
) with (fillfactor = 70, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);
create index wakeup_queue on windlass.wakeup (namespace, queue);

-- Wake-up messages, where PostgreSQL is the carrier. The number of deliveries proves that a receiver has the message.
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
-- Messages of batches, for sinks, which receive from the queues of all datasets.
create index message_buffer on windlass.message (visible_at) where queue like 'buffer.%';

-- Dead letters of any carrier, until a person replays or discards them. A carrier that lost all its messages numbers
-- them from the beginning again, so that an id may belong to two messages: the body tells them apart.
create table windlass.dead_message (
    id          uuid        not null primary key,
    namespace   text collate "C" not null,
    queue       text collate "C" not null,
    message_id  text        not null,
    task_id     uuid,
    body        bytea       not null,
    deliveries  integer     not null,
    reason      text        not null,
    dead_at     timestamptz not null
);
create unique index dead_message_once on windlass.dead_message (namespace, queue, message_id, md5(body));
create index dead_message_newest on windlass.dead_message (namespace, dead_at, id);

-- --------------------------------------------------------------------------------------------------- contract: machine

-- One row: the id of this installation, where several of them start machines with one daemon, cluster or account.
create table windlass.installation (id uuid not null primary key);
insert into windlass.installation values (gen_random_uuid());

-- One row per attempt for which a machine was requested; open until nothing of the machine is left.
create table windlass.machine (
    task_id      uuid        not null,
    attempt      integer     not null,
    namespace    text        not null,
    queue        text        not null,
    launcher     text        not null,
    place        text        not null,
    machine_id   text,
    instance_id  text,
    requested_at timestamptz not null,
    launched_at  timestamptz,
    deadline_at  timestamptz,
    ended_at     timestamptz,
    exit_code    integer,
    reason       text,
    primary key (task_id, attempt)
);
create index machine_open on windlass.machine (launcher, place) where ended_at is null;

-- Tasks that may have left objects. A row is removed with its objects.
create table windlass.export_object (
    task_id        uuid             not null primary key,
    prefix         text             not null,
    keep_s         double precision not null,
    downloaded_at  timestamptz
);

-- ------------------------------------------------------------------------------------------------------------ datasets

-- A DAG by name. Its row is the lock of deploys and cutovers.
create table windlass.dag (
    namespace         text collate "C" not null,
    name              text collate "C" not null,
    active_version    uuid,        -- the deployment that is active
    previous_version  uuid,        -- the one before it, for a rollback
    paused            boolean     not null default false,
    retired_at        timestamptz,
    created_at        timestamptz not null,
    primary key (namespace, name)
);

-- One version of a DAG: its file, and the state of its deployment. The same file is the same version, unless jobs are
-- rebuilt: those have a nonce.
create table windlass.deployment (
    id             uuid        not null primary key,
    namespace      text collate "C" not null,
    dag            text collate "C" not null,
    number         integer     not null,
    yaml           text        not null,
    yaml_sha256    text        not null,
    nonces         jsonb       not null default '{}',
    state          text collate "C" not null,
    auto_cutover   boolean     not null,
    plan           jsonb       not null,
    plan_hash      text        not null,
    created_by     text        not null,
    created_at     timestamptz not null,
    ready_at       timestamptz,
    activated_at   timestamptz,
    ended_at       timestamptz,
    reason         text,
    constraint deployment_number unique (namespace, dag, number),
    constraint deployment_file unique (namespace, dag, yaml_sha256, nonces),
    constraint deployment_state check (state in ('building', 'ready', 'active', 'failed', 'superseded', 'rolled_back',
                                                 'abandoned'))
);
-- The deployments that a loop has to bring forward.
create index deployment_open on windlass.deployment (created_at) where state in ('building', 'ready', 'failed');

-- The jobs of a deployment. A job with the same fingerprint in two deployments is the same job (`job_id`).
create table windlass.deployment_job (
    deployment_id  uuid   not null,
    name           text collate "C" not null,
    job_id         uuid   not null,
    fingerprint    text   not null,
    definition     jsonb  not null,
    queue          text collate "C" not null,
    inputs         jsonb  not null,
    outputs        jsonb  not null,
    primary key (deployment_id, name)
);
create index deployment_job_job on windlass.deployment_job (job_id);
create index deployment_job_always_on on windlass.deployment_job (deployment_id)
    where definition #>> '{source,kind}' = 'always_on';

-- The inputs of the jobs of a deployment. `dataset_version` is null for a dataset of another DAG: then it is the one
-- that the active deployment of that DAG points to. `continues`: of a new version, the job is owed only what it was not
-- given of the old one (`job_upgrade`). `coalesces`: one task takes all that waits. `needs_all`: a partition is owed when
-- every triggering input has it.
create table windlass.deployment_edge (
    deployment_id    uuid     not null,
    job_id           uuid     not null,
    input_index      smallint not null,
    dataset_uuid     uuid     not null,
    dataset_version  uuid,
    condition        text,
    trigger          boolean  not null,
    by_partition     boolean  not null,
    continues        boolean  not null default false,
    coalesces        boolean  not null default false,
    needs_all        boolean  not null default false,
    primary key (deployment_id, job_id, input_index)
);
create index deployment_edge_dataset on windlass.deployment_edge (dataset_uuid);

-- Inputs of jobs that continue, whose version has changed. Until the reconcile loop has carried over what the job was
-- given, the job reads the version before. `from_index` is the place that the input had, `mark` the last partition that
-- was carried over, and `at` is when the version changed: what is committed later is owed.
create table windlass.job_upgrade (
    job_id        uuid        not null,
    input_index   smallint    not null,
    dataset_uuid  uuid        not null,
    from_index    smallint    not null,
    from_version  uuid        not null,
    mark          text collate "C" not null default '',
    at            timestamptz not null,
    primary key (job_id, input_index)
);

-- Requests with an Idempotency-Key that changed a DAG or its data: `subject` is what they changed or made.
create table windlass.request (
    namespace  text collate "C" not null,
    key        text collate "C" not null,
    sha256     text        not null,
    subject    uuid        not null,
    at         timestamptz not null,
    primary key (namespace, key)
);
create index request_age on windlass.request (at);

-- Paths of the webhooks of active deployments.
create table windlass.webhook (
    namespace      text collate "C" not null,
    path           text collate "C" not null,
    deployment_id  uuid not null,
    job_id         uuid not null,
    primary key (namespace, path)
);

-- The secrets that sign requests to the webhook of a job. During a rotation the previous one is accepted too.
create table windlass.webhook_secret (
    namespace        text collate "C" not null,
    dag              text collate "C" not null,
    job              text collate "C" not null,
    secret           text        not null,
    previous_secret  text,
    previous_until   timestamptz,
    set_at           timestamptz not null,
    primary key (namespace, dag, job)
);

-- The version of each dataset that a deployment writes.
create table windlass.deployment_pointer (
    deployment_id    uuid not null,
    dataset_uuid     uuid not null,
    dataset_version  uuid not null,
    primary key (deployment_id, dataset_uuid)
);
create index deployment_pointer_version on windlass.deployment_pointer (dataset_version);

-- A consumer of data: a job with one fingerprint. Its row is the lock under which its tasks are made, so that windows
-- do not overlap and no task is made twice. `held`: it gets no tasks, because too many wait, of it or of the job that
-- `held_by` names (DAG/job). `behind`: something may
-- be owed that no event will report, so the reconcile loop compares what is committed with what was given.
create table windlass.job (
    id           uuid        not null primary key,
    namespace    text collate "C" not null,
    dag          text collate "C" not null,
    name         text collate "C" not null,
    fingerprint  text        not null,
    held         boolean     not null default false,
    held_by      text,
    behind       boolean     not null default false,
    created_at   timestamptz not null
) with (fillfactor = 70);
create index job_behind on windlass.job (id) where behind;
create index job_name on windlass.job (namespace, dag, name);

-- The tasks of a job. The key says what the task is owed for, so that none is made twice. A task that reads a window
-- has the version and the cursor up to which it reads.
create table windlass.job_task (
    job_id           uuid        not null,
    dedupe_key       text collate "C" not null,
    task_id          uuid        not null,
    deployment_id    uuid        not null,
    trigger          jsonb       not null,
    dataset_version  uuid,
    cursor           bigint,
    created_at       timestamptz not null,
    primary key (job_id, dedupe_key)
);
create unique index job_task_task on windlass.job_task (task_id);
create index job_task_newest on windlass.job_task (job_id, created_at);

-- How far a job has read a version of a dataset.
create table windlass.job_cursor (
    job_id           uuid        not null,
    dataset_version  uuid        not null,
    cursor           bigint      not null,
    updated_at       timestamptz not null,
    primary key (job_id, dataset_version)
) with (fillfactor = 50);

-- The partitions that a job was given: which revision, and to which task.
create table windlass.consumption (
    job_id           uuid     not null,
    input_index      smallint not null,
    dataset_version  uuid     not null,
    key              text collate "C" not null,
    revision         integer  not null,
    task_id          uuid     not null,
    primary key (job_id, input_index, dataset_version, key, revision)
);

create table windlass.dataset (
    id            uuid        not null primary key,
    namespace     text collate "C" not null,
    dag           text collate "C" not null,
    job           text collate "C",
    output_index  smallint,
    name          text collate "C",
    storage       text collate "C" not null,
    write_mode    text collate "C",
    read_roles    text[]      not null default '{}',
    description   text        not null default '',
    schema        jsonb,
    max_age_s     double precision,
    created_at    timestamptz not null,
    retired_at    timestamptz
);
create unique index dataset_name on windlass.dataset (namespace, name) where name is not null and retired_at is null;
create index dataset_dag on windlass.dataset (namespace, dag);

-- A generation of a dataset, made by one definition of its job. `table_at`: its table in the data database was made.
-- `purging`: it was purged, and not all of its data is deleted yet.
create table windlass.dataset_version (
    id            uuid        not null primary key,
    dataset_uuid  uuid        not null,
    fingerprint   text        not null,
    schema        jsonb,
    location      text,
    created_at    timestamptz not null,
    table_at      timestamptz,
    purged_at     timestamptz,
    purging       boolean     not null default false
);
create index dataset_version_dataset on windlass.dataset_version (dataset_uuid, created_at);
create index dataset_version_purged on windlass.dataset_version (purged_at) where table_at is not null;
create index dataset_version_purging on windlass.dataset_version (purged_at) where purging;

-- The current revision of each partition, and all revisions. `partition_revision` is append-only.
create table windlass.partition (
    dataset_version  uuid        not null,
    key              text collate "C" not null,
    first            bigint,
    last             bigint,
    revision         integer     not null,
    committed_at     timestamptz not null,
    primary key (dataset_version, key)
) with (fillfactor = 80);
create index partition_range on windlass.partition (dataset_version, first, key);

create table windlass.partition_revision (
    dataset_version  uuid        not null,
    key              text collate "C" not null,
    revision         integer     not null,
    task_id          uuid        not null,
    attempt          integer     not null,
    deployment_id    uuid,
    location         text,
    manifest_sha256  text,
    rows             bigint,
    bytes            bigint,
    trace_id         text,
    inputs           jsonb       not null default '[]',
    committed_at     timestamptz not null,
    primary key (dataset_version, key, revision)
);
create index partition_revision_task on windlass.partition_revision (task_id);

-- The files that tasks added to versions in the lake whose data has cursors instead of partitions. Append-only.
create table windlass.cursor_commit (
    dataset_version  uuid        not null,
    cursor           bigint      not null,
    task_id          uuid        not null,
    attempt          integer     not null,
    deployment_id    uuid        not null,
    location         text        not null,
    manifest_sha256  text        not null,
    rows             bigint      not null,
    bytes            bigint      not null,
    trace_id         text,
    inputs           jsonb       not null default '[]',
    committed_at     timestamptz not null,
    primary key (dataset_version, cursor, task_id)
);
create index cursor_commit_task on windlass.cursor_commit (task_id);

-- One row: the store that is the lake of this database, as with `blob_store`, and how far its clean-up has come. `place`
-- is the last key that was looked at; no server looks further before `next_at`. `walk_bytes` is what this walk has found
-- in folders that are not committed, `staging_bytes` what the last whole walk found.
create table windlass.lake (
    only_one       boolean     not null default true primary key check (only_one),
    id             uuid        not null,
    url            text        not null,
    created_at     timestamptz not null,
    place          text        not null default '',
    next_at        timestamptz not null,
    walk_bytes     bigint      not null default 0,
    staging_bytes  bigint
);

-- The highest cursor that was reported for a version.
create table windlass.high_water (
    dataset_version  uuid   not null primary key,
    cursor           bigint not null
) with (fillfactor = 50);

-- What tasks have reported of their data. An event of an undeclared dataset is kept for audit only. `revision` is that
-- of the partition which the event committed. `routing` is what became of it.
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
    revision         integer,
    traceparent      text,
    routing          text collate "C",
    routed_at        timestamptz
);
create index event_task on windlass.event (task_id, at);
create index event_dataset on windlass.event (dataset_uuid, at, id);
-- Events that are not routed yet: nearly always empty.
create index event_unrouted on windlass.event (at) where routed_at is null and declared;

-- Batches of records that tasks have published, to be written to the table of their dataset. `buffered`: it is a
-- buffered dataset of a DAG, so that the sink writes the batch. `problem` is why it did not. `removed_at`: the object is
-- deleted.
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
    buffered         boolean     not null default false,
    queued_at        timestamptz,
    sunk_at          timestamptz,
    sink_task_id     uuid,
    problem          text,
    removed_at       timestamptz
);
create index publish_task on windlass.publish (task_id, at);
-- Batches that are not written yet, and those whose objects are not deleted yet.
create index publish_unsunk on windlass.publish (dataset_uuid, at) where buffered and sunk_at is null;
create index publish_sunk on windlass.publish (sunk_at) where sunk_at is not null and removed_at is null;

-- Partitions of a job that people let make again. `mark` is where the next page of the selection begins; null when all of
-- its tasks are made.
create table windlass.backfill (
    id          uuid        not null primary key,
    namespace   text collate "C" not null,
    dag         text collate "C" not null,
    job         text collate "C" not null,
    job_id      uuid        not null,
    selection   jsonb       not null,
    downstream  boolean     not null,
    state       text collate "C" not null,
    mark        jsonb,
    truncated   boolean     not null default false,
    reason      text,
    created_by  text        not null,
    created_at  timestamptz not null,
    ended_at    timestamptz,
    constraint backfill_state check (state in ('running', 'cancelling', 'succeeded', 'failed', 'cancelled'))
);
create index backfill_newest on windlass.backfill (namespace, created_at, id);
create index backfill_open on windlass.backfill (created_at) where ended_at is null;

-- The progress of a backfill: its own job, and with `downstream` the jobs below. `partitions` is what was expected when
-- it began, or found since.
create table windlass.backfill_job (
    backfill_id  uuid   not null,
    job          text collate "C" not null,
    place        integer not null,
    partitions   bigint not null default 0,
    tasks        bigint not null default 0,
    succeeded    bigint not null default 0,
    failed       bigint not null default 0,
    cancelled    bigint not null default 0,
    primary key (backfill_id, job)
) with (fillfactor = 50);

-- The tasks of backfills that have not been counted as ended. `waiting`: an input does not have its partition yet.
create table windlass.backfill_task (
    backfill_id  uuid    not null,
    task_id      uuid    not null,
    job_id       uuid    not null,
    job          text collate "C" not null,
    key          text collate "C" not null,
    waiting      boolean not null default false,
    primary key (backfill_id, task_id)
);
create index backfill_task_waiting on windlass.backfill_task (job_id, key) where waiting;
create index backfill_task_waits on windlass.backfill_task (task_id) where waiting;

-- Data of a version that was wrong: a partition, or rows between bounds. `source` is the key or the task that reported
-- it.
create table windlass.invalidation (
    id               uuid        not null primary key,
    namespace        text collate "C" not null,
    dataset_uuid     uuid        not null,
    dataset_version  uuid        not null,
    scope            text collate "C" not null,
    key              text collate "C",
    row_filter       jsonb,
    reason           text collate "C" not null,
    source           jsonb       not null,
    created_at       timestamptz not null,
    routed_at        timestamptz,
    processed_at     timestamptz
);
create index invalidation_newest on windlass.invalidation (dataset_uuid, created_at, id);
create index invalidation_open on windlass.invalidation (created_at) where processed_at is null;

-- The task of each job that has to process an invalidation.
create table windlass.invalidation_task (
    invalidation_id  uuid not null,
    job_id           uuid not null,
    consumer         text collate "C" not null,
    task_id          uuid not null,
    processed_at     timestamptz,
    primary key (invalidation_id, job_id)
);

-- ----------------------------------------------------------------------------------------------------------- functions

-- Returns a UUIDv7, for programs that submit by SQL: 48 bits of milliseconds, then random bits.
create function windlass.new_id() returns uuid
language sql volatile parallel safe
as $$
    select encode(
        set_bit(set_bit(
            overlay(uuid_send(gen_random_uuid())
                    placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
                    from 1 for 6),
            52, 1), 53, 1),
        'hex')::uuid
$$;

-- Raises unless the value is a valid policy (core.retry.Policy, with the ranges of core.submission).
create function windlass.check_policy(policy jsonb) returns void
language plpgsql immutable
as $$
declare
    bad text;
begin
    if jsonb_typeof(policy) <> 'object' then
        raise exception 'policy must be a JSON object' using errcode = 'invalid_parameter_value';
    end if;
    select p.key into bad
      from jsonb_each(policy) as p
      left join (values ('max_attempts', 1, 1e6), ('max_losses', 0, 1e6), ('timeout_s', 0.001, 3153600000),
                        ('cancel_grace_s', 0, 3153600000), ('retry_delay_s', 0, 3153600000),
                        ('retry_factor', 1, 1000), ('retry_delay_max_s', 0, 3153600000)) as f(name, least, most)
        on f.name = p.key
     where case when f.name is null then true
                when jsonb_typeof(p.value) = 'null' then p.key <> 'timeout_s'
                when jsonb_typeof(p.value) <> 'number' then true
                when p.key like 'max%' and p.value::text !~ '^[0-9]+$' then true
                else p.value::numeric not between f.least and f.most end
     limit 1;
    if bad is not null then
        raise exception 'policy: % is not known or has no value that it may have', bad
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;

-- Submits a task inside the caller's transaction; a rollback removes it. The fields of `policy` override those
-- declared for the kind; without either, the policy of the queue applies. A role that may not read `kind` gets no
-- declared fields.
create function windlass.submit(
    kind             text,
    payload          jsonb       default 'null',
    queue            text        default 'default',
    namespace        text        default 'default',
    priority         integer     default 0,
    delay            interval    default interval '0',
    available_at     timestamptz default null,
    deadline_at      timestamptz default null,
    concurrency_key  text        default '',
    idempotency_key  text        default null,
    policy           jsonb       default null
) returns uuid
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    new_task  uuid := windlass.new_id();
    known     windlass.task;
    name      text;
    body      bytea := convert_to(payload::text, 'UTF8');
    due       timestamptz := coalesce(available_at, windlass.now() + delay);
    declared  jsonb;
begin
    foreach name in array array[kind, queue, namespace] loop
        if name is null or length(name) not between 1 and 200 or name ~ '[\u0001-\u001f\u007f-\u009f]' then
            raise exception 'kind, queue and namespace must have 1 to 200 characters and no control characters'
                using errcode = 'invalid_parameter_value';
        end if;
    end loop;
    if priority is null or priority not between -100 and 100 then
        raise exception 'priority must be a whole number from -100 to 100' using errcode = 'invalid_parameter_value';
    end if;
    if body is null or length(body) > 2097152 then
        raise exception 'payload must be JSON of at most 2097152 bytes' using errcode = 'invalid_parameter_value';
    end if;
    if concurrency_key is null or length(concurrency_key) > 500 or concurrency_key ~ '[\u0001-\u001f\u007f-\u009f]'
       or length(idempotency_key) not between 1 and 500 or idempotency_key ~ '[\u0001-\u001f\u007f-\u009f]' then
        raise exception 'a key must have at most 500 characters and no control characters'
            using errcode = 'invalid_parameter_value';
    end if;

    if due is null or due not between '1970-01-01 00:00+00' and '9000-12-31 23:59:59+00'
       or deadline_at not between '1970-01-01 00:00+00' and '9000-12-31 23:59:59+00' then
        raise exception 'available_at and deadline_at must lie between the years 1970 and 9000'
            using errcode = 'invalid_parameter_value';
    end if;
    perform windlass.check_policy(policy);
    if has_table_privilege('windlass.kind', 'select') then
        select k.policy into declared from windlass.kind k
         where k.namespace = submit.namespace and k.name = submit.kind;
    end if;

    if idempotency_key is not null then
        insert into windlass.idempotency as i values (namespace, idempotency_key, new_task) on conflict do nothing;
        if not found then
            select t.* into known from windlass.idempotency i join windlass.task t on t.id = i.task_id
             where i.namespace = submit.namespace and i.key = submit.idempotency_key;
            if (known.kind, known.queue) = (kind, queue) and convert_from(known.payload, 'UTF8')::jsonb = payload then
                return known.id;
            end if;
            raise exception 'idempotency key % was used for other content', idempotency_key
                using errcode = 'unique_violation';
        end if;
    end if;

    insert into windlass.task (id, namespace, queue, kind, state, available_at, priority, concurrency_key, created_at,
                               deadline_at, timer_at, idempotency_key, policy, payload)
    values (new_task, namespace, queue, kind, 'queued', due, priority, concurrency_key,
            windlass.now(), deadline_at, deadline_at, idempotency_key,
            coalesce(declared || policy, policy, declared,
                     (select q.policy from windlass.queue q
                       where q.namespace = submit.namespace and q.name = submit.queue)), body);
    perform pg_notify('windlass', concat_ws(chr(31), 'queue', namespace, queue));
    return new_task;
end
$$;

-- Trigger functions of the change feed: for new tasks, and for tasks whose state or attempt changed.
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

-- Starts or stops recording. It creates and drops the triggers, because even a disabled trigger makes every statement
-- copy the rows that it writes (its transition tables). Both wait for all transactions that are writing tasks, so
-- that recording has an exact beginning.
create function windlass.record_changes(wanted boolean) returns void
language plpgsql
as $$
begin
    if wanted then
        create trigger record_new after insert on windlass.task
            referencing new table as new_tasks for each statement execute function windlass.record_new();
        create trigger record_moved after update on windlass.task
            referencing new table as new_tasks old table as old_tasks
            for each statement execute function windlass.record_moved();
    else
        drop trigger record_new on windlass.task;
        drop trigger record_moved on windlass.task;
    end if;
end
$$;
