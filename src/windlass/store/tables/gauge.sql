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
