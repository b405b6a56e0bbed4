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

-- name: dataset_ages
-- Returns for each dataset with a name the seconds since the newest event of its current version (index event_dataset).
-- Of datasets with the same name in two namespaces the oldest counts.
select s.name, max(extract(epoch from windlass.now() - e.at))::double precision
  from windlass.dataset s
  join windlass.dag g on g.namespace = s.namespace and g.name = s.dag and g.retired_at is null
  join windlass.deployment_pointer p on p.deployment_id = g.active_version and p.dataset_uuid = s.id
 cross join lateral (select o.at from windlass.event o
                      where o.dataset_uuid = s.id and o.dataset_version = p.dataset_version and o.declared
                      order by o.at desc limit 1) e
 where s.name is not null and s.retired_at is null
 group by s.name order by s.name limit $1

-- name: unreceived_batches
-- Returns the number of messages of batches that have been visible for $1 (an interval), so that no sink receives them
-- (index message_buffer).
select count(*) from windlass.message m
 where m.queue like 'buffer.%' and m.visible_at < windlass.now() - $1::interval
