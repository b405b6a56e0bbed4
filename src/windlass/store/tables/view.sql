-- name: get_task
-- Returns one task, with the columns that the API shows.
select {task_columns}, t.created_at, t.payload, t.requires, t.idempotency_key, t.wire, t.replay_of, t.schedule_id
  from windlass.task t where t.id = $1

-- name: get_tasks
-- Returns these tasks, in the order of their ids.
select {task_columns}, t.created_at, t.payload, t.requires, t.idempotency_key, t.wire, t.replay_of, t.schedule_id
  from windlass.task t where t.id = any($1::uuid[]) order by t.id

-- name: task_namespaces
-- Returns the namespaces of those of these tasks that exist (index task_pkey).
select t.id, t.namespace from windlass.task t where t.id = any($1::uuid[])

-- name: task_results
-- Returns the results of those of these tasks that succeeded, in one namespace or in all (index task_pkey).
select t.id, coalesce(t.result, 'null') from windlass.task t
 where t.id = any($1::uuid[]) and t.state = 'succeeded' and ($2::text is null or t.namespace = $2)

-- name: list_tasks
-- Returns one page of tasks, newest first, by any of the filters (index task_created, or task_rare for rare states).
-- Leaves out payloads longer than $11 bytes, which bounds the size of a page.
select {task_columns}, t.created_at, case when octet_length(t.payload) <= $11::integer then t.payload end, t.requires,
       t.idempotency_key, t.wire, t.replay_of, t.schedule_id
  from windlass.task t
 where t.namespace = $1 and (t.created_at, t.id) < {beyond($2, $3)}
   and ($4::text[] is null or t.state = any($4)) and ($5::text is null or t.queue = $5)
   and ($6::text is null or t.kind = $6) and ($7::uuid is null or t.run_id = $7)
   and t.created_at >= coalesce($9::timestamptz, '-infinity') and t.created_at < coalesce($10::timestamptz, 'infinity')
 order by t.created_at desc, t.id desc limit $8

-- name: count_unfinished
-- Counts tasks by queue and state. Each branch reads one index: task_ready, task_running, task_rare.
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
-- Counts all tasks of a namespace by state. Reads every one of them.
select t.state, count(*) from windlass.task t where t.namespace = $1 group by t.state

-- name: task_history
-- Returns the history of a task in order.
select h.task_id, h.at, h.attempt, h.what, h.worker, h.detail from windlass.history h where h.task_id = $1 order by h.at

-- name: task_report
-- Returns what a worker last reported besides the result when an attempt ended (index history_task).
select h.task_id, h.at, h.attempt, h.what, h.worker, h.detail from windlass.history h
 where h.task_id = $1 and h.what = 'reported' order by h.at desc limit 1

-- name: waiting_for
-- Returns the tasks that this one waits for, at most 100.
select e.upstream_id from windlass.edge e where e.task_id = $1 order by e.upstream_id limit 100

-- name: capable_workers
-- Counts the live workers that could claim this task, among those that take this delivery.
select count(*) from windlass.lease l
 where l.namespace = $1 and $2 = any(l.queues) and (l.kinds is null or $3 = any(l.kinds))
   and coalesce($4::text[], '{}') <@ l.labels and l.expires_at > windlass.now() and l.draining_until is null
   and l.delivery = $5

-- name: has_pending_cancel
-- Returns whether a task under this lease has a cancel request that its worker has not received yet (index
-- task_cancelling).
select exists (
    select from windlass.task t
     where t.lease_id = $1 and t.state = 'running' and t.cancel is not null and t.cancel ->> 'signalled_at' is null)

-- name: list_leases
-- Returns the leases of live workers.
select l.id, l.namespace, l.worker, l.queues, l.kinds, l.labels, l.ttl_s, l.expires_at, l.host, l.pid, l.version,
       l.delivery
  from windlass.lease l where l.namespace = $1 and l.expires_at > windlass.now() order by l.id

-- name: get_run
-- Returns one run.
select r.id, r.namespace, r.created_at from windlass.run r where r.id = $1

-- name: list_runs
-- Returns one page of runs that have tasks, newest first (index run_list).
select r.id, r.namespace, r.created_at from windlass.run r
 where r.namespace = $1 and (r.created_at, r.id) < {beyond($2, $3)}
   and exists (select from windlass.task t where t.run_id = r.id)
 order by r.created_at desc, r.id desc limit $4

-- name: runs_counts
-- Counts the tasks of these runs by state (index task_run).
select t.run_id, t.state, count(*) from windlass.task t where t.run_id = any($1::uuid[]) group by t.run_id, t.state

-- name: run_of_key
-- Returns the run of the task that was submitted with this idempotency key.
select t.run_id from windlass.idempotency i join windlass.task t on t.id = i.task_id
 where i.namespace = $1 and i.key = $2

-- name: lease_loads
-- Counts what runs under each lease of a namespace (index task_running).
select t.lease_id, count(*) from windlass.task t where t.namespace = $1 and t.state = 'running' group by t.lease_id

-- name: list_effects
-- Returns one page of effects, newest first: pending ones ($4 false), dead ones (true, index outbox_dead), or both
-- (null).
select o.id, o.kind, o.namespace, o.task_id, o.attempt, o.tries, o.created_at, o.available_at, o.dead_at, o.error
  from windlass.outbox o
 where o.namespace = $1 and (o.created_at, o.id) < {beyond($2, $3)}
   and ($4::boolean is null or $4 = (o.dead_at is not null))
 order by o.created_at desc, o.id desc limit $5

-- name: get_effect
-- Returns one effect.
select o.id, o.kind, o.namespace, o.task_id, o.attempt, o.tries, o.created_at, o.available_at, o.dead_at, o.error
  from windlass.outbox o where o.id = $1

-- name: queue_gauges
-- Counts the tasks of each queue by state, and returns for how long the oldest due task has waited. Each branch reads
-- one index: task_ready, task_running, task_rare.
select t.queue, t.state, count(*), coalesce(extract(epoch from windlass.now() - min(t.available_at))::float8, 0)
  from windlass.task t where t.state = 'queued' and t.available_at <= windlass.now() group by t.queue, t.state
union all
select t.queue, 'scheduled', count(*), 0
  from windlass.task t where t.state = 'queued' and t.available_at > windlass.now() group by t.queue
union all
select t.queue, t.state, count(*), 0 from windlass.task t where t.state = 'running' group by t.queue, t.state
union all
select t.queue, t.state, count(*), 0
  from windlass.task t where t.state in ('blocked', 'sleeping', 'parked') group by t.queue, t.state
 order by 1, 2

-- name: worker_gauges
-- Counts workers by state: alive, or lost and not yet removed.
select case when l.expires_at > windlass.now() then 'alive' else 'lost' end, count(*)
  from windlass.lease l where l.namespace <> '' group by 1

-- name: dead_letter_gauges
-- Counts dead letters by queue.
select d.queue, count(*) from windlass.dead_message d group by d.queue order by d.queue limit $1

-- name: schedule_lag
-- Returns for how many seconds the earliest due schedule has been due (index schedule_due).
select coalesce((select greatest(0, extract(epoch from windlass.now() - s.next_fire_at))::float8 from windlass.schedule s
                  where not s.paused and s.next_fire_at is not null order by s.next_fire_at limit 1), 0)
