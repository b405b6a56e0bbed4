-- name: data_ledger
-- Returns the versions of the schema that were applied to the data database. Fails if there is none.
select m.version, m.checksum from windlass_data.migration m order by m.version

-- name: has_data_ledger
-- Returns whether this database has the schema of a data database.
select to_regclass('windlass_data.migration') is not null

-- name: lock_data
-- Takes the lock of a table or a view until the transaction ends: writers, deploys and purges take turns.
select pg_advisory_xact_lock(hashtextextended('windlass_data.' || $1::uuid, 0))

-- name: put_data_version
-- Records that the table of a version exists. One that was purged goes on from its last cursor.
insert into windlass_data.dataset_version as v (id, dataset_uuid) values ($1, $2)
on conflict (id) do update set made_at = excluded.made_at

-- name: sink_commits
-- Returns those of these batches that are in their tables.
select c.publish_id, c.cursor, c.rows_in, c.rows_new from windlass_data.sink_commit c where c.publish_id = any($1::uuid[])

-- name: raise_data_cursor
-- Takes the next $2 cursors of a version for batches of which the newest was published at $3. Returns the last cursor,
-- and when the newest batch that is in the table was published. The caller has locked the version.
with before as (select v.published_at from windlass_data.dataset_version v where v.id = $1)
update windlass_data.dataset_version v
   set cursor = v.cursor + $2, published_at = greatest(v.published_at, $3::timestamptz)
  from before where v.id = $1
returning v.cursor, before.published_at

-- name: insert_sink_commits
-- Records that batches are in their tables.
insert into windlass_data.sink_commit (publish_id, dataset_version, rows_in, rows_new, cursor, published_at)
select u.publish_id, $1, u.rows_in, u.rows_new, u.cursor, u.published_at
  from unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::timestamptz[])
       as u(publish_id, rows_in, rows_new, cursor, published_at)

-- name: get_data_view
-- Returns the version that a view shows.
select v.dataset_version from windlass_data.dataset_view v where v.dataset_uuid = $1

-- name: put_data_view
-- Records which version a view shows.
insert into windlass_data.dataset_view as v (dataset_uuid, dataset_version) values ($1, $2)
on conflict (dataset_uuid) do update set dataset_version = excluded.dataset_version

-- name: delete_data_view
-- Forgets the view on a version that is purged. Returns its dataset.
delete from windlass_data.dataset_view v where v.dataset_version = $1 returning v.dataset_uuid
