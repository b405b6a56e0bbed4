-- name: get_task
-- One task as people see it.
select {task_columns}, t.created_at, t.payload, t.requires, t.idempotency_key, t.wire, t.replay_of, t.schedule_id
  from windlass.task t where t.id = $1

-- name: get_tasks
-- Many of them, in the order of their ids.
select {task_columns}, t.created_at, t.payload, t.requires, t.idempotency_key, t.wire, t.replay_of, t.schedule_id
  from windlass.task t where t.id = any($1::uuid[]) order by t.id

-- name: task_namespaces
-- Where those of these tasks are that are there (index task_pkey).
select t.id, t.namespace from windlass.task t where t.id = any($1::uuid[])

-- name: task_results
-- What those of these tasks that succeeded returned, in one namespace or in all (index task_pkey).
select t.id, coalesce(t.result, 'null') from windlass.task t
 where t.id = any($1::uuid[]) and t.state = 'succeeded' and ($2::text is null or t.namespace = $2)

-- name: list_tasks
-- Newest first, beyond a position, by any of the filters that are given (index task_created, or task_rare for rare
-- states).
-- A payload longer than $11 bytes is left out, so that a page has a bound.
select {task_columns}, t.created_at, case when octet_length(t.payload) <= $11::integer then t.payload end, t.requires,
       t.idempotency_key, t.wire, t.replay_of, t.schedule_id
  from windlass.task t
 where t.namespace = $1 and (t.created_at, t.id) < {beyond($2, $3)}
   and ($4::text[] is null or t.state = any($4)) and ($5::text is null or t.queue = $5)
   and ($6::text is null or t.kind = $6) and ($7::uuid is null or t.run_id = $7)
   and t.created_at >= coalesce($9::timestamptz, '-infinity') and t.created_at < coalesce($10::timestamptz, 'infinity')
 order by t.created_at desc, t.id desc limit $8

-- name: count_unfinished
-- How much waits and runs, by queue and state (indexes task_ready, task_running, task_rare: one branch each).
select t.queue, t.state, count(*) from windlass.task t
 where t.namespace = $1 and t.state = 'queued'
 group by t.queue, t.state
union all
select t.queue, t.state, count(*) from windlass.task t
 where t.namespace = $1 and t.state = 'running'
 group by t.queue, t.state
union all
select t.queue, t.state, count(*) from windlass.task t
 where t.namespace = $1 and t.state in ('blocked', 'sleeping', 'parked', 'failed', 'cancelled', 'skipped')
 group by t.queue, t.state
 order by 1, 2

-- name: count_tasks
-- How many tasks of each state are kept, all of them counted.
select t.state, count(*) from windlass.task t where t.namespace = $1 group by t.state

-- name: task_history
-- What happened to a task, in order.
select h.task_id, h.at, h.attempt, h.what, h.worker, h.detail from windlass.history h where h.task_id = $1 order by h.at

-- name: task_report
-- What a worker said besides the result when an attempt was over; the last one (index history_task).
select h.attempt, h.at, h.worker, h.detail from windlass.history h
 where h.task_id = $1 and h.what = 'reported' order by h.at desc limit 1

-- name: waiting_for
-- The unfinished tasks that this one waits for.
select e.upstream_id from windlass.edge e where e.task_id = $1 order by e.upstream_id limit 100

-- name: capable_workers
-- How many live workers could take this task, of those that take what is delivered in one way.
select count(*) from windlass.lease l
 where l.namespace = $1 and $2 = any(l.queues) and (l.kinds is null or $3 = any(l.kinds))
   and coalesce($4::text[], '{}') <@ l.labels and l.expires_at > windlass.now() and l.draining_until is null
   and l.delivery = $5

-- name: unheard_cancels
-- Whether something runs under a lease that is to be cancelled and whose worker has not been told (index
-- task_cancelling).
select exists (
    select from windlass.task t
     where t.lease_id = $1 and t.state = 'running' and t.cancel is not null and t.cancel ->> 'signalled_at' is null)

-- name: list_leases
-- The workers that are alive.
select l.id, l.namespace, l.worker, l.queues, l.kinds, l.labels, l.ttl_s, l.expires_at, l.host, l.pid, l.version,
       l.delivery
  from windlass.lease l where l.namespace = $1 and l.expires_at > windlass.now() order by l.id

-- name: dead_effects
-- Effects that were given up.
select o.id, o.kind, o.task_id, o.tries, o.error, o.dead_at from windlass.outbox o
 where o.namespace = $1 and o.dead_at is not null order by o.dead_at desc limit $2

-- name: get_run
-- One run.
select r.id, r.namespace, r.created_at from windlass.run r where r.id = $1

-- name: list_runs
-- Runs that have tasks, newest first, beyond a position (index run_list).
select r.id, r.namespace, r.created_at from windlass.run r
 where r.namespace = $1 and (r.created_at, r.id) < {beyond($2, $3)}
   and exists (select from windlass.task t where t.run_id = r.id)
 order by r.created_at desc, r.id desc limit $4

-- name: runs_counts
-- How many tasks of these runs are in each state (index task_run).
select t.run_id, t.state, count(*) from windlass.task t where t.run_id = any($1::uuid[]) group by t.run_id, t.state

-- name: run_of_key
-- The run of the task that was submitted with this idempotency key.
select t.run_id from windlass.idempotency i join windlass.task t on t.id = i.task_id
 where i.namespace = $1 and i.key = $2

-- name: lease_loads
-- How much runs under each lease of a namespace (index task_running).
select t.lease_id, count(*) from windlass.task t where t.namespace = $1 and t.state = 'running' group by t.lease_id

-- name: list_effects
-- Effects, newest first, beyond a position: those that wait ($4 false), were given up (true: index outbox_dead), or both
-- (null).
select o.id, o.kind, o.namespace, o.task_id, o.attempt, o.tries, o.created_at, o.available_at, o.dead_at, o.error
  from windlass.outbox o
 where o.namespace = $1 and (o.created_at, o.id) < {beyond($2, $3)}
   and ($4::boolean is null or $4 = (o.dead_at is not null))
 order by o.created_at desc, o.id desc limit $5

-- name: get_effect
-- One effect.
select o.id, o.kind, o.namespace, o.task_id, o.attempt, o.tries, o.created_at, o.available_at, o.dead_at, o.error
  from windlass.outbox o where o.id = $1
