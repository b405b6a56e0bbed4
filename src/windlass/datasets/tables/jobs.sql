-- part: live_deployments
-- Deployments that routing feeds: those of DAGs that are not retired.
select d.id, d.namespace, d.dag, d.state, g.paused, g.active_version
  from windlass.deployment d
  join windlass.dag g on g.namespace = d.namespace and g.name = d.dag and g.retired_at is null
 where d.state in ('active', 'building', 'ready')

-- name: events_to_route
-- Returns events that are not routed yet.
select e.id, e.dataset_uuid, e.dataset_version, e.cursor, e.partition_key, e.first, e.last, e.revision, e.traceparent
  from windlass.event e where e.id = any($1::uuid[]) and e.routed_at is null order by e.at, e.id

-- name: unrouted_events
-- Returns events that no effect has routed for a while (index event_unrouted). Rows of a server that routes them at this
-- moment are skipped.
select e.id from windlass.event e
 where e.routed_at is null and e.declared and e.at <= windlass.now() - $1::double precision * interval '1 second'
 order by e.at limit $2 for update skip locked

-- name: live_edges
-- Returns the edges of live deployments that read these datasets, or that belong to these jobs ($2), each with the
-- version that it reads now, and the one that it should read: another one, until what the job was given is carried over.
-- A job that two deployments share is returned once, with the active one.
select distinct on (e.job_id, e.input_index)
       e.job_id, e.input_index, e.dataset_uuid, coalesce(u.from_version, e.dataset_version, p.dataset_version), e.trigger,
       e.by_partition, d.id, d.paused, j.held, d.state = 'active', e.coalesces, e.needs_all,
       coalesce(e.dataset_version, p.dataset_version), u.from_index
  from windlass.deployment_edge e
  join ({live_deployments()}) d on d.id = e.deployment_id
  join windlass.job j on j.id = e.job_id
  left join windlass.dataset s on s.id = e.dataset_uuid and e.dataset_version is null
  left join windlass.dag o on o.namespace = s.namespace and o.name = s.dag
  left join windlass.deployment_pointer p on p.deployment_id = o.active_version and p.dataset_uuid = e.dataset_uuid
  left join windlass.job_upgrade u on u.job_id = e.job_id and u.input_index = e.input_index
                                  and u.dataset_uuid = e.dataset_uuid and e.continues
 where e.dataset_uuid = any($1::uuid[]) or e.job_id = any($2::uuid[])
 order by e.job_id, e.input_index, d.state = 'active' desc, d.id

-- name: live_versions
-- Returns those of these versions that a live deployment points to, and those whose dataset belongs to no DAG.
select v.id from unnest($1::uuid[], $2::uuid[]) as v(id, dataset_uuid)
 where exists (select from windlass.deployment_pointer p join ({live_deployments()}) d on d.id = p.deployment_id
                where p.dataset_version = v.id)
    or not exists (select from windlass.dataset s where s.id = v.dataset_uuid)

-- name: lock_jobs
-- Locks jobs in the order of their ids. Their tasks are made, and their cursors moved, under this lock.
select j.id from windlass.job j where j.id = any($1::uuid[]) order by j.id for update

-- name: job_specs
-- Returns what is needed to make tasks of these jobs, in these deployments.
select j.deployment_id, j.job_id, d.namespace, d.dag, j.name, j.queue, j.definition::text, j.inputs::text,
       j.outputs::text
  from unnest($1::uuid[], $2::uuid[]) as u(deployment_id, job_id)
  join windlass.deployment_job j on j.deployment_id = u.deployment_id and j.job_id = u.job_id
  join windlass.deployment d on d.id = j.deployment_id

-- name: insert_job_tasks
-- Records the tasks of jobs. Returns those that are new; a key that exists has its task already.
insert into windlass.job_task (job_id, dedupe_key, task_id, deployment_id, trigger, dataset_version, cursor, created_at)
select u.job_id, u.dedupe_key, u.task_id, u.deployment_id, u.trigger::jsonb, u.dataset_version, u.cursor, windlass.now()
  from unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[], $5::text[], $6::uuid[], $7::bigint[])
       as u(job_id, dedupe_key, task_id, deployment_id, trigger, dataset_version, cursor)
on conflict (job_id, dedupe_key) do nothing
returning task_id

-- name: find_job_task
-- Returns the task of a job with this key.
select k.task_id from windlass.job_task k where k.job_id = $1 and k.dedupe_key = $2

-- name: insert_consumptions
-- Records which revisions of partitions were given to jobs, and to which task.
insert into windlass.consumption (job_id, input_index, dataset_version, key, revision, task_id)
select u.* from unnest($1::uuid[], $2::smallint[], $3::uuid[], $4::text[], $5::integer[], $6::uuid[]) as u
on conflict do nothing

-- name: job_load
-- Returns for each of these jobs the number of its tasks that may start or run, the number that waits for its turn, and
-- the number of those that run (index task_job_open). Tasks of backfills that wait for an input are neither.
select t.job_id, count(*) filter (where t.state <> 'blocked'),
       count(*) filter (where t.state = 'blocked'
                          and not exists (select from windlass.backfill_task b where b.task_id = t.id and b.waiting)),
       count(*) filter (where t.state = 'running')
  from windlass.task t where t.job_id = any($1::uuid[]) and t.finished_at is null group by t.job_id

-- name: newest_definitions
-- Returns the definition of each of these jobs, that of the active deployment if it has the job.
select distinct on (j.job_id) j.job_id, j.definition::text
  from windlass.deployment_job j join windlass.deployment d on d.id = j.deployment_id
 where j.job_id = any($1::uuid[]) order by j.job_id, d.state = 'active' desc, d.number desc

-- name: next_job_tasks
-- Returns the tasks of a job whose turn is next: those without a cursor (invalidations, replays), those with the smallest
-- cursor, then those with the highest priority and the oldest. Tasks of backfills that wait for an input have no turn.
select t.id from windlass.task t left join windlass.job_task k on k.task_id = t.id
 where t.job_id = $1 and t.state = 'blocked' and t.finished_at is null
   and not exists (select from windlass.backfill_task b where b.task_id = t.id and b.waiting)
 order by k.cursor nulls first, t.priority desc, t.created_at, t.id limit $2

-- name: ended_windows
-- Returns the windows that tasks of these jobs have read to their end and whose end is not told yet (index outbox_due):
-- version and cursor. They are in `wire`, which a replay keeps.
select t.id, t.job_id, (w.value ->> 'dataset_version')::uuid, (w.value ->> 'cursor')::bigint
  from windlass.outbox o
  join windlass.task t on t.id = o.task_id
 cross join lateral (select convert_from(t.wire, 'UTF8')::jsonb -> 'window' as value) w
 where o.kind = 'job' and o.dead_at is null and t.job_id = any($1::uuid[]) and t.state = 'succeeded'
   and w.value is not null

-- name: forget_job_tasks
-- Forgets that tasks of these jobs were made, if they were cancelled because their job left and their end is not told
-- yet: what they were made for is owed again should their job come back. A replay stands for the task that it replays,
-- which has the record. Returns the jobs.
with recursive left_tasks as (
    select t.id, t.job_id, t.replay_of from windlass.outbox o join windlass.task t on t.id = o.task_id
     where o.kind = 'job' and o.dead_at is null and t.job_id = any($1::uuid[]) and t.state in ('cancelled', 'failed')
       and t.cancel ->> 'reason' = $2
    union
    select r.replay_of, r.job_id, t.replay_of from left_tasks r left join windlass.task t on t.id = r.replay_of
     where r.replay_of is not null
), given as (
    delete from windlass.consumption c using left_tasks l where c.job_id = l.job_id and c.task_id = l.id
)
delete from windlass.job_task k using left_tasks l
 where k.task_id = l.id and k.dataset_version is not null
returning k.job_id

-- name: take_back_job_tasks
-- Forgets tasks that were recorded in this transaction and are not made.
with taken as (
    delete from windlass.job_task k where k.task_id = any($1::uuid[]) returning k.job_id, k.task_id
)
delete from windlass.consumption c using taken k where c.job_id = k.job_id and c.task_id = k.task_id

-- name: rename_job_tasks
-- Gives tasks of jobs other ids.
with given as materialized (
    select u.* from unnest($1::uuid[], $2::uuid[]) as u(old, new)
), consumed as (
    update windlass.consumption c set task_id = g.new
      from given g join windlass.job_task k on k.task_id = g.old where c.job_id = k.job_id and c.task_id = g.old
)
update windlass.job_task k set task_id = g.new from given g where k.task_id = g.old

-- name: move_cursors
-- Moves cursors of jobs forward, never back.
insert into windlass.job_cursor as c (job_id, dataset_version, cursor, updated_at)
select u.job_id, u.dataset_version, max(u.cursor), windlass.now()
  from unnest($1::uuid[], $2::uuid[], $3::bigint[]) as u(job_id, dataset_version, cursor)
 group by u.job_id, u.dataset_version order by u.job_id, u.dataset_version
on conflict (job_id, dataset_version) do update
   set cursor = greatest(c.cursor, excluded.cursor), updated_at = excluded.updated_at

-- name: job_cursors
-- Returns how far a job has read each of these versions.
select c.dataset_version, c.cursor from windlass.job_cursor c
 where c.job_id = $1 and c.dataset_version = any($2::uuid[])

-- name: mark_routed
-- Records what became of events.
update windlass.event e set routing = u.routing, routed_at = windlass.now()
  from unnest($1::uuid[], $2::text[]) as u(id, routing) where e.id = u.id and e.routed_at is null

-- name: lock_behind_jobs
-- Locks jobs that may be owed something (index job_behind). A job that is held or paused stays behind.
select j.id from windlass.job j
 where j.behind and not j.held
   and not exists (select from windlass.dag g where g.namespace = j.namespace and g.name = j.dag and g.paused)
 order by j.id limit $1 for update skip locked

-- name: owed_partitions
-- Returns committed partitions of a version that a job was not given yet, the first ones first.
select p.key, p.first, p.last, p.revision from windlass.partition p
 where p.dataset_version = $2
   and not exists (select from windlass.consumption c
                    where c.job_id = $1 and c.input_index = $3 and c.dataset_version = $2 and c.key = p.key
                      and c.revision = p.revision)
 order by p.first, p.key limit $4

-- name: owed_to_all
-- Returns partitions that all of these inputs of a job have, if it was not given the newest revision of one of them: each
-- with its part of every input, and whether the job was given that. With $4, only these keys.
with input as materialized (
    select u.* from unnest($2::smallint[], $3::uuid[]) with ordinality as u(input_index, dataset_version, place)
), owed as materialized (
    select p.key, p.first from windlass.partition p
     where p.dataset_version = ($3::uuid[])[1] and ($4::text[] is null or p.key = any($4))
       and not exists (select from input i
                        where not exists (select from windlass.partition q
                                           where q.dataset_version = i.dataset_version and q.key = p.key))
       and exists (select from input i join windlass.partition q on q.dataset_version = i.dataset_version and q.key = p.key
                    where not exists (select from windlass.consumption c
                                       where c.job_id = $1 and c.input_index = i.input_index
                                         and c.dataset_version = i.dataset_version and c.key = q.key
                                         and c.revision = q.revision))
     order by p.first, p.key limit $5
)
select q.key, q.first, q.last, q.revision, i.input_index,
       exists (select from windlass.consumption c
                where c.job_id = $1 and c.input_index = i.input_index and c.dataset_version = i.dataset_version
                  and c.key = q.key and c.revision = q.revision)
  from owed o cross join input i
  join windlass.partition q on q.dataset_version = i.dataset_version and q.key = o.key
 order by o.first, o.key, i.place

-- name: carry_over
-- Writes that a job was given the partitions of a version ($3) which it was given of the version before ($5), in the
-- revision that they had when the version changed. At most so many ($6), in the order of their keys. Returns the number
-- that it looked at.
with upgrade as materialized (
    select u.mark, u.at from windlass.job_upgrade u where u.job_id = $1 and u.input_index = $2
), read as materialized (
    select o.key, o.task_id from windlass.consumption o
     where o.job_id = $1 and o.input_index = $4 and o.dataset_version = $5 and o.key > (select g.mark from upgrade g)
     order by o.key, o.revision limit $6
), chosen as materialized (
    select distinct on (c.key) c.key, c.task_id from read c order by c.key
), given as (
    insert into windlass.consumption (job_id, input_index, dataset_version, key, revision, task_id)
    select $1, $2, $3, c.key, r.revision, c.task_id
      from chosen c
     cross join lateral (select m.revision from windlass.partition_revision m
                          where m.dataset_version = $3 and m.key = c.key and m.committed_at <= (select g.at from upgrade g)
                          order by m.revision desc limit 1) r
    on conflict do nothing
), marked as (
    update windlass.job_upgrade u set mark = (select max(c.key) from chosen c)
     where u.job_id = $1 and u.input_index = $2 and exists (select from chosen)
)
select count(*) from read

-- name: analyze_consumptions
-- Lets the planner know of rows that were carried over in this transaction: it would look for each in all of them.
analyze windlass.consumption

-- name: carry_cursor
-- Lets a job begin to read a version ($2) where it has ended to read another ($3).
insert into windlass.job_cursor as c (job_id, dataset_version, cursor, updated_at)
select o.job_id, $2, o.cursor, windlass.now() from windlass.job_cursor o where o.job_id = $1 and o.dataset_version = $3
on conflict (job_id, dataset_version) do update
   set cursor = greatest(c.cursor, excluded.cursor), updated_at = excluded.updated_at

-- name: is_buffered
-- Returns whether sinks write a dataset, and count its cursors.
select exists (select from windlass.dataset s where s.id = $1 and s.write_mode = 'buffered')

-- name: start_at_cutover
-- Lets a job begin to read a buffered version ($3) after the last batch that it had when the version changed (index
-- event_dataset). Those were made from what the version before was made from.
insert into windlass.job_cursor as c (job_id, dataset_version, cursor, updated_at)
select u.job_id, $3, e.cursor, windlass.now()
  from windlass.job_upgrade u
 cross join lateral (select o.cursor from windlass.event o
                      where o.dataset_uuid = u.dataset_uuid and o.at <= u.at and o.dataset_version = $3
                        and o.cursor is not null
                      order by o.at desc, o.cursor desc limit 1) e
 where u.job_id = $1 and u.input_index = $2
on conflict (job_id, dataset_version) do update
   set cursor = greatest(c.cursor, excluded.cursor), updated_at = excluded.updated_at

-- name: has_open_window
-- Returns whether a task of a job that reads a window of a version has not ended (index task_job_open).
select exists (select from windlass.task t
                where t.job_id = $1 and t.finished_at is null
                  and convert_from(t.wire, 'UTF8')::jsonb #>> '{window,dataset_version}' = $2::uuid::text)

-- name: delete_upgrade
-- Ends the upgrade of an input.
delete from windlass.job_upgrade u where u.job_id = $1 and u.input_index = $2

-- name: waiting_windows
-- Returns for each of these jobs and versions a task that will read up to the newest cursor when it starts.
select distinct on (k.job_id, k.dataset_version) k.job_id, k.dataset_version, k.task_id
  from unnest($1::uuid[], $2::uuid[]) as u(job_id, dataset_version)
  join windlass.job_task k on k.job_id = u.job_id and k.dataset_version = u.dataset_version and k.cursor is not null
  join windlass.task t on t.id = k.task_id and t.job_id = k.job_id and t.finished_at is null
                      and t.state in ('queued', 'blocked')
 order by k.job_id, k.dataset_version, k.cursor, k.task_id

-- name: raise_windows
-- Records that tasks which wait will read up to these cursors.
update windlass.job_task k set cursor = greatest(k.cursor, u.cursor)
  from unnest($1::uuid[], $2::bigint[]) as u(task_id, cursor) where k.task_id = u.task_id

-- name: lock_wire
-- Locks a task and returns its `wire`, if this attempt is still the current one.
select t.wire from windlass.task t where t.id = $1 and t.attempt = $2 for update

-- name: put_window
-- Writes how far a task reads.
with fixed as (
    update windlass.task t set wire = $2 where t.id = $1 returning t.id
)
update windlass.job_task k set cursor = greatest(k.cursor, $3) from fixed f where k.task_id = f.id

-- name: cut_windows
-- Corrects how far tasks of these jobs have read, if they ended before the attempt that would have read further. Returns
-- their jobs.
update windlass.job_task k set cursor = (w.value ->> 'cursor')::bigint
  from windlass.outbox o
  join windlass.task t on t.id = o.task_id
 cross join lateral (select convert_from(t.wire, 'UTF8')::jsonb -> 'window' as value) w
 where o.kind = 'job' and o.dead_at is null and t.job_id = any($1::uuid[]) and t.state = 'succeeded'
   and w.value ? 'coalesce' and k.task_id = t.id and k.cursor > (w.value ->> 'cursor')::bigint
returning k.job_id

-- name: jobs_with_pressure
-- Returns the jobs that are held, or that may be owed something (index job_behind for the latter).
select j.id, j.dag, j.name, j.held from windlass.job j where j.held or j.behind order by j.id limit $1

-- name: count_owed
-- Counts committed partitions of a version that a job was not given yet, up to a limit.
select count(*) from (
    select from windlass.partition p
     where p.dataset_version = $2
       and not exists (select from windlass.consumption c
                        where c.job_id = $1 and c.input_index = $3 and c.dataset_version = $2 and c.key = p.key
                          and c.revision = p.revision)
     limit $4) o

-- name: owed_cursor
-- Returns the highest cursor of a version if a job has neither read it nor has a task that will.
select h.cursor from windlass.high_water h
 where h.dataset_version = $2
   and h.cursor > coalesce((select c.cursor from windlass.job_cursor c where c.job_id = $1 and c.dataset_version = $2),
                           -9223372036854775808)
   and not exists (select from windlass.job_task k
                    where k.job_id = $1 and k.dataset_version = $2 and k.cursor >= h.cursor)

-- name: caught_up
-- Marks jobs to which nothing more is owed.
update windlass.job j set behind = false where j.id = any($1::uuid[])

-- name: due_server_tasks
-- Locks due tasks of jobs that run in the server itself (index task_ready).
select {task_columns}, t.wire, t.payload from windlass.task t
 where t.namespace = any(array(select distinct g.namespace from windlass.dag g)) and t.queue = $1 and t.state = 'queued'
   and t.available_at <= windlass.now()
 order by t.available_at, t.id limit $2 for update skip locked

-- name: job_counts
-- Returns for each of these jobs whether it is held, and the number of its tasks that wait, run, and failed.
select j.id, j.held, j.behind,
       count(t.id) filter (where t.state in ('queued', 'blocked', 'sleeping', 'parked')),
       count(t.id) filter (where t.state = 'running'), count(t.id) filter (where t.state = 'failed')
  from windlass.job j
  left join lateral (select o.id, o.state from windlass.task o where o.job_id = j.id offset 0) t on true
 where j.id = any($1::uuid[]) group by j.id

-- part: webhook_jobs
-- The deployment and the job with a webhook: of the active deployment that has it, or of a DAG that is retired.
select w.deployment_id, w.job_id from windlass.webhook w where w.namespace = $1 and w.path = $2
union all
select g.active_version, i.job_id from windlass.dag g
  join windlass.deployment_job i on i.deployment_id = g.active_version and i.definition #>> '{source,path}' = $2
 where g.namespace = $1 and g.retired_at is not null
   and not exists (select from windlass.webhook w where w.namespace = $1 and w.path = $2)

-- name: find_webhook
-- Returns the deployment and the job that a webhook belongs to.
select h.deployment_id, h.job_id from ({webhook_jobs($1, $2)}) h limit 1

-- name: live_jobs
-- Returns those of these jobs that a live deployment has, each with the active one if that has it.
select distinct on (j.id) j.id, d.id, d.paused, j.held
  from windlass.job j
  join windlass.deployment_job i on i.job_id = j.id
  join ({live_deployments()}) d on d.id = i.deployment_id
 where j.id = any($1::uuid[])
 order by j.id, d.state = 'active' desc, d.id

-- name: has_dataset_work
-- Returns whether there are DAGs, or events that wait to be routed.
select exists (select from windlass.dag) or exists (select from windlass.event e where e.routed_at is null and e.declared)

-- name: count_consumed
-- Returns the number of partitions of a version of which a job was given the newest revision.
select count(*) from windlass.consumption c
  join windlass.partition p on p.dataset_version = c.dataset_version and p.key = c.key and p.revision = c.revision
 where c.job_id = $1 and c.input_index = $2 and c.dataset_version = $3
