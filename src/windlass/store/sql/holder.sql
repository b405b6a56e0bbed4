-- name: claim_at_once
-- Begins tasks that were asked for by their ids, in the statement that looks at them, where nothing is to be weighed: the
-- queue of the task wakes its workers, nobody limited it, and the task is due. What it writes is what the rule
-- `core.holder.claim` says, and a test holds the two together. Locks as load_tasks does. For each id, in no order: the task
-- as it is now (null if somebody else holds its row, or there is none), what is set for its queue, whether it was begun.
with asked as materialized (
    select u.* from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::uuid[])
                    as u(id, lease_id, worker, caller, detail, claim_id)
), held as materialized (
    select t.* from windlass.task t where t.id = any($1::uuid[]) order by t.id for update skip locked
), fit as materialized (
    select h.id, a.lease_id, a.worker, a.caller, a.detail, a.claim_id, (q.delivery ->> 'lease_ms')::bigint as lease_ms
      from held h
      join asked a on a.id = h.id
      join windlass.queue q on q.namespace = h.namespace and q.name = h.queue
     where h.state = 'queued' and h.available_at <= windlass.now() and h.requires is null
       and q.config = '{}' and q.delivery ->> 'type' = 'wakeup'
), begun as (
    update windlass.task t
       set state = 'running', attempt = t.attempt + 1, outcome = null, lease_id = f.lease_id, worker = f.worker,
           claim_id = f.claim_id, started_at = windlass.now(),
           timer_at = least(t.deadline_at, windlass.now() + (t.policy ->> 'timeout_s')::double precision
                                                            * interval '1 second')
      from fit f where t.id = f.id
    returning t.*
), alive as (
    insert into windlass.heartbeat as h (task_id, attempt, timeout_ms, slack_ms, expires_at, heard_at, caller)
    select b.id, b.attempt, f.lease_ms, 0, windlass.now() + f.lease_ms * interval '1 millisecond', windlass.now(), f.caller
      from begun b join fit f on f.id = b.id order by b.id
    on conflict (task_id) do update
       set attempt = excluded.attempt, timeout_ms = excluded.timeout_ms, slack_ms = excluded.slack_ms,
           expires_at = excluded.expires_at, heard_at = excluded.heard_at, seen_at = null, caller = excluded.caller
), told as (
    insert into windlass.history (task_id, at, attempt, what, worker, detail)
    select b.id, windlass.now(), b.attempt, 'claimed', b.worker, f.detail::jsonb from begun b join fit f on f.id = b.id
), seen as (
    select b.*, true as is_begun from begun b
    union all
    select h.*, false from held h where h.id not in (select f.id from fit f)
)
select {task_columns}, t.payload, t.wire, t.requires is not null, t.claim_id, t.is_begun, x.id, x.namespace, x.queue, q.config,
       q.delivery, windlass.now()
  from unnest($1::uuid[]) as u(id)
  left join windlass.task x on x.id = u.id
  left join windlass.queue q on q.namespace = x.namespace and q.name = x.queue
  left join seen t on t.id = u.id

-- name: lock_wakeup_queue
-- What is set for a queue, under the lock by which its limits are decided.
select q.config, q.delivery from windlass.queue q where q.namespace = $1 and q.name = $2 for update

-- name: load_holdable
-- Locks tasks that were asked for by their ids, in their order, waiting for the locks up to the transaction's lock_timeout.
select {task_columns}, t.payload, t.wire, t.requires is not null, t.claim_id
  from windlass.task t where t.id = any($1::uuid[]) order by t.id for update

-- name: begin_holds
-- Attempts that somebody holds from now on, whose tasks are locked. What is kept of their claims is written with them.
with begun as materialized (
    select u.* from unnest($1::uuid[], $2::integer[], $3::text[], $4::uuid[]) as u(task_id, attempt, caller, claim_id)
), claimed as (
    update windlass.task t set claim_id = b.claim_id from begun b
     where t.id = b.task_id and t.claim_id is distinct from b.claim_id
)
insert into windlass.heartbeat as h (task_id, attempt, timeout_ms, slack_ms, expires_at, heard_at, caller)
select b.task_id, b.attempt, $5, 0, windlass.now() + $5::bigint * interval '1 millisecond', windlass.now(), b.caller
  from begun b order by b.task_id
on conflict (task_id) do update
   set attempt = excluded.attempt, timeout_ms = excluded.timeout_ms, slack_ms = excluded.slack_ms,
       expires_at = excluded.expires_at, heard_at = excluded.heard_at, seen_at = null, caller = excluded.caller

-- name: extend_holds
-- Signs of life of many holders in one statement. Who holds the current attempt and was heard of in time is good for its
-- timeout from now on; another certificate than the last one leaves a line in the history. For each in its order: the task
-- as far as it is told, until when its lease is good if it was extended, and the time. Rows are locked in one order; silence
-- that was noticed first wins. A task of a namespace that the caller does not reach is not there.
with asked as materialized (
    select u.* from unnest($1::uuid[], $2::integer[], $3::uuid[], $4::text[], $5::text[], $6::text[])
                    with ordinality as u(id, attempt, lease_id, caller, detail, reaches, place)
), known as materialized (
    select a.id, a.attempt, a.lease_id, a.caller, a.detail, a.place, t.id as task_id, t.state, t.attempt as current,
           t.cancel, t.worker,
           coalesce(t.state = 'running' and t.attempt = a.attempt and t.lease_id = a.lease_id, false) as holds
      from asked a
      left join lateral (select o.id, o.state, o.attempt, o.lease_id, o.cancel, o.worker
                           from windlass.task o
                          where o.id = a.id and (a.reaches is null or a.reaches::jsonb ? o.namespace) offset 0) t on true
), live as materialized (
    select h.task_id, h.attempt, h.caller from windlass.heartbeat h
     where h.task_id = any(array(select k.id from known k where k.holds)) and h.expires_at > windlass.now()
     order by h.task_id for update
), kept as (
    update windlass.heartbeat h
       set expires_at = windlass.now() + h.timeout_ms * interval '1 millisecond', heard_at = windlass.now(),
           caller = k.caller
      from known k join live l on l.task_id = k.id and l.attempt = k.attempt
     where k.holds and h.task_id = k.id
    returning h.task_id, h.attempt, h.expires_at
), told as (
    insert into windlass.history (task_id, at, attempt, what, worker, detail)
    select distinct on (k.id) k.id, windlass.now(), k.attempt, 'heard', k.worker, k.detail::jsonb
      from known k join live l on l.task_id = k.id and l.attempt = k.attempt
     where k.holds and l.caller is distinct from k.caller order by k.id, k.place
)
select k.task_id, k.state, k.current, k.holds, k.cancel, p.expires_at, windlass.now()
  from known k left join kept p on p.task_id = k.id and p.attempt = k.attempt and k.holds order by k.place

-- name: finish_at_once
-- Writes successes of holders as complete_at_once does for claims of a worker, with a line of who said so. What it writes
-- is what the rule `core.holder.Finish` says of one that tells of no events, and a test holds the two together. What is
-- not returned is to be decided in Python.
with held as materialized (
    select t.id, t.namespace, t.attempt, t.lease_id, t.state,
           t.awaited or t.has_dependents or t.parent_id is not null as waited_for
      from windlass.task t where t.id = any($1::uuid[]) order by t.id for update skip locked
), fit as materialized (
    select h.id, u.result, u.detail
      from unnest($1::uuid[], $2::integer[], $3::uuid[], $4::bytea[], $5::text[], $6::text[])
           as u(id, attempt, lease_id, result, detail, reaches)
      join held h on h.id = u.id
     where h.state = 'running' and h.attempt = u.attempt and h.lease_id = u.lease_id and not h.waited_for
       and (u.reaches is null or u.reaches::jsonb ? h.namespace)
), done as (
    update windlass.task t
       set state = 'succeeded', outcome = 'succeeded', finished_at = windlass.now(), timer_at = null, result = f.result,
           error = null
      from fit f where t.id = f.id
    returning t.id, t.namespace, t.queue, t.kind, t.started_at, t.finished_at, t.attempt, t.worker
), told as (
    insert into windlass.history (task_id, at, attempt, what, worker, detail)
    select d.id, windlass.now(), d.attempt, 'reported', d.worker, f.detail::jsonb from done d join fit f on f.id = d.id
), woken as materialized (
    select q.namespace, q.name, pg_notify('windlass', concat_ws(chr(31), 'queue', q.namespace, q.name))
      from (select distinct d.namespace, d.queue from done d) f
      join windlass.queue q on q.namespace = f.namespace and q.name = f.queue and q.config <> '{}'
)
select d.id, d.queue, d.kind, d.started_at, d.finished_at, w.namespace
  from done d left join woken w on w.namespace = d.namespace and w.name = d.queue

-- name: load_holds
-- For holders that tell of data, under the locks of their tasks: the attempt whose lease is live, none if it ran out, and
-- what was submitted for their wire.
select t.id, (select h.attempt from windlass.heartbeat h where h.task_id = t.id and h.expires_at > windlass.now()), t.wire
  from windlass.task t where t.id = any($1::uuid[])
