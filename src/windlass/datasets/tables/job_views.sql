-- name: job_ids
-- Returns the ids of a job of a DAG: it has one for each of its fingerprints.
select distinct j.job_id
  from windlass.deployment d join windlass.deployment_job j on j.deployment_id = d.id and j.name = $3
 where d.namespace = $1 and d.dag = $2

-- name: list_job_tasks
-- Returns one page of the tasks of jobs, newest first (index task_job). Replays are there too, which have no key, and
-- tasks of schedules, whose key is that of their submission. Bodies and payloads, which can be large, are left out of the
-- trigger.
select t.id, t.state, t.attempt, (w.value ->> 'dag_version')::uuid,
       coalesce(k.dedupe_key, case when t.schedule_id is not null then t.idempotency_key end),
       ((w.value -> 'trigger') #- '{webhook,body}' #- '{payload}')::text, (w.value -> 'inputs')::text, t.created_at
  from windlass.task t
  left join windlass.job_task k on k.task_id = t.id
 cross join lateral (select convert_from(t.wire, 'UTF8')::jsonb as value) w
 where t.job_id = any($1::uuid[]) and (t.created_at, t.id) < {beyond($2, $3)}
 order by t.created_at desc, t.id desc limit $4
