-- name: stuck_builds
-- Returns versions that failed to build, and those that build though none of their tasks has ended for $1 (an
-- interval): namespace, DAG, number and state. Index deployment_open.
select d.namespace, d.dag, d.number, d.state
  from windlass.deployment d
 where d.state = 'failed'
    or (d.state = 'building' and d.created_at < windlass.now() - $1::interval
        and not exists (select from windlass.deployment_job j join windlass.task t on t.job_id = j.job_id
                         where j.deployment_id = d.id and t.finished_at > windlass.now() - $1::interval))
 order by d.created_at
