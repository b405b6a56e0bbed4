-- name: blob_store
-- Returns which blob store holds the objects of this database.
select b.id, b.url from windlass.blob_store b

-- name: choose_blob_store
-- Records the blob store. The first process that stores an object decides.
insert into windlass.blob_store (only_one, id, url, created_at) values (true, $1, $2, windlass.now())
on conflict (only_one) do nothing

-- name: move_blob_store
-- Changes the URL of the blob store, which stays the same store.
update windlass.blob_store b set url = $1

-- name: insert_deletion
-- Schedules the deletion of an object in $6 seconds. Called again, it changes the time, but keeps the fact that the
-- deletion was begun.
insert into windlass.outbox as o (id, kind, namespace, task_id, attempt, body, available_at, created_at)
values ($1, $2, $3, $4, 0, $5::text::jsonb, windlass.now() + $6::double precision * interval '1 second', windlass.now())
on conflict (id) do update
   set available_at = excluded.available_at, tries = least(o.tries, 1), dead_at = null, error = null,
       created_at = excluded.created_at

-- name: lock_deletion
-- Locks a pending deletion and returns how often it was begun. Waits while another process carries it out.
select o.tries from windlass.outbox o where o.id = $1 for update

-- name: hasten_deletion
-- Makes a deletion due now, unless it was begun.
update windlass.outbox o set available_at = windlass.now() where o.id = $1 and o.tries = 0

-- name: referred_to
-- Returns whether a task, or a step that it recorded, refers to an object (primary keys).
select exists (select from windlass.task t where t.id = $1 and (t.payload = $2 or t.result = $2))
    or exists (select from windlass.step s where s.task_id = $1 and s.result = $2)
