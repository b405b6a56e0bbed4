-- name: find_job
-- Returns a job of a DAG by its name: that of the active deployment, else of one that is built or ready, else the
-- newest. The versions of its outputs that have partitions, which buffered ones have not; whether a live deployment has
-- it, whether its DAG is paused, and the job that is too slow if it is held.
select j.job_id, j.definition::text,
       array(select (o.value ->> 'dataset_version')::uuid from jsonb_array_elements(j.outputs) as o
              where o.value ->> 'write_mode' is distinct from 'buffered'),
       g.retired_at is null and d.state in ('active', 'building', 'ready'), g.paused,
       case when i.held then coalesce(i.held_by, i.dag || '/' || i.name) end
  from windlass.deployment d
  join windlass.deployment_job j on j.deployment_id = d.id and j.name = $3
  join windlass.job i on i.id = j.job_id
  join windlass.dag g on g.namespace = d.namespace and g.name = d.dag
 where d.namespace = $1 and d.dag = $2
 order by d.state = 'active' desc, d.state in ('building', 'ready') desc, d.number desc limit 1

-- name: dataset_labels
-- Returns by which name people know these datasets: that of the dataset, or of the job that writes it.
select s.id, coalesce(s.name, s.job, s.id::text) from windlass.dataset s where s.id = any($1::uuid[])

-- name: has_partition
-- Returns whether one of these versions has this partition.
select exists (select from windlass.partition p where p.dataset_version = any($1::uuid[]) and p.key = $2)

-- name: partition_inputs
-- Returns for each of these inputs of a job the revision of a partition that is committed, the one that the result of
-- the job ($5: versions) was made from, and the one that it was given last.
select u.input_index, p.revision,
       (select max((m.value ->> 'revision')::integer)
          from windlass.partition o
          join windlass.partition_revision r on r.dataset_version = o.dataset_version and r.key = o.key
           and r.revision = o.revision
         cross join lateral jsonb_array_elements(r.inputs) as m
         where o.dataset_version = any($5::uuid[]) and o.key = $2 and (m.value ->> 'index')::integer = u.input_index
           and (m.value ->> 'dataset_version')::uuid = u.dataset_version and m.value ->> 'partition_key' = $2),
       (select max(c.revision) from windlass.consumption c
         where c.job_id = $1 and c.input_index = u.input_index and c.dataset_version = u.dataset_version and c.key = $2)
  from unnest($3::smallint[], $4::uuid[]) as u(input_index, dataset_version)
  left join windlass.partition p on p.dataset_version = u.dataset_version and p.key = $2

-- name: cursor_inputs
-- Returns for each of these inputs of a job the cursor that was reported, the one up to which the job has read, and the
-- highest one that it has a task for.
select u.input_index, h.cursor, case when c.cursor < h.cursor then c.cursor when c.cursor is not null then h.cursor end,
       (select max(k.cursor) from windlass.job_task k where k.job_id = $1 and k.dataset_version = u.dataset_version)
  from unnest($2::smallint[], $3::uuid[]) as u(input_index, dataset_version)
  left join windlass.high_water h on h.dataset_version = u.dataset_version
  left join windlass.job_cursor c on c.job_id = $1 and c.dataset_version = u.dataset_version

-- part: why_task
-- What `why` says of a task (t).
t.id, case when t.finished_at is not null then case when t.cancel is null then t.state else 'cancelled' end
           when t.state = 'running' then 'running' else 'queued' end,
t.attempt, coalesce((t.policy ->> 'max_attempts')::integer, 0),
coalesce(nullif(t.error ->> 'message', ''), t.error ->> 'reason', '')

-- name: task_state
-- Returns what is known of one task.
select {why_task()} from windlass.task t where t.id = $1

-- name: newest_task_state
-- Returns the task of these jobs that runs, else one that waits (index task_job_open), else the newest (index task_job).
select q.* from (
    (select {why_task()} from windlass.task t where t.job_id = any($1::uuid[]) and t.finished_at is null
      order by t.state = 'running' desc, t.created_at, t.id limit 1)
    union all
    (select {why_task()} from windlass.task t where t.job_id = any($1::uuid[]) and t.finished_at is not null
      order by t.created_at desc, t.id desc limit 1)
) q limit 1
