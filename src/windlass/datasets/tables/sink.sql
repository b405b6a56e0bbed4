-- name: versions_without_table
-- Returns the versions of PostgreSQL datasets that have no table yet and that live deployments write, or whose batches
-- wait; with $1 those of one deployment. Each with its dataset, namespace, write mode and schema.
select v.id, v.dataset_uuid, s.namespace, s.write_mode, v.schema::text
  from windlass.dataset_version v
  join windlass.dataset s on s.id = v.dataset_uuid
 where v.table_at is null and v.purged_at is null and s.storage = 'postgres'
   and (exists (select from windlass.deployment_pointer p join windlass.deployment d on d.id = p.deployment_id
                 where p.dataset_version = v.id and d.state in ('building', 'ready', 'active', 'failed')
                   and ($1::uuid is null or d.id = $1))
        or $1 is null
           and exists (select from windlass.publish b
                        where b.dataset_uuid = v.dataset_uuid and b.dataset_version = v.id and b.buffered
                          and b.sunk_at is null))

-- name: mark_tables
-- Records that versions have their table now.
update windlass.dataset_version v set table_at = windlass.now(), location = u.location
  from unnest($1::uuid[], $2::text[]) as u(id, location) where v.id = u.id

-- name: purged_tables
-- Returns versions that were purged and whose table still exists (index dataset_version_purged).
select v.id from windlass.dataset_version v
 where v.table_at is not null and v.purged_at >= v.table_at order by v.purged_at limit $1

-- name: forget_table
-- Records that the table of a version is dropped.
update windlass.dataset_version v set table_at = null where v.id = $1

-- name: views_of_dag
-- Returns the PostgreSQL datasets of a DAG with the version that is current and has a table.
select s.id, v.id
  from windlass.dag g
  join windlass.deployment_pointer p on p.deployment_id = g.active_version
  join windlass.dataset s on s.id = p.dataset_uuid and s.storage = 'postgres'
  join windlass.dataset_version v on v.id = p.dataset_version and v.table_at is not null and v.purged_at is null
 where g.namespace = $1 and g.name = $2

-- name: publishes_to_sink
-- Returns batches with what a sink needs to write them: the schema of their version, whether its table exists and
-- whether it was purged, and the trace of the task that published them.
select p.id, p.namespace, p.task_id, p.attempt, p.dataset_uuid, p.dataset_version, p.batch_uri, p.record_count, p.at,
       p.sunk_at, s.name, v.schema::text, v.table_at is not null, v.purged_at is not null, t.trace
  from windlass.publish p
  join windlass.dataset s on s.id = p.dataset_uuid
  join windlass.dataset_version v on v.id = p.dataset_version
  left join windlass.task t on t.id = p.task_id
 where p.id = any($1::uuid[]) and p.buffered and v.schema is not null

-- name: mark_sunk
-- Records that batches are in their tables.
update windlass.publish p set sunk_at = windlass.now(), sink_task_id = u.task_id, problem = null
  from unnest($1::uuid[], $2::uuid[]) as u(id, task_id)
 where p.id = u.id and p.sunk_at is null

-- name: revive_batch
-- Forgets the problem of a batch that is not in its table, and returns it.
update windlass.publish p set problem = null
 where p.id = $1 and p.namespace = $2 and 'buffer.' || p.dataset_uuid = $3 and p.buffered and p.sunk_at is null
returning p.id, p.namespace, p.task_id, p.attempt, p.dataset_uuid, p.dataset_version, p.batch_uri, p.record_count,
          p.caller, p.at

-- name: receive_batches
-- Receives the oldest visible message of a batch and more of the same dataset, at most $1, and hides them from other
-- sinks for $2 seconds (index message_buffer). The id of a message is that of its publish.
with first as (
    select m.namespace, m.queue from windlass.message m
     where m.queue like 'buffer.%' and m.visible_at <= windlass.now()
     order by m.visible_at limit 1 for update skip locked
), due as (
    select d.id from windlass.message d join first f on d.namespace = f.namespace and d.queue = f.queue
     where d.visible_at <= windlass.now() order by d.visible_at limit $1 for update of d skip locked
)
update windlass.message m
   set deliveries = m.deliveries + 1, visible_at = windlass.now() + $2::double precision * interval '1 second'
  from due where m.id = due.id
returning m.id, m.deliveries

-- name: ack_batches
-- Deletes the messages of batches that are written.
delete from windlass.message m
 where m.id = any(array(select d.id from windlass.message d where d.id = any($1::uuid[]) order by d.id for update))

-- name: delay_batches
-- Makes messages visible again after $3 seconds. With $4 the delivery does not count.
update windlass.message m
   set visible_at = windlass.now() + $3::double precision * interval '1 second',
       deliveries = case when $4 then greatest(m.deliveries - 1, 0) else m.deliveries end
  from unnest($1::uuid[], $2::integer[]) as u(id, deliveries)
 where m.id = u.id and m.deliveries = u.deliveries

-- name: dead_letter_batch
-- Makes the message of a batch a dead letter, unless another sink has received it since. Returns whether it did.
with gone as (
    delete from windlass.message m where m.id = $2 and m.deliveries = $3
    returning m.id, m.namespace, m.queue, m.body, m.deliveries
), noted as (
    update windlass.publish p set problem = $4 from gone g where p.id = g.id and p.sunk_at is null
)
insert into windlass.dead_message (id, namespace, queue, message_id, task_id, body, deliveries, reason, dead_at)
select $1, g.namespace, g.queue, g.id::text, null, g.body, g.deliveries, $4, windlass.now() from gone g
on conflict (namespace, queue, message_id, md5(body)) do nothing
returning id

-- name: lost_batches
-- Returns batches that wait for a sink and have had no message for $1 seconds (index publish_unsunk). Dead letters have
-- a problem.
select p.id, p.namespace, p.task_id, p.attempt, p.dataset_uuid, p.dataset_version, p.batch_uri, p.record_count,
       p.caller, p.at
  from windlass.publish p
 where p.buffered and p.sunk_at is null and p.problem is null
   and p.at < windlass.now() - $1::double precision * interval '1 second'
   and not exists (select from windlass.message m where m.id = p.id)
 order by p.at limit $2

-- name: put_batch_messages
-- Puts the messages of batches into the queues of their datasets. A message that exists is the same message.
insert into windlass.message (id, namespace, queue, body, visible_at, created_at)
select u.id, u.namespace, u.queue, u.body, windlass.now(), windlass.now()
  from unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[]) as u(id, namespace, queue, body)
on conflict (id) do nothing

-- name: publish_queued
-- Records that the message of a batch is in its queue. Returns whether a sink writes the batch.
update windlass.publish p set queued_at = coalesce(p.queued_at, windlass.now()) where p.id = $1
returning p.buffered and p.sunk_at is null

-- name: batches_to_remove
-- Returns batches that were written long enough ago for their objects to be deleted (index publish_sunk).
select p.id, p.batch_uri from windlass.publish p
 where p.sunk_at < windlass.now() - $1::double precision * interval '1 second' and p.removed_at is null
 order by p.sunk_at limit $2

-- name: mark_removed
-- Records that the objects of batches are deleted. A batch whose task is gone is not needed any more.
with gone as (
    delete from windlass.publish p
     where p.id = any($1::uuid[]) and not exists (select from windlass.task t where t.id = p.task_id)
)
update windlass.publish p set removed_at = windlass.now()
 where p.id = any($1::uuid[]) and exists (select from windlass.task t where t.id = p.task_id)

-- name: sink_lag
-- Returns the age in seconds of the oldest batch that waits for a sink (index publish_unsunk).
select coalesce(extract(epoch from windlass.now() - min(p.at)), 0)::double precision
  from windlass.publish p where p.buffered and p.sunk_at is null and p.problem is null
