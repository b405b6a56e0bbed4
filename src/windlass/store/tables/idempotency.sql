-- name: insert_idempotency_keys
-- Takes the keys that are free and returns them. Inserts in key order, so that two batches with the same keys cannot
-- deadlock.
insert into windlass.idempotency (namespace, key, task_id)
select * from (select * from unnest($1::text[], $2::text[], $3::uuid[]) as u(namespace, key, task_id)
                order by u.namespace, u.key) u
on conflict (namespace, key) do nothing
returning namespace, key

-- name: find_idempotency_keys
-- Returns what was submitted under these keys.
select i.namespace, i.key, t.id, t.queue, t.kind, t.payload
  from unnest($1::text[], $2::text[]) as u(namespace, key)
  join windlass.idempotency i on i.namespace = u.namespace and i.key = u.key
  join windlass.task t on t.id = i.task_id
