-- name: claim_at_once
-- Starts tasks by id in the statement that reads them, where there is nothing to decide: the queue of the task sends
-- wake-ups and has no limits, and the task is due. It writes what the rule `contracts.lease.rules.claim` decides; a
-- test compares the two. Locks as load_tasks does. Returns for each id, in no order: the task as it is now (null if
-- its row is locked or does not exist), the settings of its queue, and whether it was started.
with request as materialized (
    select u.* from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::uuid[])
                    as u(id, lease_id, worker, caller, detail, claim_id)
), locked as materialized (
    select t.* from windlass.task t where t.id = any($1::uuid[]) order by t.id for update skip locked
), fit as materialized (
    select h.id, r.lease_id, r.worker, r.caller, r.detail, r.claim_id,
           coalesce((1000 * (h.policy ->> 'lease_s')::double precision)::bigint, (q.delivery ->> 'lease_ms')::bigint) as lease_ms
      from locked h
      join request r on r.id = h.id
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
    insert into windlass.heartbeat as h (task_id, attempt, timeout_ms, slack_ms, expires_at, heartbeat_at, caller)
    select b.id, b.attempt, f.lease_ms, 0, windlass.now() + f.lease_ms * interval '1 millisecond', windlass.now(), f.caller
      from begun b join fit f on f.id = b.id order by b.id
    on conflict (task_id) do update
       set attempt = excluded.attempt, timeout_ms = excluded.timeout_ms, slack_ms = excluded.slack_ms,
           expires_at = excluded.expires_at, heartbeat_at = excluded.heartbeat_at,
           caller = excluded.caller
), entries as (
    insert into windlass.history (task_id, at, attempt, what, worker, detail)
    select b.id, windlass.now(), b.attempt, 'claimed', b.worker, f.detail::jsonb from begun b join fit f on f.id = b.id
), answer as (
    select b.*, true as is_begun from begun b
    union all
    select h.*, false from locked h where h.id not in (select f.id from fit f)
)
select {task_columns}, t.payload, t.wire, t.requires is not null, t.claim_id, t.is_begun, x.id, x.namespace, x.queue, q.config,
       q.delivery, windlass.now()
  from unnest($1::uuid[]) as u(id)
  left join windlass.task x on x.id = u.id
  left join windlass.queue q on q.namespace = x.namespace and q.name = x.queue
  left join answer t on t.id = u.id

-- name: lock_wakeup_queue
-- Locks a queue and returns its settings. Its limits are decided under this lock.
select q.config, q.delivery from windlass.queue q where q.namespace = $1 and q.name = $2 for update

-- name: load_claimable
-- Locks tasks in the order of their ids. Waits for locks up to the transaction's lock_timeout.
select {task_columns}, t.payload, t.wire, t.requires is not null, t.claim_id
  from windlass.task t where t.id = any($1::uuid[]) order by t.id for update

-- name: insert_leases
-- Adds the leases of attempts that start now, and writes the ids of their claims. The caller has locked the tasks.
with begun as materialized (
    select u.* from unnest($1::uuid[], $2::integer[], $3::text[], $4::uuid[], $5::bigint[])
                    as u(task_id, attempt, caller, claim_id, lease_ms)
), claimed as (
    update windlass.task t set claim_id = b.claim_id from begun b
     where t.id = b.task_id and t.claim_id is distinct from b.claim_id
)
insert into windlass.heartbeat as h (task_id, attempt, timeout_ms, slack_ms, expires_at, heartbeat_at, caller)
select b.task_id, b.attempt, b.lease_ms, 0, windlass.now() + b.lease_ms * interval '1 millisecond', windlass.now(), b.caller
  from begun b order by b.task_id
on conflict (task_id) do update
   set attempt = excluded.attempt, timeout_ms = excluded.timeout_ms, slack_ms = excluded.slack_ms,
       expires_at = excluded.expires_at, heartbeat_at = excluded.heartbeat_at, caller = excluded.caller

-- name: extend_held_leases
-- Writes heartbeats of many lease holders. The lease of the current attempt, if it has not expired, lasts for its
-- timeout from now on; a new certificate adds an entry to the history. Returns for each heartbeat, in order: the
-- state of the task, when the lease expires if it was extended, and the time. Rows are locked in one order; if an
-- expiry locked the row first, the expiry wins. A task in a namespace that the caller may not use counts as missing.
with request as materialized (
    select u.* from unnest($1::uuid[], $2::integer[], $3::uuid[], $4::text[], $5::text[], $6::text[])
                    with ordinality as u(id, attempt, lease_id, caller, detail, reaches, place)
), known as materialized (
    select r.id, r.attempt, r.lease_id, r.caller, r.detail, r.place, t.id as task_id, t.state, t.attempt as current,
           t.cancel, t.worker,
           coalesce(t.state = 'running' and t.attempt = r.attempt and t.lease_id = r.lease_id, false) as holds
      from request r
      left join lateral (select o.id, o.state, o.attempt, o.lease_id, o.cancel, o.worker
                           from windlass.task o
                          where o.id = r.id and (r.reaches is null or r.reaches::jsonb ? o.namespace) offset 0) t on true
), live as materialized (
    select h.task_id, h.attempt, h.caller from windlass.heartbeat h
     where h.task_id = any(array(select k.id from known k where k.holds)) and h.expires_at > windlass.now()
     order by h.task_id for update
), kept as (
    update windlass.heartbeat h
       set expires_at = windlass.now() + h.timeout_ms * interval '1 millisecond', heartbeat_at = windlass.now(),
           caller = k.caller
      from known k join live l on l.task_id = k.id and l.attempt = k.attempt
     where k.holds and h.task_id = k.id
    returning h.task_id, h.attempt, h.expires_at
), entries as (
    insert into windlass.history (task_id, at, attempt, what, worker, detail)
    select distinct on (k.id) k.id, windlass.now(), k.attempt, 'heard', k.worker, k.detail::jsonb
      from known k join live l on l.task_id = k.id and l.attempt = k.attempt
     where k.holds and l.caller is distinct from k.caller order by k.id, k.place
)
select k.task_id, k.state, k.current, k.holds, k.cancel, p.expires_at, windlass.now()
  from known k left join kept p on p.task_id = k.id and p.attempt = k.attempt and k.holds order by k.place

-- name: finish_at_once
-- Writes successes of lease holders, as complete_at_once does for session workers, with a history entry that names
-- the caller. It writes what the rule `contracts.lease.rules.LeaseReport` decides for a report without events; a test
-- compares the two. Reports that are not returned are decided in Python.
with locked as materialized (
    select t.id, t.namespace, t.attempt, t.lease_id, t.state,
           t.awaited or t.has_dependents or t.parent_id is not null or t.job_id is not null as waited_for
      from windlass.task t where t.id = any($1::uuid[]) order by t.id for update skip locked
), fit as materialized (
    select h.id, u.result, u.detail
      from unnest($1::uuid[], $2::integer[], $3::uuid[], $4::bytea[], $5::text[], $6::text[])
           as u(id, attempt, lease_id, result, detail, reaches)
      join locked h on h.id = u.id
     where h.state = 'running' and h.attempt = u.attempt and h.lease_id = u.lease_id and not h.waited_for
       and (u.reaches is null or u.reaches::jsonb ? h.namespace)
), done as (
    update windlass.task t
       set state = 'succeeded', outcome = 'succeeded', finished_at = windlass.now(), timer_at = null, result = f.result,
           error = null
      from fit f where t.id = f.id
    returning t.id, t.namespace, t.queue, t.kind, t.started_at, t.finished_at, t.attempt, t.worker
), entries as (
    insert into windlass.history (task_id, at, attempt, what, worker, detail)
    select d.id, windlass.now(), d.attempt, 'reported', d.worker, f.detail::jsonb from done d join fit f on f.id = d.id
), woken as materialized (
    select q.namespace, q.name, pg_notify('windlass', concat_ws(chr(31), 'queue', q.namespace, q.name))
      from (select distinct d.namespace, d.queue from done d) f
      join windlass.queue q on q.namespace = f.namespace and q.name = f.queue and q.config <> '{}'
)
select d.id, d.queue, d.kind, d.started_at, d.finished_at, w.namespace
  from done d left join woken w on w.namespace = d.namespace and w.name = d.queue

-- part: is_live
-- False if a task (t) was cancelled and its job is in no live deployment.
(t.cancel is null or t.job_id is null
 or exists (select from windlass.deployment_job j
              join windlass.deployment d on d.id = j.deployment_id and d.state in ('active', 'building', 'ready')
              join windlass.dag g on g.namespace = d.namespace and g.name = d.dag and g.retired_at is null
             where j.job_id = t.job_id))

-- name: load_live_leases
-- For lease holders that report events: returns the attempt with a live lease (null if it has expired), the `wire` of
-- the submission, the job of a DAG that the task runs, and false if the task was cancelled and that job is in no live
-- deployment. The caller has locked the tasks.
select t.id, (select h.attempt from windlass.heartbeat h where h.task_id = t.id and h.expires_at > windlass.now()), t.wire,
       t.job_id, {is_live()}
  from windlass.task t where t.id = any($1::uuid[])

-- name: load_attempt
-- Returns what identifies the current attempt of a task, and what the task may write.
select t.id, t.namespace, t.run_id, t.state, t.attempt, t.outcome, t.lease_id, t.worker, t.wire, t.job_id,
       {is_live()}, windlass.now()
  from windlass.task t where t.id = $1
