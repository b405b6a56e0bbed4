-- name: insert_tasks
-- Adds new tasks and wakes their queues, in one statement. A task that is there already is left as it is and is not
-- returned: that is a repeat after a lost reply, or an id that was used before.
with new as (
    insert into windlass.task (id, namespace, queue, kind, state, available_at, priority, concurrency_key, created_at,
                               deadline_at, timer_at, run_id, has_dependents, requires, idempotency_key, policy, payload,
                               trace, wire, replay_of, parent_id, schedule_id)
    select u.id, u.namespace, u.queue, u.kind, u.state,
           coalesce(u.available_at, c.now + u.delay_s * interval '1 second'), u.priority, u.concurrency_key, c.now,
           u.deadline_at, u.deadline_at, u.run_id, u.has_dependents,
           case when u.requires <> '' then string_to_array(u.requires, chr(31)) end, u.idempotency_key,
           coalesce(u.policy::jsonb, q.policy), u.payload, u.trace, u.wire, u.replay_of, u.parent_id,
           u.schedule_id
      from (select windlass.now() as now) c,
           unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::smallint[],
                  $8::text[], $9::timestamptz[], $10::uuid[], $11::boolean[], $12::text[], $13::text[], $14::text[],
                  $15::bytea[], $16::double precision[], $17::text[], $18::bytea[], $19::uuid[], $20::uuid[],
                  $21::uuid[])
           as u(id, namespace, queue, kind, state, available_at, priority, concurrency_key, deadline_at, run_id,
                has_dependents, requires, idempotency_key, policy, payload, delay_s, trace, wire, replay_of,
                parent_id, schedule_id)
      left join windlass.queue q on q.namespace = u.namespace and q.name = u.queue
    on conflict (id) do nothing
    returning id, namespace, queue, state
), woken as (
    select pg_notify('windlass', concat_ws(chr(31), 'queue', q.namespace, q.queue))
      from (select distinct namespace, queue from new where state = 'queued') q
)
select id, (select count(*) from woken) from new

-- name: insert_plain_tasks
-- The short form for new tasks that use none of the rarer columns and share queue, kind and namespace, which is most of
-- what is submitted. All or none: an id that is there already is an error, and `insert_tasks` finds out whose it is.
with new as (
    insert into windlass.task (id, namespace, queue, kind, state, available_at, created_at, payload, policy)
    select u.id, $3, $4, $5, 'queued', c.now, c.now, u.payload,
           (select q.policy from windlass.queue q where q.namespace = $3 and q.name = $4)
      from (select windlass.now() as now) c, unnest($1::uuid[], $2::bytea[]) as u(id, payload)
)
select pg_notify('windlass', concat_ws(chr(31), 'queue', $3::text, $4::text))

-- name: insert_plain_task
-- The same for one such task.
with new as (
    insert into windlass.task (id, namespace, queue, kind, state, available_at, created_at, payload, policy)
    values ($1, $3, $4, $5, 'queued', windlass.now(), windlass.now(), $2,
            (select q.policy from windlass.queue q where q.namespace = $3 and q.name = $4))
)
select pg_notify('windlass', concat_ws(chr(31), 'queue', $3::text, $4::text))

-- name: insert_started_tasks
-- New plain tasks for a worker that waits for them, begun in the statement that adds them: one commit, no wake-up. Only
-- if the lease is live (and kept so: see open_claim) and takes what is delivered in this way, the queue has no limits, and
-- nothing waits in it, so that nobody is passed by (index task_ready); otherwise they are queued, and the queue is woken.
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
)
select f.now, f.at,
       case when not f.now then pg_notify('windlass', concat_ws(chr(31), 'queue', $3::text, $4::text)) end
  from free f

-- name: load_tasks
-- Locks what can be locked at once and returns it, in id order, driven from the id array to the primary key. It never
-- waits, so that one row in somebody's long transaction does not stall a batch.
select {task_columns}, windlass.now()
  from windlass.task t where t.id = any($1::uuid[]) order by t.id for update skip locked

-- name: load_tasks_patiently
-- Waits for the locks, up to the transaction's lock_timeout. The time is read by a later statement.
select {task_columns} from windlass.task t where t.id = any($1::uuid[]) order by t.id for update

-- name: existing_tasks
-- Which of these ids are tasks; takes no lock.
select t.id from windlass.task t where t.id = any($1::uuid[])

-- name: same_tasks
-- What was submitted under these ids, to tell a repeat from a conflict.
select t.id, t.namespace, t.queue, t.kind, t.payload from windlass.task t where t.id = any($1::uuid[])

-- name: start_tasks
-- Writes the claims that were decided under the row locks.
update windlass.task t
   set state = 'running', attempt = u.attempt, timer_at = u.timer_at, outcome = null,
       lease_id = $4, worker = $5, started_at = $6
  from unnest($1::uuid[], $2::integer[], $3::timestamptz[]) as u(id, attempt, timer_at)
 where t.id = u.id

-- name: complete_tasks
-- Writes the successes that were decided under the row locks, and wakes the queues in which they freed a place, as
-- notify_freed does.
with done as (
    update windlass.task t
       set state = 'succeeded', outcome = 'succeeded', finished_at = $3, timer_at = null, result = u.result, error = null
      from unnest($1::uuid[], $2::bytea[]) as u(id, result)
     where t.id = u.id
)
select q.namespace, q.name, pg_notify('windlass', concat_ws(chr(31), 'queue', q.namespace, q.name))
  from unnest($4::text[], $5::text[]) as u(namespace, queue)
  join windlass.queue q on q.namespace = u.namespace and q.name = u.queue and q.config <> '{}'

-- name: complete_at_once
-- Writes successes in the statement that looks at the tasks, where there is nothing to weigh: the attempt that reports is
-- the one that runs, and nobody waits for the end of its task. What it writes is what the rule `core.task.complete` says,
-- and a test holds the two together. Locks and wakes as load_tasks and notify_freed do; what is not returned is to be
-- decided in Python. The state is asked for behind the lock, so that the ids lead to the rows whatever the planner
-- believes of the number that run. One row for all of them: the ids that were written, null if that is every one; the
-- queues that were woken; and what is to be counted of each, if anybody counts ($5).
with held as materialized (
    select t.id, t.attempt, t.lease_id, t.state, t.awaited or t.has_dependents or t.parent_id is not null as waited_for
      from windlass.task t where t.id = any($1::uuid[]) order by t.id for update skip locked
), fit as materialized (
    select h.id, u.result
      from unnest($1::uuid[], $2::integer[], $3::uuid[], $4::bytea[]) as u(id, attempt, lease_id, result)
      join held h on h.id = u.id
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

-- name: update_tasks
-- Writes any other move that was decided under the row locks: every column that a rule may change.
update windlass.task t
   set state = u.state, available_at = u.available_at, attempt = u.attempt, failures = u.failures, losses = u.losses,
       outcome = u.outcome, lease_id = u.lease_id, worker = u.worker, started_at = u.started_at,
       finished_at = u.finished_at, timer_at = u.timer_at, cancel = u.cancel::jsonb, error = u.error::jsonb,
       result = u.result
  from unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::integer[], $5::integer[], $6::integer[], $7::text[],
              $8::uuid[], $9::text[], $10::timestamptz[], $11::timestamptz[], $12::timestamptz[], $13::text[],
              $14::text[], $15::bytea[])
       as u(id, state, available_at, attempt, failures, losses, outcome, lease_id, worker, started_at, finished_at,
            timer_at, cancel, error, result)
 where t.id = u.id

-- name: insert_history
-- Appends what happened.
insert into windlass.history (task_id, at, attempt, what, worker, detail)
select u.task_id, u.at, u.attempt, u.what, u.worker, u.detail::jsonb
  from unnest($1::uuid[], $2::timestamptz[], $3::integer[], $4::text[], $5::text[], $6::text[])
       as u(task_id, at, attempt, what, worker, detail)

-- name: due_timers
-- Locks the tasks whose timer rang, earliest first (index task_timer).
select {task_columns}, windlass.now()
  from windlass.task t where t.timer_at <= windlass.now() order by t.timer_at limit $1 for update skip locked

-- name: await_task
-- Asks for a notification when this task ends; says so once, and returns its state.
update windlass.task t set awaited = true where t.id = $1 and t.finished_at is null and not t.awaited

-- name: notify
-- Wakes whoever listens: one message each.
select pg_notify('windlass', m) from unnest($1::text[]) as m

-- name: notify_freed
-- Wakes those of these queues that somebody limited, because a place in them may have become free.
select q.namespace, q.name, pg_notify('windlass', concat_ws(chr(31), 'queue', q.namespace, q.name))
  from unnest($1::text[], $2::text[]) as u(namespace, queue)
  join windlass.queue q on q.namespace = u.namespace and q.name = u.queue and q.config <> '{}'
