-- The tables of Windlass.
--
-- task        one row per task, from its submission until retention removes it. Its history begins and ends on the row
--             itself: the submission and the last attempt are columns, only what lies between is in `history`.
-- lease       one row per live worker session (or per attempt, where each has its own). Liveness is here and not on the
--             task, so that a heartbeat rewrites one narrow row and touches no index.
-- queue       only what an operator has set; its row is the lock under which limits are decided.
-- run, edge   groups of tasks and who waits for whom; a settled edge is deleted.
-- outbox      effects to carry out after the commit that decided them.
-- history     append-only, partitioned by time; retention drops partitions.
--
-- Names are compared byte by byte (collation "C"): cheap, the same everywhere, and the order in which Python sorts them.
-- Lock order everywhere: queue, run, lease, task. `windlass.now()` is the only clock.

create schema if not exists windlass;

-- STABLE, so that it may bound an index scan; the time of the statement, so that it is read after earlier locks were
-- taken. The test kit replaces its body to read a clock table.
create function windlass.now() returns timestamptz
language sql stable parallel safe
as $$ select statement_timestamp() $$;

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
    timer_at         timestamptz,
    run_id           uuid,
    has_dependents   boolean     not null default false,
    awaited          boolean     not null default false,
    requires         text[],
    idempotency_key  text,
    cancel           jsonb,
    policy           jsonb,
    error            jsonb,
    payload          bytea       not null,
    result           bytea,
    constraint task_pkey primary key (id),
    constraint task_state check (state in ('blocked', 'queued', 'running', 'sleeping', 'parked',
                                           'succeeded', 'failed', 'cancelled', 'skipped'))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

-- What may be claimed. A lane is (queue, priority, concurrency key); tasks that are not due yet lie behind those that
-- are, in their own lane, so that no claim scans past them. Tasks of one transaction share all of the key, so that their
-- entries are folded into one; among themselves they are ordered by their place in the table.
create index task_ready on windlass.task (namespace, queue, priority, concurrency_key, available_at)
    where state = 'queued';
-- What runs: counted for limits, walked when a lease ends.
create index task_running on windlass.task (namespace, queue, kind, concurrency_key) where state = 'running';
-- Whom to tell of a cancel: nearly always empty.
create index task_cancelling on windlass.task (lease_id) where state = 'running' and cancel is not null;
-- Deadlines, timeouts, sleeps and graces: one timer a task, only where there is one.
create index task_timer on windlass.task (timer_at) where timer_at is not null;
-- What people look for; the states that most tasks never see, so that it costs the others nothing.
create index task_rare on windlass.task (namespace, state, id)
    where state in ('blocked', 'sleeping', 'parked', 'failed', 'cancelled', 'skipped');
create index task_run on windlass.task (run_id, id) where run_id is not null;

create table windlass.lease (
    id          uuid        not null primary key,
    namespace   text        not null,
    worker      text        not null,
    queues      text[]      not null,
    kinds       text[],
    labels      text[]      not null default '{}',
    ttl_s       double precision not null,
    expires_at  timestamptz not null,
    created_at  timestamptz not null
) with (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);

create table windlass.queue (
    namespace   text not null,
    name        text not null,
    config      jsonb not null default '{}',
    primary key (namespace, name)
);

-- Starts in queues with a rate: one row per claim, kept as long as its window needs it.
create table windlass.rate_start (
    namespace   text        not null,
    queue       text        not null,
    at          timestamptz not null,
    count       integer     not null
);
create index rate_start_window on windlass.rate_start (namespace, queue, at);

create table windlass.run (
    id          uuid        not null primary key,
    namespace   text        not null,
    created_at  timestamptz not null
);

create table windlass.edge (
    task_id      uuid    not null,
    upstream_id  uuid    not null,
    run_id       uuid    not null,
    any_outcome  boolean not null default false,
    primary key (upstream_id, task_id)
);
create index edge_task on windlass.edge (task_id);

-- Its own table, not partitioned, so that a key is unique for as long as its task is kept.
create table windlass.idempotency (
    namespace   text not null,
    key         text not null,
    task_id     uuid not null,
    primary key (namespace, key)
);

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

create table windlass.history (
    task_id   uuid        not null,
    at        timestamptz not null,
    attempt   integer     not null,
    what      text        not null,
    worker    text,
    detail    jsonb
) partition by range (at);
create index history_task on windlass.history (task_id, at);
-- Takes what no partition is there for (a moved clock, a retention loop that did not run).
create table windlass.history_default partition of windlass.history default;

-- A UUIDv7 for programs that submit by SQL: 48 bits of milliseconds, then chance.
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

-- Raises unless this can be read as a policy (core.retry.Policy; the ranges are those of core.submission).
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

-- Submit a task inside your own transaction: a rollback leaves nothing.
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
            windlass.now(), deadline_at, deadline_at, idempotency_key, policy, body);
    perform pg_notify('windlass', concat_ws(chr(31), 'queue', namespace, queue));
    return new_task;
end
$$;
