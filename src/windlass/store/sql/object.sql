-- name: blob_store
-- Where the objects of this database are.
select b.id, b.url from windlass.blob_store b

-- name: choose_blob_store
-- The first who keeps an object decides.
insert into windlass.blob_store (only_one, id, url, created_at) values (true, $1, $2, windlass.now())
on conflict (only_one) do nothing

-- name: move_blob_store
-- The same store under another name.
update windlass.blob_store b set url = $1

-- name: insert_deletion
-- An object will be deleted after $6 seconds. Said again, it is put off, or brought forward; that it was begun before is
-- not forgotten.
insert into windlass.outbox as o (id, kind, namespace, task_id, attempt, body, available_at, created_at)
values ($1, $2, $3, $4, 0, $5::text::jsonb, windlass.now() + $6::double precision * interval '1 second', windlass.now())
on conflict (id) do update
   set available_at = excluded.available_at, tries = least(o.tries, 1), dead_at = null, error = null,
       created_at = excluded.created_at

-- name: lock_deletion
-- Whether a deletion is still to happen, and how often it was begun. Waits for who carries it out right now.
select o.tries from windlass.outbox o where o.id = $1 for update

-- name: hasten_deletion
-- Now rather than later.
update windlass.outbox o set available_at = windlass.now() where o.id = $1 and o.tries = 0

-- name: referred_to
-- Whether a task, or a step that it recorded, refers to an object (primary keys).
select exists (select from windlass.task t where t.id = $1 and (t.payload = $2 or t.result = $2))
    or exists (select from windlass.step s where s.task_id = $1 and s.result = $2)

-- name: task_namespace
-- Whose a task is.
select t.namespace from windlass.task t where t.id = $1
