-- name: open_lease
-- A worker begins.
insert into windlass.lease (id, namespace, worker, queues, kinds, labels, ttl_s, host, pid, version, delivery,
                            expires_at, created_at)
select $1, $2, $3, $4, $5, $6, $7::double precision, $8, $9, $10, $11,
       c.now + $7::double precision * interval '1 second', c.now
  from (select windlass.now() as now) c
on conflict (id) do nothing
returning expires_at

-- name: get_lease
-- One lease, live or not.
select l.id, l.namespace, l.worker, l.queues, l.kinds, l.labels, l.ttl_s, l.expires_at, l.host, l.pid, l.version,
       l.delivery
  from windlass.lease l where l.id = $1

-- name: extend_leases
-- Signs of life of many workers at once. A lease that has run out is not extended and not returned.
update windlass.lease l
   set expires_at = windlass.now() + l.ttl_s * interval '1 second'
 where l.id = any($1::uuid[]) and l.expires_at > windlass.now()
   and (l.draining_until is null or l.draining_until > windlass.now())
returning l.id, l.expires_at, l.draining_until is not null

-- name: outwait_claims
-- Waits for the key share lock of every claim under this lease, also of one whose connection we lost.
select from windlass.lease l where l.id = $1 for update

-- name: end_leases
-- The workers say goodbye: whatever they still hold is recovered by the next tick.
update windlass.lease l set expires_at = windlass.now() where l.id = any($1::uuid[]) and l.expires_at > windlass.now()

-- name: cancelling_tasks
-- Locks the tasks of these leases that are to be cancelled (index task_cancelling).
select {task_columns}, windlass.now()
  from windlass.task t
 where t.lease_id = any($1::uuid[]) and t.state = 'running' and t.cancel is not null
 order by t.id for update skip locked

-- name: expired_leases
-- Locks leases that have run out. The table is small and has no index on the time, so that extending stays cheap.
select l.id, l.namespace, l.queues, windlass.now() from windlass.lease l
 where l.expires_at <= windlass.now() or l.draining_until <= windlass.now()
 order by l.id limit $1 for update skip locked

-- name: lease_tasks
-- Locks what still runs under a lease (index task_running).
select {task_columns}
  from windlass.task t
 where t.namespace = $1 and t.queue = any($2::text[]) and t.state = 'running' and t.lease_id = $3
 order by t.id limit $4 for update skip locked

-- name: forgotten_tasks
-- Locks what runs under a lease though its worker no longer knows it. Attempts younger than the given age may be on
-- their way to the worker.
select {task_columns}, windlass.now()
  from windlass.task t
 where t.namespace = $1 and t.queue = any($2::text[]) and t.state = 'running' and t.lease_id = $3
   and t.id <> all($4::uuid[]) and t.started_at < windlass.now() - $5::double precision * interval '1 second'
 order by t.id for update skip locked

-- name: lease_holds_tasks
-- Whether anything still runs under this lease, locked by somebody or not.
select exists (
    select from windlass.task t
     where t.namespace = $1 and t.queue = any($2::text[]) and t.state = 'running' and t.lease_id = $3)

-- name: delete_leases
-- Leases that cover nothing any more.
delete from windlass.lease l where l.id = any($1::uuid[])

-- name: lost_tasks
-- Which of these tasks are no longer run under this lease: they ended, timed out, or are with somebody else. Those of
-- another namespace than the lease's are not spoken of.
select t.id from windlass.task t join windlass.lease l on l.id = $1 and l.namespace = t.namespace
 where t.id = any($2::uuid[]) and (t.lease_id is distinct from $1 or t.state <> 'running')
