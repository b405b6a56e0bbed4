-- part: dataset_label
-- By which datasets are listed: those with a name first.
coalesce(s.name, '~' || s.dag || '/' || coalesce(s.job, '') || '/' || coalesce(s.output_index::text, s.id::text))

-- part: partitions_after
-- Partitions of a version ($1) after a place ($2, $3), at most so many ($4), by their first number, then by key (index
-- partition_range). Those without a first number come last.
select q.* from (
    (select f.* from windlass.partition f
      where f.dataset_version = $1 and f.first is not null and (f.first, f.key) > ($2::bigint, $3::text)
      order by f.first, f.key limit $4)
    union all
    (select f.* from windlass.partition f
      where f.dataset_version = $1 and f.first is null and f.key > case when $2::bigint is null then $3::text else '' end
      order by f.key limit $4)
) q order by q.first, q.key limit $4

-- part: with_revision
-- The current revision of a partition (p), and whether a newer revision of one of its inputs exists than the one that it
-- was made from. The limits keep these lookups of single rows: a page is short, whatever the planner expects.
cross join lateral (select m.* from windlass.partition_revision m
                     where m.dataset_version = p.dataset_version and m.key = p.key and m.revision = p.revision limit 1) r
 left join lateral (
      select true as found
        from jsonb_to_recordset(r.inputs) as i(dataset_version uuid, partition_key text, revision integer)
       cross join lateral (select o.revision from windlass.partition o
                            where o.dataset_version = i.dataset_version and o.key = i.partition_key limit 1) n
       where n.revision > i.revision limit 1) stale on true

-- part: partition_columns
-- A partition (p) with what `with_revision` adds.
p.key, p.first, p.last, p.revision, r.rows, r.bytes, r.location, r.task_id, r.attempt, r.deployment_id, r.committed_at, r.inputs::text,
r.trace_id, stale.found is not null

-- name: get_datasets
-- Returns one page of the datasets of a namespace that a caller may read ($3 to $5), by name, after a label ($6); or
-- one of them by its name ($2) or id ($1), in any namespace if none is given ($8).
select s.id, s.namespace, s.dag, s.job, s.output_index, s.name, s.storage, s.write_mode, s.read_roles, s.description,
       s.schema::text, s.retired_at is not null, p.dataset_version, v.location, h.cursor,
       case when s.max_age_s is not null
            then coalesce((select e.at from windlass.event e
                            where e.dataset_uuid = s.id and e.dataset_version = p.dataset_version and e.declared
                            order by e.at desc limit 1)
                          >= windlass.now() - s.max_age_s * interval '1 second', false) end,
       {dataset_label()}
  from windlass.dataset s
  join windlass.dag g on g.namespace = s.namespace and g.name = s.dag
  left join windlass.deployment_pointer p on p.deployment_id = g.active_version and p.dataset_uuid = s.id
  left join windlass.dataset_version v on v.id = p.dataset_version
  left join windlass.high_water h on h.dataset_version = p.dataset_version
 where ($8::text is null or s.namespace = $8) and ($1::uuid is null or s.id = $1)
   and ($2::text is null or s.name = $2) and ($1::uuid is not null or s.retired_at is null)
   and {readable($3, $4, $5)} and ($6::text is null or {dataset_label()} > $6)
 order by {dataset_label()} limit $7

-- name: dataset_versions
-- Returns the versions of datasets: the current one first, then those of live deployments, then the newest, at most so
-- many ($3) of each. With $2, also the rows and bytes of those that have at most so many partitions ($4).
select v.dataset_uuid, v.id, v.state, v.created_at, t.rows, t.bytes
  from unnest($1::uuid[]) as u(dataset_uuid)
 cross join lateral (
       select w.dataset_uuid, w.id, w.created_at, case w.rank when 0 then 'purged' when 1 then 'current' when 2 then 'live'
                                                  else 'old' end as state, w.rank
         from (select x.*, case when x.purged_at is not null then 0
                                when exists (select from windlass.deployment_pointer p
                                               join windlass.deployment d on d.id = p.deployment_id
                                               join windlass.dag g on g.active_version = d.id
                                                and g.namespace = d.namespace and g.name = d.dag
                                              where p.dataset_version = x.id) then 1
                                when exists (select from windlass.deployment_pointer p
                                               join windlass.deployment d on d.id = p.deployment_id
                                               join windlass.dag g on g.namespace = d.namespace and g.name = d.dag
                                              where p.dataset_version = x.id and g.retired_at is null
                                                and d.state in ('active', 'building', 'ready')) then 2
                                else 3 end as rank
                 from windlass.dataset_version x where x.dataset_uuid = u.dataset_uuid) w
        order by w.rank = 1 desc, w.rank = 2 desc, w.created_at desc, w.id limit $3) v
  left join lateral (
       select case when count(*) <= $4 then sum(o.rows)::bigint end as rows,
              case when count(*) <= $4 then sum(o.bytes)::bigint end as bytes
         from (select r.rows, r.bytes
                 from windlass.partition p
                 join windlass.partition_revision r on r.dataset_version = p.dataset_version and r.key = p.key
                  and r.revision = p.revision
                where p.dataset_version = v.id limit $4 + 1) o
        where $2::boolean) t on true
 order by v.dataset_uuid, v.rank = 1 desc, v.rank = 2 desc, v.created_at desc, v.id

-- name: version_jobs
-- Returns the jobs of live deployments that write a version of a dataset.
select distinct on (j.job_id) j.job_id, j.definition::text
  from windlass.deployment_pointer p
  join windlass.deployment d on d.id = p.deployment_id and d.state in ('active', 'building', 'ready')
  join windlass.dag g on g.namespace = d.namespace and g.name = d.dag and g.retired_at is null
  join windlass.deployment_job j on j.deployment_id = d.id
 where p.dataset_version = $1
   and j.outputs @> jsonb_build_array(jsonb_build_object('dataset_version', $1::uuid::text))
 order by j.job_id, d.state = 'active' desc, d.number desc

-- name: place_after
-- Returns the place of the partition that is so many ($4) after a place.
select p.first, p.key from ({partitions_after($1, $2, $3, $4)}) p order by p.first, p.key offset $4 - 1

-- name: partition_page
-- Returns committed partitions of a version after a place, at most so many ($5) of the next ones ($4). With $6 only
-- those that are stale.
with p as materialized ({partitions_after($1, $2, $3, $4)})
select {partition_columns()} from p {with_revision()}
 where not $6::boolean or stale.found
 order by p.first, p.key limit $5

-- name: get_partition
-- Returns one committed partition.
select {partition_columns()} from windlass.partition p {with_revision()} where p.dataset_version = $1 and p.key = $2

-- name: input_page
-- Returns partitions of an input after a place for which the output ($6) has none with the same key, at most so many
-- ($5) of the next ones ($4).
with p as materialized ({partitions_after($1, $2, $3, $4)})
select p.key, p.first, p.last
  from p left join lateral (select true as found from windlass.partition o
                             where o.dataset_version = $6 and o.key = p.key limit 1) own on true
 where own.found is null
 order by p.first, p.key limit $5

-- name: get_spans
-- Returns first and last number of partitions of versions with one key.
select p.first, p.last from windlass.partition p where p.dataset_version = any($1::uuid[]) and p.key = $2 limit 1

-- name: partition_tasks
-- Returns for each of these keys the newest task that was made for a partition of these inputs. A task that was
-- replayed is the newest replay.
with recursive newest as (
    (select distinct on (u.key) u.key, t.id, t.namespace, t.state, t.attempt, k.deployment_id, 0 as place
       from unnest($1::text[]) as u(key)
      cross join unnest($2::uuid[], $3::smallint[], $4::uuid[]) as e(job_id, input_index, dataset_version)
       join windlass.consumption c on c.job_id = e.job_id and c.input_index = e.input_index
        and c.dataset_version = e.dataset_version and c.key = u.key
       join windlass.task t on t.id = c.task_id
       left join windlass.job_task k on k.task_id = t.id
      order by u.key, t.created_at desc, t.id desc)
    union all
    select n.key, t.id, t.namespace, t.state, t.attempt, n.deployment_id, n.place + 1
      from newest n
      join windlass.idempotency i on i.namespace = n.namespace and i.key = 'windlass:replay:' || n.id
      join windlass.task t on t.id = i.task_id
     where n.state in ('failed', 'cancelled', 'skipped')
)
select distinct on (n.key) n.key, n.id, n.state, n.attempt, n.deployment_id from newest n order by n.key, n.place desc

-- name: partition_history
-- Returns the revisions of a partition, newest first.
select r.revision, r.rows, r.bytes, r.location, r.task_id, r.attempt, r.deployment_id, r.committed_at, r.inputs::text,
       r.trace_id, r.manifest_sha256
  from windlass.partition_revision r
 where r.dataset_version = $1 and r.key = $2 and ($3::integer is null or r.revision = $3)
 order by r.revision desc limit $4

-- name: committed_spans
-- Returns the committed numbers of a version as spans that neither overlap nor touch, at most so many ($2). The end of a
-- range is exclusive here; that of the largest number is none.
select lower(u.span), coalesce(upper(u.span) - 1, 9223372036854775807)
  from (select range_agg(int8range(f.first, case when f.last < 9223372036854775807 then f.last + 1 end)) as spans
          from windlass.partition f
         where f.dataset_version = $1 and f.first is not null and f.last is not null) c
 cross join unnest(c.spans) as u(span)
 order by 1 limit $2

-- name: uncommitted_spans
-- Returns spans of partitions of an input ($2) that an output ($1) does not have, with their keys.
select p.key, p.first, p.last from windlass.partition p
 where p.dataset_version = $2 and p.first is not null
   and not exists (select from windlass.partition o where o.dataset_version = $1 and o.key = p.key)
 order by p.first, p.key limit $3

-- name: dataset_events
-- Returns one page of the events of a dataset, newest first (index event_dataset), each with the tasks that it has
-- made: those have the key of what the event reports.
with readers as materialized (
    select distinct x.job_id from windlass.deployment_edge x where x.dataset_uuid = $1
)
select e.id, e.namespace, e.task_id, e.attempt, e.dataset_uuid, e.dataset_version, e.cursor, e.partition_key, e.first,
       e.last, e.declared, e.caller, e.at, e.revision, e.traceparent, e.routing, e.routed_at,
       array(select k.task_id from readers x
               join windlass.job_task k on k.job_id = x.job_id
                and k.dedupe_key = case when e.partition_key is null
                                        then 'cursor:' || e.dataset_uuid || ':' || e.dataset_version || ':' || e.cursor
                                        else 'partition:' || e.dataset_uuid || ':' || e.dataset_version || ':'
                                             || e.partition_key || ':' || e.revision end
              order by k.created_at, k.task_id)
  from windlass.event e
 where e.dataset_uuid = $1 and e.namespace = $2 and (e.at, e.id) < {beyond($3, $4)}
 order by e.at desc, e.id desc limit $5

-- name: lineage_reads
-- Returns what the jobs of active deployments in a namespace read.
select g.name, j.name, e.dataset_uuid, e.condition
  from windlass.dag g
  join windlass.deployment_edge e on e.deployment_id = g.active_version
  join windlass.deployment_job j on j.deployment_id = e.deployment_id and j.job_id = e.job_id
 where g.namespace = $1 and g.retired_at is null order by g.name, j.name, e.input_index

-- name: lineage_writes
-- Returns what the jobs of active deployments in a namespace write.
select g.name, j.name, (o.value ->> 'dataset_uuid')::uuid
  from windlass.dag g
  join windlass.deployment_job j on j.deployment_id = g.active_version
 cross join lateral jsonb_array_elements(j.outputs) with ordinality as o(value, place)
 where g.namespace = $1 and g.retired_at is null order by g.name, j.name, o.place

-- name: lineage_datasets
-- Returns name, DAG and current version of datasets, and whether a caller may read them ($2 to $4).
select s.id, s.name, s.dag, s.job, s.output_index, p.dataset_version, {readable($2, $3, $4)}
  from windlass.dataset s
  join windlass.dag g on g.namespace = s.namespace and g.name = s.dag
  left join windlass.deployment_pointer p on p.deployment_id = g.active_version and p.dataset_uuid = s.id
 where s.id = any($1::uuid[])
