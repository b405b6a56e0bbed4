-- name: open_lease
-- Adds the lease of a worker, unless its id exists.
insert into windlass.lease (id, namespace, worker, queues, kinds, labels, ttl_s, host, pid, version, delivery,
                            expires_at, created_at)
select $1, $2, $3, $4, $5, $6, $7::double precision, $8, $9, $10, $11,
       c.now + $7::double precision * interval '1 second', c.now
  from (select windlass.now() as now) c
on conflict (id) do nothing
returning expires_at

-- name: get_lease
-- Returns one lease, live or not.
select l.id, l.namespace, l.worker, l.queues, l.kinds, l.labels, l.ttl_s, l.expires_at, l.host, l.pid, l.version,
       l.delivery
  from windlass.lease l where l.id = $1

-- name: extend_leases
-- Extends the leases of many workers at once. A lease that has expired is not extended and not returned.
update windlass.lease l
   set expires_at = windlass.now() + l.ttl_s * interval '1 second'
 where l.id = any($1::uuid[]) and l.expires_at > windlass.now()
   and (l.draining_until is null or l.draining_until > windlass.now())
returning l.id, l.expires_at, l.draining_until is not null

-- name: outwait_claims
-- Waits for the key share lock of every claim under this lease, including a claim whose connection was lost.
select from windlass.lease l where l.id = $1 for update

-- name: end_leases
-- Ends the leases of workers that stop. The next tick recovers the tasks that still run under them.
update windlass.lease l set expires_at = windlass.now() where l.id = any($1::uuid[]) and l.expires_at > windlass.now()

-- name: cancelling_tasks
-- Locks the tasks of these leases that have a cancel request (index task_cancelling).
select {task_columns}, windlass.now()
  from windlass.task t
 where t.lease_id = any($1::uuid[]) and t.state = 'running' and t.cancel is not null
 order by t.id for update skip locked

-- name: expired_leases
-- Locks leases that have expired. The table is small and has no index on the time, so that extending stays cheap.
select l.id, l.namespace, l.queues, windlass.now() from windlass.lease l
 where l.expires_at <= windlass.now() or l.draining_until <= windlass.now()
 order by l.id limit $1 for update skip locked

-- name: lease_tasks
-- Locks the tasks that still run under a lease (index task_running).
select {task_columns}
  from windlass.task t
 where t.namespace = $1 and t.queue = any($2::text[]) and t.state = 'running' and t.lease_id = $3
 order by t.id limit $4 for update skip locked

-- name: forgotten_tasks
-- Locks the tasks that run under a lease but that its worker does not list. Leaves out attempts younger than the
-- given age: they may still be on their way to the worker.
select {task_columns}, windlass.now()
  from windlass.task t
 where t.namespace = $1 and t.queue = any($2::text[]) and t.state = 'running' and t.lease_id = $3
   and t.id <> all($4::uuid[]) and t.started_at < windlass.now() - $5::double precision * interval '1 second'
 order by t.id for update skip locked

-- name: lease_holds_tasks
-- Returns whether anything still runs under this lease, locked or not.
select exists (
    select from windlass.task t
     where t.namespace = $1 and t.queue = any($2::text[]) and t.state = 'running' and t.lease_id = $3)

-- name: delete_leases
-- Deletes leases under which nothing runs any more.
delete from windlass.lease l where l.id = any($1::uuid[])

-- name: lost_tasks
-- Returns those of these tasks that no longer run under this lease: they ended, timed out, or run under another
-- lease. Leaves out tasks of another namespace than the lease's.
select t.id from windlass.task t join windlass.lease l on l.id = $1 and l.namespace = t.namespace
 where t.id = any($2::uuid[]) and (t.lease_id is distinct from $1 or t.state <> 'running')
