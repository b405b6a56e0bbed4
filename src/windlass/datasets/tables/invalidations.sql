-- part: invalidation_columns
-- The columns of an invalidation (i), in the order of `Invalidation`.
i.id, i.namespace, i.dataset_uuid, i.dataset_version, i.scope, i.key, i.row_filter::text, i.reason, i.source::text,
i.created_at

-- name: insert_invalidations
-- Records invalidations. A repeated one is the same row. Returns those that are new.
insert into windlass.invalidation (id, namespace, dataset_uuid, dataset_version, scope, key, row_filter, reason, source,
                                   created_at)
select u.id, u.namespace, u.dataset_uuid, u.dataset_version, u.scope, u.key, u.row_filter::jsonb, u.reason,
       u.source::jsonb, u.created_at
  from unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
              $10::timestamptz[])
       as u(id, namespace, dataset_uuid, dataset_version, scope, key, row_filter, reason, source, created_at)
on conflict (id) do nothing returning id

-- name: get_invalidations
-- Returns invalidations with the tasks of the jobs that have read the data, those that have processed it, and when all
-- had: one by its id ($2), or one page of those of a dataset ($1), newest first (index invalidation_newest).
select {invalidation_columns()}, i.processed_at, array(select t.task_id from windlass.invalidation_task t
                                                        where t.invalidation_id = i.id order by t.consumer, t.task_id),
       array(select distinct t.consumer from windlass.invalidation_task t
              where t.invalidation_id = i.id and t.processed_at is not null order by 1)
  from windlass.invalidation i
 where case when $2::uuid is null then i.dataset_uuid = $1 else i.id = $2 end and (i.created_at, i.id) < {beyond($3, $4)}
 order by i.created_at desc, i.id desc limit $5

-- name: unrouted_invalidations
-- Locks invalidations of which some jobs may have no task yet (index invalidation_open). Those that another server
-- routes at this moment are skipped.
select {invalidation_columns()} from windlass.invalidation i
 where i.processed_at is null and i.routed_at is null order by i.created_at limit $1 for update skip locked

-- name: insert_invalidation_tasks
-- Records the tasks of an invalidation.
insert into windlass.invalidation_task (invalidation_id, job_id, consumer, task_id)
select $1, j.id, j.dag || '/' || j.name, u.task_id
  from unnest($2::uuid[], $3::uuid[]) as u(job_id, task_id) join windlass.job j on j.id = u.job_id
on conflict do nothing

-- name: mark_invalidation_routed
-- Records that all jobs have their task.
update windlass.invalidation i set routed_at = windlass.now() where i.id = $1 and i.routed_at is null

-- name: settle_invalidations
-- Records which tasks of open invalidations have succeeded, or a replay of them has. A job that left processes nothing
-- any more: its task is forgotten ($1 is why it was cancelled). Returns the number of changes.
with recursive newest as (
    select i.invalidation_id, i.job_id, t.id, t.namespace, t.state, t.cancel ->> 'reason' as reason
      from windlass.invalidation o
      join windlass.invalidation_task i on i.invalidation_id = o.id and i.processed_at is null
      join windlass.task t on t.id = i.task_id and t.finished_at is not null
     where o.processed_at is null
    union all
    select n.invalidation_id, n.job_id, t.id, t.namespace, t.state, t.cancel ->> 'reason'
      from newest n
      join windlass.idempotency k on k.namespace = n.namespace and k.key = 'windlass:replay:' || n.id
      join windlass.task t on t.id = k.task_id
     where n.state in ('failed', 'cancelled', 'skipped')
), done as (
    update windlass.invalidation_task i set processed_at = windlass.now()
      from newest n where i.invalidation_id = n.invalidation_id and i.job_id = n.job_id and n.state = 'succeeded'
    returning 1
), gone as (
    delete from windlass.invalidation_task i using newest n
     where i.invalidation_id = n.invalidation_id and i.job_id = n.job_id and n.state in ('failed', 'cancelled')
       and n.reason = $1
    returning 1
)
select (select count(*) from done) + (select count(*) from gone)

-- name: end_invalidations
-- Ends the invalidations that all jobs have processed. Returns their number.
with ended as (
    update windlass.invalidation i set processed_at = windlass.now()
     where i.processed_at is null and i.routed_at is not null
       and not exists (select from windlass.invalidation_task t
                        where t.invalidation_id = i.id and t.processed_at is null)
    returning 1
)
select count(*) from ended

-- name: output_facts
-- Returns the schema of a dataset, and whether a version of it has a partition.
select s.schema::text, exists (select from windlass.partition p where p.dataset_version = $2 and p.key = $3)
  from (select 1) one left join windlass.dataset s on s.id = $1
