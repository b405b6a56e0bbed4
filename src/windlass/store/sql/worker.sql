-- name: insert_worker
-- A worker of our own begins. Its id in the registry is known to people; its lease to nobody but itself.
insert into windlass.worker (id, lease_id, namespace, contract, name, queues, kinds, labels, host, pid, version,
                             max_running, registered_at, heartbeat_at)
select $1, $2, $3, 'session', $4, $5, $6,
       coalesce((select jsonb_object_agg(split_part(label, '=', 1), substr(label, strpos(label || '=', '=') + 1))
                   from unnest($7::text[]) as label), '{}'),
       $8, $9, $10, $11, c.now, c.now
  from (select windlass.now() as now) c
on conflict (id) do nothing

-- name: register_worker
-- A worker registers. One with the same host, process, queue and namespace is the same worker in a new incarnation
-- (index worker_identity); its former lease runs out by itself.
insert into windlass.worker as w (id, lease_id, namespace, contract, name, queues, kinds, labels, host, pid, version,
                                  max_running, registered_at, heartbeat_at)
select $1, $2, $3, 'registry', $4, $5, $6, $7::text::jsonb, $8, $9, $10, $11, c.now, c.now
  from (select windlass.now() as now) c
on conflict (namespace, (queues[1]), host, pid) where contract = 'registry' and host <> '' and pid <> 0
do update set lease_id = excluded.lease_id, name = excluded.name, kinds = excluded.kinds, labels = excluded.labels,
              version = excluded.version, max_running = excluded.max_running, incarnation = w.incarnation + 1,
              registered_at = excluded.registered_at, heartbeat_at = excluded.heartbeat_at, offline_at = null,
              reported = 0
returning w.id

-- name: beat_workers
-- Heartbeats of many workers in one statement: each extends the lease under which all that the worker runs is held, and
-- adds what it counted. The present lease of the worker, or the one that is named. Who is not returned is not there.
-- Without an active count it is a sign of life and nothing else.
with beat as (
    select b.worker_id, coalesce(b.lease_id, w.lease_id) as lease_id, b.active, b.completed, b.failed
      from unnest($1::uuid[], $2::uuid[], $3::integer[], $4::bigint[], $5::bigint[])
           as b(worker_id, lease_id, active, completed, failed)
      join windlass.worker w on w.id = b.worker_id
), extended as (
    update windlass.lease l
       set expires_at = windlass.now() + l.ttl_s * interval '1 second'
      from beat b
     where l.id = b.lease_id and l.worker = b.worker_id::text and l.expires_at > windlass.now()
       and (l.draining_until is null or l.draining_until > windlass.now())
    returning b.worker_id, l.id, l.expires_at, l.draining_until is not null as draining
), counted as (
    update windlass.worker w
       set reported = b.active, completed = w.completed + b.completed, failed = w.failed + b.failed,
           heartbeat_at = windlass.now()
      from beat b join extended e on e.worker_id = b.worker_id
     where w.id = b.worker_id and b.active is not null
)
select e.worker_id, e.id, e.expires_at, e.draining from extended e

-- name: count_work
-- What workers of our own say has ended since their last heartbeats (index worker_lease).
update windlass.worker w
   set completed = w.completed + u.completed, failed = w.failed + u.failed
  from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as u(lease_id, completed, failed)
 where w.lease_id = u.lease_id

-- name: drain_leases
-- Their workers say that they drain. How long they take is their own business.
update windlass.lease l set draining_until = 'infinity'
 where l.id = any($1::uuid[]) and l.expires_at > windlass.now() and l.draining_until is null

-- name: drain_lease
-- From now on no claim under this lease finds anything; it ends at the given time from now at the latest.
update windlass.lease l
   set draining_until = windlass.now() + $2::double precision * interval '1 second'
 where l.id = $1 and l.expires_at > windlass.now() and coalesce(l.draining_until, 'infinity') = 'infinity'

-- name: workers_offline
-- The workers of these leases are gone; returned are those that were not so before. When they were heard of last is taken from the lease, while it is there.
update windlass.worker w
   set offline_at = windlass.now(),
       heartbeat_at = greatest(w.heartbeat_at, coalesce(
           (select least(l.expires_at - l.ttl_s * interval '1 second', windlass.now())
              from windlass.lease l where l.id = w.lease_id), w.heartbeat_at))
 where w.lease_id = any($1::uuid[]) and w.offline_at is null
returning w.id, w.name

-- name: get_worker
-- One worker, here or gone.
select v.* from windlass.worker_now v where v.id = $1

-- name: list_workers
-- Newest first, beyond a position, by any of the filters that are given (index worker_list).
select v.*, w.created_at from windlass.worker_now v join windlass.worker w on w.id = v.id
 where w.namespace = $1 and (w.created_at, w.id) < {beyond($2, $3)} and ($4::text is null or $4 = any(v.queues))
   and ($5::text[] is null or v.state = any($5))
 order by w.created_at desc, w.id desc limit $6

-- name: count_workers
-- How many there are in all by the same filters (index worker_list).
select count(*) from windlass.worker_now v
 where v.namespace = $1 and ($2::text is null or $2 = any(v.queues)) and ($3::text[] is null or v.state = any($3))

-- name: worker_loads
-- What runs under the leases of these workers, and what of it began after they were last heard of (index task_running).
select w.id, count(*), count(*) filter (where t.started_at > w.heartbeat_at)
  from windlass.worker w
  join windlass.task t on t.namespace = w.namespace and t.queue = any(w.queues) and t.state = 'running'
                      and t.lease_id = w.lease_id
 where w.id = any($1::uuid[]) group by w.id

-- name: delete_workers
-- Forgets workers that have been gone for long (index worker_offline).
delete from windlass.worker w
 where w.id = any(array(select o.id from windlass.worker o where o.offline_at < $1 order by o.offline_at limit $2))
