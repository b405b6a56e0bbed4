-- name: version_created_at
-- Returns when a version of a dataset was made.
select v.created_at from windlass.dataset_version v where v.id = $2 and v.dataset_uuid = $1

-- name: pointing_deployments
-- Returns the deployments that point to a version, the newest first: number, state, whether it is the previous one of
-- its DAG, and whether the DAG is retired.
select d.number, d.state, d.id is not distinct from g.previous_version, g.retired_at is not null
  from windlass.deployment_pointer p
  join windlass.deployment d on d.id = p.deployment_id
  join windlass.dag g on g.namespace = d.namespace and g.name = d.dag
 where p.dataset_version = $1 order by d.number desc

-- name: carrying_job
-- Returns a job of a live deployment that reads a version until it is carried over to the current one.
select min(j.dag || '/' || j.name) from windlass.job_upgrade u join windlass.job j on j.id = u.job_id
 where u.from_version = $1
   and exists (select from windlass.deployment_job i join windlass.deployment d on d.id = i.deployment_id
                join windlass.dag g on g.namespace = d.namespace and g.name = d.dag and g.retired_at is null
                where i.job_id = j.id and d.state in ('active', 'building', 'ready'))

-- name: mark_purged
-- Purges a version, unless it is.
update windlass.dataset_version v set purged_at = windlass.now(), purging = true
 where v.id = $1 and v.purged_at is null

-- name: purging_versions
-- Returns purged versions whose data is not deleted yet (index dataset_version_purging).
select v.id, v.dataset_uuid, s.namespace, v.table_at is not null
  from windlass.dataset_version v join windlass.dataset s on s.id = v.dataset_uuid
 where v.purging order by v.purged_at limit $1

-- name: lock_purging
-- Locks a purged version whose data is not deleted yet, so that nobody builds it again meanwhile.
select v.id from windlass.dataset_version v where v.id = $1 and v.purging for update skip locked

-- name: jobs_of_version
-- Returns the jobs that have written a version, and those that have read its dataset.
select distinct j.job_id, true from windlass.deployment_pointer p
  join windlass.deployment_job j on j.deployment_id = p.deployment_id
   and j.outputs @> jsonb_build_array(jsonb_build_object('dataset_version', $1::uuid::text))
 where p.dataset_version = $1
union all
select distinct e.job_id, false from windlass.dataset_version v
  join windlass.deployment_edge e on e.dataset_uuid = v.dataset_uuid where v.id = $1

-- name: delete_purged_rows
-- Deletes at most $2 partitions, revisions and cursors of a version each. Returns the number of rows.
with partitions as (
    delete from windlass.partition p
     where p.dataset_version = $1
       and p.key = any(array(select o.key from windlass.partition o where o.dataset_version = $1 limit $2))
    returning 1
), revisions as (
    delete from windlass.partition_revision r
     where r.ctid = any(array(select o.ctid from windlass.partition_revision o where o.dataset_version = $1 limit $2))
    returning 1
), cursors as (
    delete from windlass.cursor_commit c
     where c.ctid = any(array(select o.ctid from windlass.cursor_commit o where o.dataset_version = $1 limit $2))
    returning 1
), highest as (
    delete from windlass.high_water h where h.dataset_version = $1 returning 1
)
select (select count(*) from partitions) + (select count(*) from revisions) + (select count(*) from cursors)
       + (select count(*) from highest)

-- name: forget_reads
-- Forgets at most $4 partitions, tasks and cursors each that writers of a version ($2) were given, and that readers ($3)
-- were given of it. Tasks of sources have no version; they stay. Returns the number of rows.
with given as (
    delete from windlass.consumption c
     where c.ctid = any(array(select o.ctid from windlass.consumption o
                               where o.job_id = any($2::uuid[])
                                  or (o.job_id = any($3::uuid[]) and o.dataset_version = $1) limit $4))
    returning 1
), tasks as (
    delete from windlass.job_task k
     where k.ctid = any(array(select o.ctid from windlass.job_task o
                               where (o.job_id = any($2) and o.dataset_version is not null)
                                  or (o.job_id = any($3) and o.dataset_version = $1) limit $4))
    returning 1
), cursors as (
    delete from windlass.job_cursor c
     where c.job_id = any($2) or (c.job_id = any($3) and c.dataset_version = $1)
    returning 1
)
select (select count(*) from given) + (select count(*) from tasks) + (select count(*) from cursors)

-- name: end_purge
-- Records that all data of a version is deleted, its table too.
update windlass.dataset_version v set purging = false
 where v.id = $1 and v.purging and v.table_at is null returning v.id

-- name: still_purging
-- Returns those of these versions whose data is being deleted. The caller has locked their DAG: no other begins.
select v.id from windlass.dataset_version v where v.id = any($1::uuid[]) and v.purging

-- name: revive_versions
-- Lets versions be built again that were purged. Returns them.
update windlass.dataset_version v set purged_at = null, created_at = windlass.now()
 where v.id = any($1::uuid[]) and v.purged_at is not null and not v.purging returning v.id

-- name: purged_pointers
-- Returns the purged versions that a deployment points to.
select v.id from windlass.deployment_pointer p
  join windlass.dataset_version v on v.id = p.dataset_version and v.purged_at is not null
 where p.deployment_id = $1
