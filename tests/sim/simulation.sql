-- What the simulated database has beside the schema of Windlass: a clock that is set from outside, a log of every row
-- that was written, and NOTIFY as rows. All of it is transactional: what is rolled back was never logged.

create schema simulation;

create table simulation.clock (at timestamptz not null);
insert into simulation.clock values ('2026-01-01 00:00+00');

create or replace function windlass.now() returns timestamptz
language sql stable parallel safe
as $$ select c.at from simulation.clock c $$;

create table simulation.change (
    seq       bigserial   not null,
    relation  text        not null,
    at        timestamptz not null,
    old       jsonb,
    new       jsonb
);

create function simulation.note() returns trigger
language plpgsql
as $$
begin
    insert into simulation.change (relation, at, old, new)
    values (tg_table_name, windlass.now(), case when tg_op <> 'INSERT' then to_jsonb(old) end,
            case when tg_op <> 'DELETE' then to_jsonb(new) end);
    return null;
end
$$;

-- Found before the one of pg_catalog by connections whose search_path says so.
create function simulation.pg_notify(channel text, message text) returns void
language sql volatile
as $$
    insert into simulation.change (relation, at, new) values ('notify', windlass.now(), to_jsonb(message))
$$;

do $$
declare
    name text;
begin
    foreach name in array array['task', 'lease', 'queue', 'edge', 'outbox', 'history', 'step', 'signal',
                                'schedule', 'scheduler', 'dag', 'deployment', 'deployment_job', 'deployment_edge', 'job',
                                'job_task',
                                'job_cursor', 'consumption', 'partition', 'partition_revision', 'high_water',
                                'event', 'publish', 'message', 'dead_message', 'backfill', 'backfill_task',
                                'invalidation'] loop
        execute format('create trigger note after insert or update or delete on windlass.%I
                        for each row execute function simulation.note()', name);
    end loop;
    create trigger note after insert or update or delete on windlass_data.sink_commit
        for each row execute function simulation.note();
    -- Vacuum comes when it likes, and would decide where rows lie.
    foreach name in array array['task', 'lease', 'queue', 'rate_start', 'run', 'edge', 'idempotency', 'outbox',
                                'history_default', 'step', 'signal', 'schedule', 'scheduler', 'worker',
                                'step_attempt', 'dag', 'deployment', 'deployment_job', 'deployment_edge',
                                'deployment_pointer', 'job', 'job_task', 'job_cursor', 'consumption', 'dataset',
                                'dataset_version', 'partition', 'partition_revision', 'high_water', 'event',
                                'cursor_commit', 'lake', 'publish', 'message', 'dead_message', 'backfill',
                                'backfill_job', 'backfill_task', 'invalidation', 'invalidation_task'] loop
        execute format('alter table windlass.%I set (autovacuum_enabled = off)', name);
    end loop;
    foreach name in array array['dataset_version', 'dataset_view', 'sink_commit'] loop
        execute format('alter table windlass_data.%I set (autovacuum_enabled = off)', name);
    end loop;
    alter table simulation.change set (autovacuum_enabled = off);
    alter table simulation.clock set (autovacuum_enabled = off);
end
$$;
