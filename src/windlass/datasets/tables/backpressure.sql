-- name: job_pressure
-- Returns the jobs of live deployments, each with its definition in the active one if that has it, whether it is held
-- and by which job, the number of its tasks that wait (index task_job_open), and for how long the oldest waits. Tasks of
-- backfills that wait for an input do not count.
select distinct on (i.id) i.id, i.namespace, i.dag, i.name, j.definition::text, i.held, i.held_by,
       w.depth, extract(epoch from windlass.now() - w.oldest)::double precision, i.behind
  from ({live_deployments()}) d
  join windlass.deployment_job j on j.deployment_id = d.id
  join windlass.job i on i.id = j.job_id
 cross join lateral (select count(*) as depth, min(t.created_at) as oldest from windlass.task t
                      where t.job_id = i.id and t.finished_at is null and t.state <> 'running'
                        and not exists (select from windlass.backfill_task b where b.task_id = t.id and b.waiting)) w
 where $1::uuid[] is null or i.id = any($1)
 order by i.id, d.state = 'active' desc, d.id

-- name: has_limits
-- Returns whether a job of a live deployment has a limit on its tasks that wait, or is held.
select exists (select from ({live_deployments()}) d join windlass.deployment_job j on j.deployment_id = d.id
                where j.definition -> 'limits' ?| array['max_queue_depth', 'max_queue_age_s'])
    or exists (select from windlass.job i where i.held)

-- name: job_triggers
-- Returns which job triggers which, in live deployments: pairs of a job and one that reads what it writes now.
select distinct w.job_id, e.job_id
  from ({live_deployments()}) d
  join windlass.deployment_edge e on e.deployment_id = d.id and e.trigger
  left join windlass.dataset s on s.id = e.dataset_uuid and e.dataset_version is null
  left join windlass.dag o on o.namespace = s.namespace and o.name = s.dag
  left join windlass.deployment_pointer c on c.deployment_id = o.active_version and c.dataset_uuid = e.dataset_uuid
  join windlass.deployment_pointer p on p.dataset_version = coalesce(e.dataset_version, c.dataset_version)
  join ({live_deployments()}) l on l.id = p.deployment_id
  join windlass.deployment_job w on w.deployment_id = l.id
   and w.outputs @> jsonb_build_array(jsonb_build_object('dataset_version', p.dataset_version::text))

-- name: hold_jobs
-- Holds jobs, each by the name of the job that is too slow.
update windlass.job j set held = true, held_by = u.name
  from unnest($1::uuid[], $2::text[]) as u(id, name) where j.id = u.id and j.held_by is distinct from u.name

-- name: release_jobs
-- Releases jobs. What they were owed meanwhile is made by the reconcile loop.
update windlass.job j set held = false, held_by = null, behind = true where j.id = any($1::uuid[]) and j.held

-- name: release_left_jobs
-- Releases jobs that no live deployment has.
with gone as materialized (
    select j.id from windlass.job j
     where j.held and not exists (select from windlass.deployment_job i
                                    join ({live_deployments()}) d on d.id = i.deployment_id where i.job_id = j.id)
     order by j.id for update
)
update windlass.job j set held = false, held_by = null from gone g where j.id = g.id

-- name: is_task_of_held_job
-- Returns whether the job of a task is held.
select exists (select from windlass.task t join windlass.job j on j.id = t.job_id where t.id = $1 and j.held)
