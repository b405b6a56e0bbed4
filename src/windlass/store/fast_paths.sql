-- Statements that repeat a rule of `core` for speed, in cases where the rule has nothing to decide. The rule stays the
-- reference: tests/kernel/store/test_fast_paths.py compares each statement with it. All other cases are loaded, decided
-- in Python and applied.

-- name: insert_plain_task
-- insert_tasks for one task that uses none of the rarer columns, as most tasks do. Raises if the id exists;
-- insert_tasks then finds out whether it is a repeat. Returns the columns that the caller cannot know.
with new as (
    insert into windlass.task (id, namespace, queue, kind, state, available_at, created_at, payload, policy)
    values ($1, $3, $4, $5, 'queued', windlass.now(), windlass.now(), $2,
            (select q.policy from windlass.queue q where q.namespace = $3 and q.name = $4))
    returning created_at, policy
)
select n.created_at, n.policy, pg_notify('windlass', concat_ws(chr(31), 'queue', $3::text, $4::text)) from new n

-- name: insert_plain_tasks
-- The same for many such tasks of one queue, kind and namespace. Inserts all or none.
with new as (
    insert into windlass.task (id, namespace, queue, kind, state, available_at, created_at, payload, policy)
    select u.id, $3, $4, $5, 'queued', c.now, c.now, u.payload,
           (select q.policy from windlass.queue q where q.namespace = $3 and q.name = $4)
      from (select windlass.now() as now) c, unnest($1::uuid[], $2::bytea[]) as u(id, payload)
    returning created_at, policy
)
select n.created_at, n.policy, pg_notify('windlass', concat_ws(chr(31), 'queue', $3::text, $4::text))
  from (select * from new limit 1) n

-- name: insert_started_tasks
-- `core.task.claim` for new plain tasks that a worker waits for: adds them as running, with one commit and no
-- notification. It does so only if the lease is live (the lock keeps it live, see open_claim) and takes this
-- delivery, the queue has no limits, and nothing waits in it, so that no older task is overtaken (index task_ready).
-- Otherwise it queues them and notifies the queue.
with lease as materialized (
    select l.id from windlass.lease l
     where l.id = $6 and l.expires_at > windlass.now() and l.draining_until is null for key share
), free as materialized (
    select (select count(*) from lease) = 1
       and not exists (select from windlass.queue q
                        where q.namespace = $3 and q.name = $4
                          and (q.config <> '{}' or q.policy is not null or q.delivery ->> 'type' <> $10::text))
       and (select count(*) from (select from windlass.task t
                                   where t.namespace = $3 and t.queue = $4 and t.state = 'queued'
                                   order by t.priority, t.concurrency_key, t.available_at limit 1) waiting) = 0 as now,
           windlass.now() as at
), new as (
    insert into windlass.task (id, namespace, queue, kind, state, attempt, lease_id, worker, started_at, available_at,
                               created_at, payload, policy)
    select u.id, $3, $4, $5, case when f.now then $8 else 'queued' end, case when f.now then $9::integer else 0 end,
           case when f.now then $6 end, case when f.now then $7 end, case when f.now then f.at end, f.at, f.at, u.payload,
           case when not f.now then (select q.policy from windlass.queue q where q.namespace = $3 and q.name = $4) end
      from free f, unnest($1::uuid[], $2::bytea[]) as u(id, payload)
    returning policy
)
select f.now, f.at, (select n.policy from new n limit 1) as policy,
       case when not f.now then pg_notify('windlass', concat_ws(chr(31), 'queue', $3::text, $4::text)) end
  from free f

-- name: start_due
-- `core.task.claim` for the oldest due tasks of one lane, in the statement that selects them. It claims only if the
-- lease is live (the lock keeps it live, see open_claim) and takes this delivery, and the queue has no limits and no
-- other lane. The lane is given ($6, $7) or found as in open_claim. Writes the claim id for claimed_at_once. The ids
-- pass through an array, so that the update looks them up by primary key however many the planner expects. Returns
-- one row that describes the claim, and one for each task with the columns that differ between tasks.
with recursive lease as materialized (
    select l.draining_until is null as takes from windlass.lease l
     where l.id = $1 and l.expires_at > windlass.now() for key share
), queue as materialized (
    select q.config, coalesce(q.delivery ->> 'type', 'pull') <> $12::text as elsewhere from windlass.queue q
     where q.namespace = $3 and q.name = $4
       and (q.config <> '{}' or coalesce(q.delivery ->> 'type', 'pull') <> $12::text)
), lanes as (
    (select t.priority, t.concurrency_key from windlass.task t
      where t.namespace = $3 and t.queue = $4 and t.state = 'queued' and $6::smallint is null
      order by t.priority, t.concurrency_key limit 1)
    union all
    select n.priority, n.concurrency_key
      from lanes l cross join lateral (
           select t.priority, t.concurrency_key from windlass.task t
            where t.namespace = $3 and t.queue = $4 and t.state = 'queued'
              and (t.priority, t.concurrency_key) > (l.priority, l.concurrency_key)
            order by t.priority, t.concurrency_key limit 1) n
), found as materialized (
    select * from (select $6::smallint as priority, $7::text as key where $6::smallint is not null
                   union all select * from lanes) l limit 2
), due as materialized (
    select t.id from windlass.task t
     where t.namespace = $3 and t.queue = $4 and t.state = 'queued'
       and t.priority = (select f.priority from found f limit 1)
       and t.concurrency_key = (select f.key from found f limit 1)
       and t.available_at >= $8 and t.available_at <= windlass.now()
       and ($10::text[] is null or t.kind = any($10)) and (t.requires is null or t.requires <@ $11::text[])
       and (select count(*) from lease l where l.takes) = 1 and (select count(*) from queue) = 0
       and (select count(*) from found) = 1
     order by t.available_at limit $9 for update skip locked
), started as (
    update windlass.task t
       set state = 'running', attempt = t.attempt + 1, outcome = null, lease_id = $1, worker = $2, claim_id = $5,
           started_at = windlass.now(),
           timer_at = least(t.deadline_at, windlass.now() + (t.policy ->> 'timeout_s')::double precision
                                                            * interval '1 second')
     where t.id = any(array(select d.id from due d))
    returning {started_columns}, t.payload
)
select a.live, a.config, a.elsewhere, a.priorities, a.keys, a.now, s.*
  from (select (select count(*) + count(*) filter (where not l.takes) from lease l) as live,
               (select q.config from queue q) as config,
               coalesce((select q.elsewhere from queue q), false) as elsewhere,
               array(select f.priority from found f) as priorities, array(select f.key from found f) as keys,
               windlass.now() as now) a
  full join started s on false

-- name: complete_at_once
-- `core.task.complete` where there is nothing to decide: the attempt that reports is the one that runs, and nothing
-- waits for the end of its task. Locks as load_tasks and notifies as notify_freed; reports that are not written are
-- decided in Python. The state is tested after the lock, so that the rows are looked up by id however many running
-- tasks the planner expects. Returns one row: the ids that were written (null if all were), the queues that were
-- notified, and the values for metrics if they are wanted ($5).
with locked as materialized (
    select t.id, t.attempt, t.lease_id, t.state,
           t.awaited or t.has_dependents or t.parent_id is not null or t.job_id is not null as waited_for
      from windlass.task t where t.id = any($1::uuid[]) order by t.id for update skip locked
), fit as materialized (
    select h.id, u.result
      from unnest($1::uuid[], $2::integer[], $3::uuid[], $4::bytea[]) as u(id, attempt, lease_id, result)
      join locked h on h.id = u.id
     where h.state = 'running' and h.attempt = u.attempt and h.lease_id = u.lease_id and not h.waited_for
), done as (
    update windlass.task t
       set state = 'succeeded', outcome = 'succeeded', finished_at = windlass.now(), timer_at = null, result = f.result,
           error = null
      from fit f where t.id = f.id
    returning t.id, t.namespace, t.queue, t.kind, t.started_at
), woken as materialized (
    select q.namespace, q.name, pg_notify('windlass', concat_ws(chr(31), 'queue', q.namespace, q.name))
      from (select distinct d.namespace, d.queue from done d) f
      join windlass.queue q on q.namespace = f.namespace and q.name = f.queue and q.config <> '{}'
)
select case when (select count(*) from done) < cardinality($1) then array(select d.id from done d) end as ids,
       array(select w.namespace from woken w) as namespaces, array(select w.name from woken w) as queues,
       case when $5::boolean then array(select d.queue from done d) end as counted_queues,
       case when $5::boolean then array(select d.kind from done d) end as counted_kinds,
       case when $5::boolean then array(select d.started_at from done d) end as counted_starts,
       windlass.now() as now
