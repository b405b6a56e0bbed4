-- name: insert_events
-- Events, recorded with what else was decided. The same event again is the same row.
insert into windlass.event (id, namespace, task_id, attempt, dataset_uuid, dataset_version, cursor, partition_key, first,
                            last, declared, caller, at)
select u.* from unnest($1::uuid[], $2::text[], $3::uuid[], $4::integer[], $5::uuid[], $6::uuid[], $7::bigint[],
                       $8::text[], $9::bigint[], $10::bigint[], $11::boolean[], $12::text[], $13::timestamptz[]) as u
on conflict (id) do nothing

-- name: insert_publishes
-- Batches that were handed over. The same batch again is the same row.
insert into windlass.publish (id, namespace, task_id, attempt, dataset_uuid, dataset_version, batch_uri, record_count,
                              caller, at)
select u.* from unnest($1::uuid[], $2::text[], $3::uuid[], $4::integer[], $5::uuid[], $6::uuid[], $7::text[],
                       $8::bigint[], $9::text[], $10::timestamptz[]) as u
on conflict (id) do nothing

-- name: known_events
-- Which of these were told of already.
select e.id from windlass.event e where e.id = any($1::uuid[])

-- name: known_publishes
-- Which of these were handed over already, and what was said of them.
select p.id, p.dataset_version, p.record_count from windlass.publish p where p.id = any($1::uuid[])

-- name: task_events
-- What a task has told of, in order (index event_task).
select e.id, e.namespace, e.task_id, e.attempt, e.dataset_uuid, e.dataset_version, e.cursor, e.partition_key, e.first,
       e.last, e.declared, e.caller, e.at, e.routed_at
  from windlass.event e where e.task_id = $1 and (e.at, e.id) > {from_position($2, $3)}
 order by e.at, e.id limit $4

-- name: task_publishes
-- What a task has handed over, in order (index publish_task).
select p.id, p.namespace, p.task_id, p.attempt, p.dataset_uuid, p.dataset_version, p.batch_uri, p.record_count,
       p.caller, p.at, p.queued_at
  from windlass.publish p where p.task_id = $1 and (p.at, p.id) > {from_position($2, $3)}
 order by p.at, p.id limit $4

-- name: event_routed
-- Whoever waited for this event has been told.
update windlass.event e set routed_at = windlass.now() where e.id = $1 and e.routed_at is null

-- name: publish_queued
-- The message of this batch is in its queue.
update windlass.publish p set queued_at = windlass.now() where p.id = $1 and p.queued_at is null
