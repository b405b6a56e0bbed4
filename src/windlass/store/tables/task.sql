-- name: insert_tasks
-- Adds tasks and notifies their queues, in one statement. A task whose id exists is left as it is and not returned:
-- it is a repeat after a lost reply, or its id was used before.
with new as (
    insert into windlass.task (state, created_at, available_at, timer_at, has_dependents, requires, policy,
                               {submitted_columns})
    select u.state, c.now, coalesce(u.available_at, c.now + u.delay_s * interval '1 second'), u.deadline_at,
           u.has_dependents, case when u.requires <> '' then string_to_array(u.requires, chr(31)) end,
           coalesce(u.policy::jsonb, q.policy), {submitted_values}
      from (select windlass.now() as now) c,
           unnest($1::text[], $2::timestamptz[], $3::double precision[], $4::boolean[], $5::text[], $6::text[],
                  {submitted_arrays})
           as u(state, available_at, delay_s, has_dependents, requires, policy, {submitted_columns})
      left join windlass.queue q on q.namespace = u.namespace and q.name = u.queue
    on conflict (id) do nothing
    returning id, namespace, queue, state
), woken as (
    select pg_notify('windlass', concat_ws(chr(31), 'queue', q.namespace, q.queue))
      from (select distinct namespace, queue from new where state = 'queued') q
)
select id, (select count(*) from woken) from new

-- name: load_tasks
-- Locks those of these tasks that are not locked, and returns them in the order of their ids (primary key). It never
-- waits, so that one row in a long transaction does not stall a batch.
select {task_columns}, windlass.now()
  from windlass.task t where t.id = any($1::uuid[]) order by t.id for update skip locked

-- name: lock_tasks
-- Locks these tasks in the order of their ids. Waits up to the transaction's lock_timeout. A later statement reads
-- the time.
select {task_columns} from windlass.task t where t.id = any($1::uuid[]) order by t.id for update

-- name: existing_tasks
-- Returns those of these ids that belong to tasks. Takes no lock.
select t.id from windlass.task t where t.id = any($1::uuid[])

-- name: same_tasks
-- Returns what was submitted under these ids, to distinguish a repeat from a conflict.
select t.id, t.namespace, t.queue, t.kind, t.payload from windlass.task t where t.id = any($1::uuid[])

-- name: start_tasks
-- Writes claims, as decided under the row locks, with the claim id for claimed_at_once.
update windlass.task t
   set state = 'running', attempt = u.attempt, timer_at = u.timer_at, outcome = null,
       lease_id = $4, worker = $5, started_at = $6, claim_id = $7
  from unnest($1::uuid[], $2::integer[], $3::timestamptz[]) as u(id, attempt, timer_at)
 where t.id = u.id

-- name: complete_tasks
-- Writes successes, as decided under the row locks. Notifies the queues in which a place became free, as notify_freed
-- does.
with done as (
    update windlass.task t
       set state = 'succeeded', outcome = 'succeeded', finished_at = $3, timer_at = null, result = u.result, error = null
      from unnest($1::uuid[], $2::bytea[]) as u(id, result)
     where t.id = u.id
)
select q.namespace, q.name, pg_notify('windlass', concat_ws(chr(31), 'queue', q.namespace, q.name))
  from unnest($4::text[], $5::text[]) as u(namespace, queue)
  join windlass.queue q on q.namespace = u.namespace and q.name = u.queue and q.config <> '{}'

-- name: update_tasks
-- Writes any other transition, as decided under the row locks: every column that a rule may change.
update windlass.task t set {changed_assignments}
  from unnest({changed_arrays}) as u({changed_columns}) where t.id = u.id

-- name: insert_history
-- Appends entries to the history.
insert into windlass.history (task_id, at, attempt, what, worker, detail)
select u.task_id, u.at, u.attempt, u.what, u.worker, u.detail::jsonb
  from unnest($1::uuid[], $2::timestamptz[], $3::integer[], $4::text[], $5::text[], $6::text[])
       as u(task_id, at, attempt, what, worker, detail)

-- name: due_timers
-- Locks the tasks whose timer is due, earliest first (index task_timer).
select {task_columns}, windlass.now()
  from windlass.task t where t.timer_at <= windlass.now() order by t.timer_at limit $1 for update skip locked

-- name: await_task
-- Marks an unfinished task as awaited, so that its end sends a notification. Writes the row only once.
update windlass.task t set awaited = true where t.id = $1 and t.finished_at is null and not t.awaited

-- name: notify
-- Sends one notification for each message.
select pg_notify('windlass', m) from unnest($1::text[]) as m

-- name: notify_freed
-- Notifies those of these queues that have limits, because a place in them may be free.
select q.namespace, q.name, pg_notify('windlass', concat_ws(chr(31), 'queue', q.namespace, q.name))
  from unnest($1::text[], $2::text[]) as u(namespace, queue)
  join windlass.queue q on q.namespace = u.namespace and q.name = u.queue and q.config <> '{}'
