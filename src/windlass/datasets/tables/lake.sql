-- name: get_lake
-- Returns which store is the lake of this database.
select l.id, l.url from windlass.lake l

-- name: choose_lake
-- Records the lake. The first process that uses it decides.
insert into windlass.lake (only_one, id, url, created_at, next_at) values (true, $1, $2, windlass.now(), windlass.now())
on conflict (only_one) do nothing

-- name: move_lake
-- Changes the URL of the lake, which stays the same store.
update windlass.lake l set url = $1

-- name: begin_clean_up
-- Takes the turn to clean up for $1 seconds, if it is due. Returns where to go on, and what this walk has found so far.
update windlass.lake l set next_at = windlass.now() + $1::double precision * interval '1 second'
 where l.next_at <= windlass.now()
returning l.place, l.walk_bytes

-- name: lake_is_missing
-- Returns whether there are datasets for a lake, and no lake was used yet.
select not exists (select from windlass.lake) and exists (select from windlass.dataset s where s.storage = 's3')

-- name: end_clean_up
-- Records how far a clean-up came that began at a place ($1), unless another server went on from there. At the end of a
-- walk ($4) its sum is the amount of data that is not committed.
update windlass.lake l
   set place = $2, walk_bytes = case when $4 then 0 else $3 end,
       staging_bytes = case when $4 then $3 else l.staging_bytes end,
       next_at = windlass.now() + $5::double precision * interval '1 second'
 where l.place = $1

-- name: staging_bytes
-- Returns how many bytes the last walk found in folders that are not committed.
select l.staging_bytes from windlass.lake l

-- name: recorded_staging
-- Returns what is known of staging folders, in one snapshot: the namespace of the version, the task, whether it has
-- ended, and whether a commit names the folder or its attempt (indexes partition_revision_task, cursor_commit_task).
select u.place, s.namespace, t.namespace, t.attempt, t.finished_at is not null,
       exists (select from windlass.partition_revision r
                where r.task_id = u.task_id
                  and (r.dataset_version = u.dataset_version and r.attempt = u.attempt
                       or position('/' || u.key || '/' in r.location) > 0))
       or exists (select from windlass.cursor_commit c
                   where c.task_id = u.task_id
                     and (c.dataset_version = u.dataset_version and c.attempt = u.attempt
                          or position('/' || u.key || '/' in c.location) > 0))
  from unnest($1::integer[], $2::text[], $3::uuid[], $4::uuid[], $5::uuid[], $6::integer[])
       as u(place, key, dataset_uuid, dataset_version, task_id, attempt)
  left join windlass.dataset_version v on v.id = u.dataset_version and v.dataset_uuid = u.dataset_uuid
  left join windlass.dataset s on s.id = v.dataset_uuid
  left join windlass.task t on t.id = u.task_id

-- name: lock_staging_task
-- Locks a task, so that it does not go on. Returns whether it exists and whether it is locked.
with locked as materialized (select t.id from windlass.task t where t.id = $1 for update skip locked)
select exists (select from windlass.task t where t.id = $1), exists (select from locked)

-- name: lock_writers
-- Locks the jobs that write a version, so that none of them makes a task. Returns whether all are locked.
with writers as materialized (
    select distinct j.job_id as id from windlass.deployment_pointer p
      join windlass.deployment_job j on j.deployment_id = p.deployment_id
       and j.outputs @> jsonb_build_array(jsonb_build_object('dataset_version', $1::uuid::text))
     where p.dataset_version = $1
), locked as materialized (
    select j.id from windlass.job j where j.id in (select w.id from writers w) order by j.id for update skip locked
)
select (select count(*) from locked) = (select count(*) from writers)
