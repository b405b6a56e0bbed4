-- name: insert_worker
-- Adds a session worker. People see its id in the registry; its lease id is secret and known to the worker alone.
insert into windlass.worker (id, lease_id, namespace, contract, name, queues, kinds, labels, host, pid, version,
                             max_running, registered_at, heartbeat_at)
select $1, $2, $3, 'session', $4, $5, $6,
       coalesce((select jsonb_object_agg(split_part(label, '=', 1), substr(label, strpos(label || '=', '=') + 1))
                   from unnest($7::text[]) as label), '{}'),
       $8, $9, $10, $11, c.now, c.now
  from (select windlass.now() as now) c
on conflict (id) do nothing

-- name: register_worker
-- Registers a worker. The same host, process, queue and namespace is the same worker in a new incarnation (index
-- worker_identity). Its former lease expires by itself.
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

-- name: record_worker_heartbeats
-- Writes heartbeats of many workers: each extends the lease that covers all that the worker runs, and adds its
-- counters. The lease is the one that is named, or else the worker's current one. A worker without a live lease is
-- not returned. Without an active count, only the lease is extended.
with heartbeat as (
    select b.worker_id, coalesce(b.lease_id, w.lease_id) as lease_id, b.active, b.completed, b.failed
      from unnest($1::uuid[], $2::uuid[], $3::integer[], $4::bigint[], $5::bigint[])
           as b(worker_id, lease_id, active, completed, failed)
      join windlass.worker w on w.id = b.worker_id
), extended as (
    update windlass.lease l
       set expires_at = windlass.now() + l.ttl_s * interval '1 second'
      from heartbeat b
     where l.id = b.lease_id and l.worker = b.worker_id::text and l.expires_at > windlass.now()
       and (l.draining_until is null or l.draining_until > windlass.now())
    returning b.worker_id, l.id, l.expires_at, l.draining_until is not null as draining
), counted as (
    update windlass.worker w
       set reported = b.active, completed = w.completed + b.completed, failed = w.failed + b.failed,
           heartbeat_at = windlass.now()
      from heartbeat b join extended e on e.worker_id = b.worker_id
     where w.id = b.worker_id and b.active is not null
)
select e.worker_id, e.id, e.expires_at, e.draining from extended e

-- name: count_work
-- Adds the counters that session workers sent with their heartbeats (index worker_lease).
update windlass.worker w
   set completed = w.completed + u.completed, failed = w.failed + u.failed
  from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as u(lease_id, completed, failed)
 where w.lease_id = u.lease_id

-- name: drain_leases
-- Marks leases as draining, at the request of their workers. Sets no limit on how long they take.
update windlass.lease l set draining_until = 'infinity'
 where l.id = any($1::uuid[]) and l.expires_at > windlass.now() and l.draining_until is null

-- name: drain_lease
-- Drains a lease: claims under it find nothing from now on, and it ends after $2 seconds at the latest.
update windlass.lease l
   set draining_until = windlass.now() + $2::double precision * interval '1 second'
 where l.id = $1 and l.expires_at > windlass.now() and coalesce(l.draining_until, 'infinity') = 'infinity'

-- name: workers_offline
-- Marks the workers of these leases as offline, and returns those that were online. Takes the time of the last
-- heartbeat from the lease while it exists.
update windlass.worker w
   set offline_at = windlass.now(),
       heartbeat_at = greatest(w.heartbeat_at, coalesce(
           (select least(l.expires_at - l.ttl_s * interval '1 second', windlass.now())
              from windlass.lease l where l.id = w.lease_id), w.heartbeat_at))
 where w.lease_id = any($1::uuid[]) and w.offline_at is null
returning w.id, w.name

-- name: get_worker
-- Returns one worker, online or offline.
select v.* from windlass.worker_now v where v.id = $1

-- name: list_workers
-- Returns one page of workers, newest first, by any of the filters (index worker_list).
select v.*, w.created_at from windlass.worker_now v join windlass.worker w on w.id = v.id
 where w.namespace = $1 and (w.created_at, w.id) < {beyond($2, $3)} and ($4::text is null or $4 = any(v.queues))
   and ($5::text[] is null or v.state = any($5))
 order by w.created_at desc, w.id desc limit $6

-- name: count_workers
-- Counts all workers that pass the same filters (index worker_list).
select count(*) from windlass.worker_now v
 where v.namespace = $1 and ($2::text is null or $2 = any(v.queues)) and ($3::text[] is null or v.state = any($3))

-- name: worker_loads
-- Counts what runs under the leases of these workers, and what of it started after their last heartbeat (index
-- task_running).
select w.id, count(*), count(*) filter (where t.started_at > w.heartbeat_at)
  from windlass.worker w
  join windlass.task t on t.namespace = w.namespace and t.queue = any(w.queues) and t.state = 'running'
                      and t.lease_id = w.lease_id
 where w.id = any($1::uuid[]) group by w.id

-- name: delete_workers
-- Deletes workers that have been offline since before an instant (index worker_offline).
delete from windlass.worker w
 where w.id = any(array(select o.id from windlass.worker o where o.offline_at < $1 order by o.offline_at limit $2))
