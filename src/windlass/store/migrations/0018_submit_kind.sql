-- A task that is submitted by SQL is allowed what the code of its workers declares, as one that is submitted by name over
-- HTTP is: what the call says is laid over what is declared for the kind, field by field; then what its queue says. Roles
-- that may not read what is declared submit as before.
create or replace function windlass.submit(
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
