-- part: readable
-- Whether a caller may read a dataset: an admin ($1); any caller if its roles are `*`; one with a group ($3) that they
-- name; an operator ($2) if they name none.
($1::boolean or '*' = any(s.read_roles) or s.read_roles && $3::text[] or ($2::boolean and s.read_roles = '{}'))

-- part: deployment_columns
-- The columns of a deployment, in the order of `DeploymentRow`.
d.id, d.namespace, d.dag, d.number, d.state, d.auto_cutover, d.plan::text, d.plan_hash, d.created_by, d.created_at,
d.ready_at, d.activated_at, d.ended_at, d.reason, d.nonces::text

-- name: insert_dag
-- Adds a DAG, unless it exists.
insert into windlass.dag (namespace, name, created_at) values ($1, $2, windlass.now()) on conflict do nothing

-- name: lock_dag
-- Locks a DAG: deploys and cutovers of one DAG follow each other.
select g.namespace, g.name, g.active_version, g.previous_version, g.paused, g.retired_at
  from windlass.dag g where g.namespace = $1 and g.name = $2 for update

-- name: get_dags
-- Returns one page of DAGs by name, each with the number of its jobs and the names of its datasets. A name ($2)
-- returns that DAG alone.
select g.namespace, g.name, g.active_version, g.previous_version, g.paused, g.retired_at,
       (select count(*) from windlass.deployment_job j where j.deployment_id = g.active_version),
       array(select s.name from windlass.dataset s
              where s.namespace = g.namespace and s.dag = g.name and s.name is not null and s.retired_at is null
              order by s.name)
  from windlass.dag g
 where g.namespace = $1 and ($2::text is null or g.name = $2) and ($3::text is null or g.name > $3)
 order by g.name limit $4

-- name: update_dag
-- Writes what a deploy, a cutover or a person changes.
update windlass.dag g
   set active_version = $3, previous_version = $4, paused = $5, retired_at = $6
 where g.namespace = $1 and g.name = $2

-- name: next_deployment_number
-- Returns the number of the next deployment of a DAG. The caller has locked the DAG.
select coalesce(max(d.number), 0) + 1 from windlass.deployment d where d.namespace = $1 and d.dag = $2

-- name: insert_deployment
-- Adds a deployment.
insert into windlass.deployment (id, namespace, dag, number, yaml, yaml_sha256, nonces, state, auto_cutover, plan, plan_hash,
                                 created_by, created_at)
values ($1, $2, $3, $4, $5, $6, $7::text::jsonb, 'building', $8, $9::text::jsonb, $10, $11, windlass.now())

-- name: find_deployment
-- Returns the deployment of this file.
select {deployment_columns()} from windlass.deployment d
 where d.namespace = $1 and d.dag = $2 and d.yaml_sha256 = $3 and d.nonces = $4::text::jsonb

-- name: get_deployments
-- Returns one page of the deployments of a DAG, newest first; or those with these ids ($5).
select {deployment_columns()} from windlass.deployment d
 where d.namespace = $1 and d.dag = $2 and ($3::integer is null or d.number < $3)
   and ($5::uuid[] is null or d.id = any($5))
 order by d.number desc limit $4

-- name: get_deployment_by_number
-- Returns one deployment of a DAG by its number.
select {deployment_columns()} from windlass.deployment d where d.namespace = $1 and d.dag = $2 and d.number = $3

-- name: open_deployments
-- Returns the deployments that have to be brought forward (index deployment_open). A failed one builds again when a
-- person retries its task.
select {deployment_columns()} from windlass.deployment d
 where d.state in ('building', 'ready', 'failed') order by d.created_at limit $1

-- name: deployment_yaml
-- Returns the file of a deployment.
select d.yaml from windlass.deployment d where d.id = $1

-- name: update_deployment
-- Moves a deployment to another state, with the times that follow from it.
update windlass.deployment d
   set state = $2, reason = $3, auto_cutover = coalesce($4, d.auto_cutover),
       ready_at = case when $2 = 'ready' then windlass.now() when $2 = 'building' then null else d.ready_at end,
       activated_at = case when $2 = 'active' then windlass.now() else d.activated_at end,
       ended_at = case when $2 in ('superseded', 'rolled_back', 'abandoned') then windlass.now() end
 where d.id = $1

-- name: insert_deployment_jobs
-- Adds the jobs of a deployment.
insert into windlass.deployment_job (deployment_id, name, job_id, fingerprint, definition, queue, inputs, outputs)
select $1, u.name, u.job_id, u.fingerprint, u.definition::jsonb, u.queue, u.inputs::jsonb, u.outputs::jsonb
  from unnest($2::text[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[])
       as u(name, job_id, fingerprint, definition, queue, inputs, outputs)

-- name: insert_jobs
-- Adds jobs, unless they exist. A new job is behind: what is committed already is owed to it.
insert into windlass.job as j (id, namespace, dag, name, fingerprint, behind, created_at)
select u.id, $1, $2, u.name, u.fingerprint, true, windlass.now()
  from unnest($3::uuid[], $4::text[], $5::text[]) as u(id, name, fingerprint) order by u.id
on conflict do nothing

-- name: insert_deployment_edges
-- Adds the inputs of the jobs of a deployment.
insert into windlass.deployment_edge (deployment_id, job_id, input_index, dataset_uuid, dataset_version, condition,
                                      trigger, by_partition, continues, coalesces, needs_all)
select $1, u.* from unnest($2::uuid[], $3::smallint[], $4::uuid[], $5::uuid[], $6::text[], $7::boolean[], $8::boolean[],
                           $9::boolean[], $10::boolean[], $11::boolean[]) as u

-- name: insert_deployment_pointers
-- Adds the versions that a deployment writes.
insert into windlass.deployment_pointer (deployment_id, dataset_uuid, dataset_version)
select $1, u.* from unnest($2::uuid[], $3::uuid[]) as u

-- name: deployment_jobs
-- Returns the jobs of a deployment, by name.
select j.name, j.job_id, j.fingerprint, j.definition::text, j.queue, j.inputs::text, j.outputs::text
  from windlass.deployment_job j where j.deployment_id = $1 order by j.name

-- name: put_datasets
-- Adds datasets, or changes what may change without a new version.
insert into windlass.dataset as s (id, namespace, dag, job, output_index, name, storage, write_mode, read_roles, description,
                                   schema, max_age_s, created_at)
select u.id, $1, $2, u.job, u.output_index, u.name, u.storage, u.write_mode,
       case when u.read_roles <> '' then string_to_array(u.read_roles, chr(31)) else '{}' end, u.description,
       u.schema::jsonb, u.max_age_s, windlass.now()
  from unnest($3::uuid[], $4::text[], $5::smallint[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
              $11::text[], $12::double precision[])
       as u(id, job, output_index, name, storage, write_mode, read_roles, description, schema, max_age_s)
on conflict (id) do update
   set name = excluded.name, storage = excluded.storage, write_mode = excluded.write_mode,
       read_roles = excluded.read_roles, description = excluded.description, schema = excluded.schema,
       max_age_s = excluded.max_age_s, retired_at = null

-- name: retire_datasets
-- Takes the names of the datasets of a DAG that its active deployment no longer has.
update windlass.dataset s set retired_at = windlass.now()
 where s.namespace = $1 and s.dag = $2 and s.id <> all($3::uuid[]) and s.retired_at is null

-- name: insert_dataset_versions
-- Adds versions of datasets, unless they exist. A version has the schema of its dataset for ever: another schema is
-- another version.
insert into windlass.dataset_version (id, dataset_uuid, fingerprint, schema, location, created_at)
select u.id, u.dataset_uuid, u.fingerprint, u.schema::jsonb, u.location, windlass.now()
  from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[]) as u(id, dataset_uuid, fingerprint, location, schema)
on conflict do nothing

-- name: known_versions
-- Returns those of these versions that exist and were not purged.
select v.id from windlass.dataset_version v where v.id = any($1::uuid[]) and v.purged_at is null

-- name: named_datasets
-- Returns the datasets with a name in a namespace: who makes them, and whether a caller ($2 to $4) may read them. The
-- partitions are those that the job declares which writes it, as the newest deployment that has it defines them.
select s.id, s.name, s.dag, s.storage, s.schema::text, {readable($2, $3, $4)}, j.definition::text
  from windlass.dataset s
  join windlass.dag g on g.namespace = s.namespace and g.name = s.dag and g.retired_at is null
  left join lateral (select i.definition from windlass.deployment_job i join windlass.deployment d on d.id = i.deployment_id
                      where i.name = s.job and d.namespace = s.namespace and d.dag = s.dag
                      order by d.id = g.active_version desc, d.number desc limit 1) j on true
 where s.namespace = $1 and s.name is not null and s.retired_at is null

-- name: outside_edges
-- Returns the edges of the active deployments of other DAGs in a namespace: which job reads which dataset.
select d.dag, j.name, e.dataset_uuid, e.condition, e.trigger, e.continues
  from windlass.dag g
  join windlass.deployment d on d.id = g.active_version
  join windlass.deployment_edge e on e.deployment_id = d.id
  join windlass.deployment_job j on j.deployment_id = d.id and j.job_id = e.job_id
 where g.namespace = $1 and g.name <> $2 and g.retired_at is null
 order by d.dag, j.name, e.input_index

-- name: outside_writes
-- Returns the datasets that the jobs of other active deployments write.
select d.dag, j.name, (o.value ->> 'dataset_uuid')::uuid
  from windlass.dag g
  join windlass.deployment d on d.id = g.active_version
  join windlass.deployment_job j on j.deployment_id = d.id
 cross join lateral jsonb_array_elements(j.outputs) as o
 where g.namespace = $1 and g.name <> $2 and g.retired_at is null

-- name: webhooks
-- Returns the paths of webhooks in a namespace and the DAG that has each.
select w.path, d.dag from windlass.webhook w join windlass.deployment d on d.id = w.deployment_id where w.namespace = $1

-- name: delete_webhooks
-- Removes the webhooks of a DAG.
delete from windlass.webhook w
 using windlass.deployment d where d.id = w.deployment_id and d.namespace = $1 and d.dag = $2

-- name: insert_webhooks
-- Adds webhooks of a deployment. A path that another DAG has is not added.
insert into windlass.webhook (namespace, path, deployment_id, job_id)
select $1, u.path, $2, u.job_id from unnest($3::text[], $4::uuid[]) as u(path, job_id) on conflict do nothing
returning path

-- name: mark_behind
-- Marks these jobs as behind. The caller has locked them: a job that a reconcile is about to clear still looks behind.
update windlass.job j set behind = true where j.id = any($1::uuid[]) and not j.behind

-- name: insert_upgrades
-- Notes which versions the inputs of jobs have read that continue, when a deployment ($1) is replaced by another ($2). An
-- input that has not been carried over yet keeps the version that it reads. Returns the jobs.
insert into windlass.job_upgrade as u (job_id, input_index, dataset_uuid, from_index, from_version, at)
select distinct on (o.job_id, coalesce(n.input_index, o.input_index))
       o.job_id, coalesce(n.input_index, o.input_index), o.dataset_uuid, o.input_index, o.dataset_version, windlass.now()
  from windlass.deployment_edge o
  left join lateral (select i.input_index, i.dataset_version from windlass.deployment_edge i
                      where i.deployment_id = $2 and i.job_id = o.job_id and i.dataset_uuid = o.dataset_uuid
                      order by i.input_index <> o.input_index, i.input_index limit 1) n on true
 where o.deployment_id = $1 and o.continues and o.dataset_version is not null
   and (n.input_index, n.dataset_version) is distinct from (o.input_index, o.dataset_version)
 order by o.job_id, coalesce(n.input_index, o.input_index), n.input_index is distinct from o.input_index
{keep_upgrade()}
returning u.job_id

-- name: insert_reader_upgrades
-- The same for jobs of any deployment that read datasets of another DAG ($1) whose current version was another ($2).
insert into windlass.job_upgrade as u (job_id, input_index, dataset_uuid, from_index, from_version, at)
select distinct on (e.job_id, e.input_index)
       e.job_id, e.input_index, e.dataset_uuid, e.input_index, c.dataset_version, windlass.now()
  from unnest($1::uuid[], $2::uuid[]) as c(dataset_uuid, dataset_version)
  join windlass.deployment_edge e on e.dataset_uuid = c.dataset_uuid and e.dataset_version is null and e.continues
 order by e.job_id, e.input_index
{keep_upgrade()}
returning u.job_id

-- part: keep_upgrade
-- A job that has not been carried over to the version before reads what it read then.
on conflict (job_id, input_index) do update
   set dataset_uuid = excluded.dataset_uuid, mark = '', at = excluded.at,
       from_index = case when u.dataset_uuid = excluded.dataset_uuid then u.from_index else excluded.from_index end,
       from_version = case when u.dataset_uuid = excluded.dataset_uuid then u.from_version else excluded.from_version end

-- name: changed_readers
-- Returns the jobs that two deployments share and whose inputs are not the same in both.
select distinct n.job_id from windlass.deployment_edge n
 where n.deployment_id = $2 and n.trigger
   and exists (select from windlass.deployment_job j where j.deployment_id = $1 and j.job_id = n.job_id)
   and not exists (select from windlass.deployment_edge o
                    where o.deployment_id = $1 and o.job_id = n.job_id and o.input_index = n.input_index and o.trigger
                      and o.dataset_uuid = n.dataset_uuid and o.dataset_version is not distinct from n.dataset_version)

-- name: mark_readers_behind
-- Marks the jobs of live deployments of other DAGs that read these datasets as behind: their version has changed.
update windlass.job j set behind = true
  from windlass.deployment_edge e join windlass.deployment d on d.id = e.deployment_id
 where e.dataset_uuid = any($1::uuid[]) and e.dataset_version is null and d.state in ('active', 'building', 'ready')
   and j.id = e.job_id

-- name: build_progress
-- Returns for each of these jobs: the number of its tasks, of those that have ended, and of those that failed for good
-- and were not replayed; whether more may be owed, since it is behind, an event of an input is not routed yet (index
-- event_unrouted), or a batch that it published is not in its table yet (index publish_unsunk) and is no dead letter;
-- the newest task that failed, and whether it was cancelled. A task that a person cancels counts as failed if data made
-- it, and one that was cancelled because its job left ($2) does not: its data is owed again. All in one snapshot: an
-- event that is routed makes its tasks at once.
select j.id, count(t.id), count(t.id) filter (where t.finished_at is not null), count(t.id) filter (where t.broken),
       j.behind or exists (select from windlass.event e join windlass.deployment_edge i on i.dataset_uuid = e.dataset_uuid
                            where e.routed_at is null and e.declared and i.job_id = j.id and i.trigger)
       or exists (select from windlass.publish u join windlass.task o on o.id = u.task_id
                   where u.buffered and u.sunk_at is null and u.problem is null and o.job_id = j.id),
       (array_agg(t.id order by t.created_at desc) filter (where t.broken))[1],
       coalesce((array_agg(t.cancelled order by t.created_at desc) filter (where t.broken))[1], false)
  from windlass.job j
  left join lateral (
       select o.id, o.finished_at, o.created_at, o.cancel is not null or o.state = 'cancelled' as cancelled,
              (case when o.state = 'failed' and o.cancel is null then true
                    when o.state in ('failed', 'cancelled') and o.cancel ->> 'reason' is distinct from $2
                    then convert_from(o.wire, 'UTF8')::jsonb #>> '{trigger,kind}' in ('event', 'build')
                    else false end)
              and not exists (select from (select r.replay_of from windlass.task r
                                            where r.job_id = o.job_id offset 0) r
                               where r.replay_of = o.id) as broken
         from windlass.task o where o.job_id = j.id offset 0) t on true
 where j.id = any($1::uuid[]) group by j.id, j.behind

-- name: open_job_tasks
-- Returns tasks of these jobs that have not ended (index task_job_open).
select t.id from windlass.task t where t.job_id = any($1::uuid[]) and t.finished_at is null order by t.id limit $2

-- name: deployment_pointers
-- Returns the version of each dataset that a deployment writes.
select p.dataset_uuid, p.dataset_version from windlass.deployment_pointer p where p.deployment_id = $1

-- name: live_deployments_of
-- Returns the deployments of a DAG that routing feeds.
select {deployment_columns()} from windlass.deployment d
 where d.namespace = $1 and d.dag = $2 and d.state in ('active', 'building', 'ready') order by d.number

-- name: current_versions
-- Returns the current version of each of these datasets.
select s.id, p.dataset_version
  from windlass.dataset s
  join windlass.dag g on g.namespace = s.namespace and g.name = s.dag
  join windlass.deployment_pointer p on p.deployment_id = g.active_version and p.dataset_uuid = s.id
 where s.id = any($1::uuid[])

-- name: count_partitions
-- Returns the number of committed partitions of each of these versions.
select p.dataset_version, count(*) from windlass.partition p where p.dataset_version = any($1::uuid[]) group by 1
