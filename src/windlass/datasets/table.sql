-- name: insert_events
-- Records events. A repeated event is the same row.
insert into windlass.event (id, namespace, task_id, attempt, dataset_uuid, dataset_version, cursor, partition_key, first,
                            last, declared, caller, at)
select u.* from unnest($1::uuid[], $2::text[], $3::uuid[], $4::integer[], $5::uuid[], $6::uuid[], $7::bigint[],
                       $8::text[], $9::bigint[], $10::bigint[], $11::boolean[], $12::text[], $13::timestamptz[]) as u
on conflict (id) do nothing

-- name: insert_publishes
-- Records published batches. A repeated batch is the same row.
insert into windlass.publish (id, namespace, task_id, attempt, dataset_uuid, dataset_version, batch_uri, record_count,
                              caller, at)
select u.* from unnest($1::uuid[], $2::text[], $3::uuid[], $4::integer[], $5::uuid[], $6::uuid[], $7::text[],
                       $8::bigint[], $9::text[], $10::timestamptz[]) as u
on conflict (id) do nothing

-- name: known_events
-- Returns those of these events that are recorded.
select e.id from windlass.event e where e.id = any($1::uuid[])

-- name: known_publishes
-- Returns those of these batches that are recorded, with version and number of records.
select p.id, p.dataset_version, p.record_count from windlass.publish p where p.id = any($1::uuid[])

-- name: task_events
-- Returns one page of the events of a task, in order (index event_task).
select e.id, e.namespace, e.task_id, e.attempt, e.dataset_uuid, e.dataset_version, e.cursor, e.partition_key, e.first,
       e.last, e.declared, e.caller, e.at, e.routed_at
  from windlass.event e where e.task_id = $1 and (e.at, e.id) > {from_position($2, $3)}
 order by e.at, e.id limit $4

-- name: task_publishes
-- Returns one page of the batches of a task, in order (index publish_task).
select p.id, p.namespace, p.task_id, p.attempt, p.dataset_uuid, p.dataset_version, p.batch_uri, p.record_count,
       p.caller, p.at, p.queued_at
  from windlass.publish p where p.task_id = $1 and (p.at, p.id) > {from_position($2, $3)}
 order by p.at, p.id limit $4

-- name: event_routed
-- Records that an event has been routed.
update windlass.event e set routed_at = windlass.now() where e.id = $1 and e.routed_at is null

-- name: publish_queued
-- Records that the message of a batch is in its queue.
update windlass.publish p set queued_at = windlass.now() where p.id = $1 and p.queued_at is null
