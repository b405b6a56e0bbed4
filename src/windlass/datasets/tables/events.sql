-- name: insert_events
-- Records events. A repeated event is the same row. An event of data in the lake that was reported alone is replaced by
-- the one that commits its files.
insert into windlass.event as e (id, namespace, task_id, attempt, dataset_uuid, dataset_version, cursor, partition_key, first,
                            last, declared, caller, at, revision, traceparent, routing, routed_at)
select u.*, case when u.routing is not null and u.declared then windlass.now() end
  from unnest($1::uuid[], $2::text[], $3::uuid[], $4::integer[], $5::uuid[], $6::uuid[], $7::bigint[], $8::text[],
              $9::bigint[], $10::bigint[], $11::boolean[], $12::text[], $13::timestamptz[], $14::integer[], $15::text[],
              $16::text[])
       as u(id, namespace, task_id, attempt, dataset_uuid, dataset_version, cursor, partition_key, first, last, declared,
            caller, at, revision, traceparent, routing)
on conflict (id) do update
   set attempt = excluded.attempt, caller = excluded.caller, at = excluded.at, first = excluded.first,
       last = excluded.last, revision = excluded.revision, traceparent = excluded.traceparent,
       routing = excluded.routing, routed_at = excluded.routed_at
 where e.routing = 'uncommitted' and excluded.routing is distinct from 'uncommitted'

-- name: insert_publishes
-- Records published batches. A repeated batch is the same row. Those of buffered datasets are for the sink.
insert into windlass.publish (id, namespace, task_id, attempt, dataset_uuid, dataset_version, batch_uri, record_count,
                              caller, at, buffered)
select u.*, exists (select from windlass.dataset s where s.id = u.dataset_uuid and s.write_mode = 'buffered')
  from unnest($1::uuid[], $2::text[], $3::uuid[], $4::integer[], $5::uuid[], $6::uuid[], $7::text[], $8::bigint[],
              $9::text[], $10::timestamptz[])
       as u(id, namespace, task_id, attempt, dataset_uuid, dataset_version, batch_uri, record_count, caller, at)
on conflict (id) do nothing

-- name: known_events
-- Returns those of these events that are recorded, with what became of them.
select e.id, e.routing from windlass.event e where e.id = any($1::uuid[])

-- name: known_publishes
-- Returns those of these batches that are recorded, with version and number of records.
select p.id, p.dataset_version, p.record_count from windlass.publish p where p.id = any($1::uuid[])

-- name: task_events
-- Returns one page of the events of a task, in order (index event_task).
select e.id, e.namespace, e.task_id, e.attempt, e.dataset_uuid, e.dataset_version, e.cursor, e.partition_key, e.first,
       e.last, e.declared, e.caller, e.at, e.revision, e.traceparent, e.routing, e.routed_at
  from windlass.event e where e.task_id = $1 and (e.at, e.id) > {from_position($2, $3)}
 order by e.at, e.id limit $4

-- name: task_publishes
-- Returns one page of the batches of a task, in order (index publish_task).
select p.id, p.namespace, p.task_id, p.attempt, p.dataset_uuid, p.dataset_version, p.batch_uri, p.record_count,
       p.caller, p.at, p.queued_at, p.sunk_at, p.sink_task_id, p.problem
  from windlass.publish p where p.task_id = $1 and (p.at, p.id) > {from_position($2, $3)}
 order by p.at, p.id limit $4

-- name: lock_dataset_versions
-- Locks versions of datasets until the transaction ends, in one order.
select pg_advisory_xact_lock(hashtextextended(v.id::text, 0)) from unnest($1::uuid[]) as v(id)

-- name: locked_versions
-- Returns the highest cursor of versions that the caller has locked, and whether they were purged.
select u.id, h.cursor, v.purged_at is not null
  from unnest($1::uuid[]) as u(id)
  left join windlass.high_water h on h.dataset_version = u.id
  left join windlass.dataset_version v on v.id = u.id

-- name: committed_partitions
-- Returns the newest revisions of these partitions, with the task and the manifest of each.
select p.dataset_version, p.key, r.task_id, p.revision, r.manifest_sha256
  from unnest($1::uuid[], $2::text[]) as u(dataset_version, key)
  join windlass.partition p on p.dataset_version = u.dataset_version and p.key = u.key
  join windlass.partition_revision r on r.dataset_version = p.dataset_version and r.key = p.key
   and r.revision = p.revision

-- name: partition_neighbors
-- Returns for each of these partitions (version, key, last number) the last other one of its version that begins before
-- its end (index partition_range). Only that one can overlap it.
select distinct n.dataset_version, n.key, n.first, n.last
  from unnest($1::uuid[], $2::text[], $3::bigint[]) as u(dataset_version, key, last)
 cross join lateral (select p.dataset_version, p.key, p.first, p.last from windlass.partition p
                      where p.dataset_version = u.dataset_version and p.first <= u.last and p.key <> u.key
                      order by p.first desc, p.key desc limit 1) n

-- name: commit_partitions
-- Writes revisions of partitions, and makes each the current one. The caller has locked the versions.
with given as materialized (
    select u.* from unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::integer[], $6::uuid[], $7::integer[],
                           $8::uuid[], $9::text[], $10::text[], $11::bigint[], $12::bigint[], $13::text[], $14::text[],
                           $15::timestamptz[])
           as u(dataset_version, key, first, last, revision, task_id, attempt, deployment_id, location, manifest_sha256,
                rows, bytes, trace_id, inputs, committed_at)
), revisions as (
    insert into windlass.partition_revision (dataset_version, key, revision, task_id, attempt, deployment_id, location,
                                             manifest_sha256, rows, bytes, trace_id, inputs, committed_at)
    select g.dataset_version, g.key, g.revision, g.task_id, g.attempt, g.deployment_id, g.location, g.manifest_sha256,
           g.rows, g.bytes, g.trace_id, g.inputs::jsonb, g.committed_at from given g
)
insert into windlass.partition as p (dataset_version, key, first, last, revision, committed_at)
select distinct on (g.dataset_version, g.key) g.dataset_version, g.key, g.first, g.last, g.revision, g.committed_at
  from given g order by g.dataset_version, g.key, g.revision desc
on conflict (dataset_version, key) do update
   set revision = excluded.revision, committed_at = excluded.committed_at,
       first = coalesce(excluded.first, p.first), last = coalesce(excluded.last, p.last)

-- name: commit_cursors
-- Writes which files tasks have added to versions.
insert into windlass.cursor_commit (dataset_version, cursor, task_id, attempt, deployment_id, location, manifest_sha256,
                                    rows, bytes, trace_id, inputs, committed_at)
select u.dataset_version, u.cursor, u.task_id, u.attempt, u.deployment_id, u.location, u.manifest_sha256, u.rows, u.bytes,
       u.trace_id, u.inputs::jsonb, u.committed_at
  from unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::integer[], $5::uuid[], $6::text[], $7::text[], $8::bigint[],
              $9::bigint[], $10::text[], $11::text[], $12::timestamptz[])
       as u(dataset_version, cursor, task_id, attempt, deployment_id, location, manifest_sha256, rows, bytes, trace_id,
            inputs, committed_at)
on conflict do nothing

-- name: partition_locations
-- Returns where the files of these revisions are. Without a revision it is the newest one.
select u.place, r.location, r.revision
  from unnest($1::integer[], $2::uuid[], $3::text[], $4::integer[]) as u(place, dataset_version, key, revision)
  left join windlass.partition p on p.dataset_version = u.dataset_version and p.key = u.key
  join windlass.partition_revision r on r.dataset_version = u.dataset_version and r.key = u.key
   and r.revision = coalesce(u.revision, p.revision)

-- name: cursor_locations
-- Returns where the files of a version are that were added after a cursor ($2) and up to another ($3), in order.
select c.location from windlass.cursor_commit c
 where c.dataset_version = $1 and ($2::bigint is null or c.cursor > $2) and ($3::bigint is null or c.cursor <= $3)
 order by c.cursor, c.committed_at, c.task_id limit $4

-- name: current_locations
-- Returns where the files of the newest revisions of all partitions of a version are.
select r.location from windlass.partition p
  join windlass.partition_revision r on r.dataset_version = p.dataset_version and r.key = p.key
   and r.revision = p.revision
 where p.dataset_version = $1 and r.location is not null order by p.first, p.key limit $2

-- name: high_waters
-- Returns the highest cursor of each of these versions.
select h.dataset_version, h.cursor from windlass.high_water h where h.dataset_version = any($1::uuid[])

-- name: raise_high_water
-- Raises the highest cursor of versions, never lowers it.
insert into windlass.high_water as h (dataset_version, cursor)
select u.dataset_version, max(u.cursor) from unnest($1::uuid[], $2::bigint[]) as u(dataset_version, cursor)
 group by u.dataset_version order by u.dataset_version
on conflict (dataset_version) do update set cursor = greatest(h.cursor, excluded.cursor)

-- name: owned_datasets
-- Returns those of these datasets that belong to a DAG.
select s.id from windlass.dataset s where s.id = any($1::uuid[])
