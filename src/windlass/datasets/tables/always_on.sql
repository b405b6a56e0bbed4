-- part: always_on_task
-- The newest task of a job that always runs ($1), as its record names it: id, state, outcome, and why it was cancelled.
select k.task_id, t.state, t.outcome, t.cancel ->> 'reason' as cancel_reason, t.cancel is not null as cancelled
  from windlass.job_task k left join windlass.task t on t.id = k.task_id
 where k.job_id = $1 and k.dedupe_key = 'always_on'

-- name: always_on_jobs
-- Returns the jobs that always run of live deployments (index deployment_job_always_on); with $1 only those of these
-- jobs. Each with its newest task, whether it should rest, since its DAG is paused or its deployment is not active,
-- whether it is held, and whether a task of the same job with another definition is open (index task_job_open).
select distinct on (j.job_id) j.deployment_id, j.job_id, d.paused or d.state <> 'active', i.held,
       exists (select from windlass.job o join windlass.task t on t.job_id = o.id and t.finished_at is null
                where o.namespace = i.namespace and o.dag = i.dag and o.name = i.name and o.id <> i.id),
       n.task_id, n.state, n.outcome, case when n.cancelled then coalesce(n.cancel_reason, '') end
  from ({live_deployments()}) d
  join windlass.deployment_job j on j.deployment_id = d.id and j.definition #>> '{source,kind}' = 'always_on'
  join windlass.job i on i.id = j.job_id
  left join lateral ({always_on_task(j.job_id)}) n on true
 where $1::uuid[] is null or j.job_id = any($1)
 order by j.job_id, d.state = 'active' desc, d.id

-- name: always_on_tasks
-- Returns the newest task of each of these jobs that always runs and has one.
select u.job_id, n.task_id, n.state, n.outcome, case when n.cancelled then coalesce(n.cancel_reason, '') end
  from unnest($1::uuid[]) as u(job_id) cross join lateral ({always_on_task(u.job_id)}) n

-- name: put_always_on_task
-- Records the task of a job that always runs, in place of the one before.
insert into windlass.job_task as k (job_id, dedupe_key, task_id, deployment_id, trigger, created_at)
values ($1, 'always_on', $2, $3, '{"kind": "source", "source": "always_on"}', windlass.now())
on conflict (job_id, dedupe_key) do update
   set task_id = excluded.task_id, deployment_id = excluded.deployment_id, created_at = excluded.created_at
