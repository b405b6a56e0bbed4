-- part: backfill_columns
-- The columns of a backfill (b), in the order of `BackfillRow`.
b.id, b.namespace, b.dag, b.job, b.job_id, b.selection::text, b.downstream, b.state, b.mark::text, b.truncated, b.reason,
b.created_by, b.created_at, b.ended_at

-- name: insert_backfill
-- Adds a backfill, unless there is one with this id. Returns the id if it is new.
insert into windlass.backfill (id, namespace, dag, job, job_id, selection, downstream, state, mark, truncated, created_by,
                               created_at)
values ($1, $2, $3, $4, $5, $6::text::jsonb, $7, 'running', '{}', $8, $9, windlass.now())
on conflict (id) do nothing returning id

-- name: put_backfill_jobs
-- Adds the jobs of a backfill with the number of their partitions, or raises that number.
insert into windlass.backfill_job as j (backfill_id, job, place, partitions)
select $1, u.job, u.place, u.partitions
  from unnest($2::text[], $3::bigint[]) with ordinality as u(job, partitions, place)
on conflict (backfill_id, job) do update set partitions = greatest(j.partitions, excluded.partitions)

-- name: get_backfill
-- Returns a backfill.
select {backfill_columns()} from windlass.backfill b where b.id = $1

-- name: get_backfills
-- Returns one page of the backfills of a namespace, newest first (index backfill_newest); those of a DAG ($2) only.
select {backfill_columns()} from windlass.backfill b
 where b.namespace = $1 and ($2::text is null or b.dag = $2) and (b.created_at, b.id) < {beyond($3, $4)}
 order by b.created_at desc, b.id desc limit $5

-- name: backfill_jobs
-- Returns the progress of these backfills, and the number of their tasks that are open and that wait for an input.
select j.backfill_id, j.job, j.partitions, j.tasks, j.succeeded, j.failed, j.cancelled, coalesce(o.unfinished, 0),
       coalesce(o.waiting, 0)
  from windlass.backfill_job j
  left join lateral (select count(*) as unfinished, count(*) filter (where t.waiting) as waiting
                       from windlass.backfill_task t
                      where t.backfill_id = j.backfill_id and t.job = j.job) o on true
 where j.backfill_id = any($1::uuid[]) order by j.backfill_id, j.place, j.job

-- name: open_backfills
-- Returns the backfills that have not ended (index backfill_open), the oldest first.
select b.id from windlass.backfill b where b.ended_at is null order by b.created_at limit $1

-- name: lock_backfill
-- Locks a backfill. One that another server works on is skipped.
select {backfill_columns()} from windlass.backfill b where b.id = $1 for update skip locked

-- name: wait_for_backfill
-- Locks a backfill, and waits for it.
select {backfill_columns()} from windlass.backfill b where b.id = $1 for update

-- name: update_backfill
-- Writes the state of a backfill, why it is so, and how far its selection was taken.
update windlass.backfill b
   set state = $2, reason = $3, mark = $4::text::jsonb,
       ended_at = case when $2 in ('succeeded', 'failed', 'cancelled') then windlass.now() end
 where b.id = $1

-- name: active_backfill_job
-- Returns the live deployment of a job and whether the job gets tasks now; none if no active deployment has it.
select g.active_version, not (g.paused or i.held)
  from windlass.job i
  join windlass.dag g on g.namespace = i.namespace and g.name = i.dag and g.retired_at is null
  join windlass.deployment_job j on j.deployment_id = g.active_version and j.job_id = i.id
 where i.id = $1

-- name: insert_backfill_tasks
-- Adds tasks of a backfill, and counts them.
with added as (
    insert into windlass.backfill_task (backfill_id, task_id, job_id, job, key, waiting)
    select $1, u.task_id, $2, $3, u.key, u.waiting
      from unnest($4::uuid[], $5::text[], $6::boolean[]) as u(task_id, key, waiting)
    on conflict do nothing returning 1
)
update windlass.backfill_job j
   set tasks = j.tasks + (select count(*) from added),
       partitions = greatest(j.partitions, j.tasks + (select count(*) from added))
 where j.backfill_id = $1 and j.job = $3

-- name: open_backfill_tasks
-- Returns the number of tasks of a backfill that have not been counted as ended.
select count(*) from windlass.backfill_task t where t.backfill_id = $1

-- name: input_partitions
-- Returns the partitions of these versions with these keys.
select u.input_index, p.key, p.first, p.last, p.revision
  from unnest($1::smallint[], $2::uuid[]) as u(input_index, dataset_version)
  join windlass.partition p on p.dataset_version = u.dataset_version and p.key = any($3::text[])

-- name: partitions_between
-- Returns keys of a version whose numbers lie in a range ($2, $3), after a place ($4, $5) (index partition_range).
select p.key, p.first from windlass.partition p
 where p.dataset_version = $1 and p.first between $2 and $3 and p.last <= $3 and (p.first, p.key) > ($4::bigint, $5::text)
 order by p.first, p.key limit $6

-- name: count_partitions_between
-- Returns the number of partitions of these versions whose numbers lie in a range, each key once.
select count(distinct p.key) from windlass.partition p
 where p.dataset_version = any($1::uuid[]) and p.first between $2 and $3 and p.last <= $3

-- name: give_to_job
-- Records which revisions of partitions a job was given, and to which task last.
insert into windlass.consumption as c (job_id, input_index, dataset_version, key, revision, task_id)
select u.* from unnest($1::uuid[], $2::smallint[], $3::uuid[], $4::text[], $5::integer[], $6::uuid[]) as u
on conflict (job_id, input_index, dataset_version, key, revision) do update set task_id = excluded.task_id

-- name: count_made_from
-- Returns for each job below a job ($1), in a deployment ($2), the number of partitions that it was given and that were
-- made from these partitions ($3): what becomes stale with them. Follows what tasks have committed, so it does not
-- matter how keys of different jobs relate.
with recursive made(job_id, key, task_id) as (
    select c.job_id, c.key, c.task_id from windlass.consumption c where c.job_id = $1 and c.key = any($3::text[])
    union
    select n.job_id, n.key, n.task_id
      from made m
      join windlass.partition_revision r on r.task_id = m.task_id
      join windlass.deployment_edge e on e.deployment_id = $2 and e.dataset_version = r.dataset_version and e.trigger
       and e.by_partition
      join windlass.consumption n on n.job_id = e.job_id and n.input_index = e.input_index
       and n.dataset_version = r.dataset_version and n.key = r.key
)
select j.name, count(distinct m.key) from made m
  join windlass.deployment_job j on j.deployment_id = $2 and j.job_id = m.job_id
 where m.job_id <> $1 group by j.name

-- name: jobs_below
-- Returns the jobs of a deployment that read by partitions what a job writes, or what such a job writes, nearest first.
with recursive below(job_id, depth) as (
    select $2::uuid, 0
    union
    select e.job_id, b.depth + 1
      from below b
      join windlass.deployment_job j on j.deployment_id = $1 and j.job_id = b.job_id
     cross join lateral jsonb_array_elements(j.outputs) as o
      join windlass.deployment_edge e on e.deployment_id = $1 and e.trigger and e.by_partition
       and e.dataset_version = (o.value ->> 'dataset_version')::uuid
     where b.depth < 2000
)
select j.name from below b join windlass.deployment_job j on j.deployment_id = $1 and j.job_id = b.job_id
 where b.depth > 0 group by j.name order by max(b.depth), j.name

-- name: follow_backfill_tasks
-- Adds to a backfill the tasks that routing has made from what these tasks ($3) have committed, in the jobs below ($2 is
-- the deployment): of partitions that those jobs had been given before, which are stale now.
with followed as (
    insert into windlass.backfill_task (backfill_id, task_id, job_id, job, key)
    select distinct on (n.task_id) $1::uuid, n.task_id, n.job_id, j.name, n.key
      from windlass.partition_revision r
      join windlass.deployment_edge e on e.deployment_id = $2 and e.dataset_version = r.dataset_version and e.trigger
       and e.by_partition
      join windlass.deployment_job j on j.deployment_id = $2 and j.job_id = e.job_id
      join windlass.consumption n on n.job_id = e.job_id and n.input_index = e.input_index
       and n.dataset_version = r.dataset_version and n.key = r.key and n.revision >= r.revision
     where r.task_id = any($3::uuid[])
       and exists (select from windlass.consumption o
                    where o.job_id = e.job_id and o.input_index = e.input_index
                      and o.dataset_version = r.dataset_version and o.key = r.key and o.revision < r.revision)
    on conflict do nothing returning job
), counted as (
    select f.job, count(*) as tasks from followed f group by f.job
)
insert into windlass.backfill_job as j (backfill_id, job, place, partitions, tasks)
select $1, c.job, 1000000, c.tasks, c.tasks from counted c
on conflict (backfill_id, job) do update
   set tasks = j.tasks + excluded.tasks, partitions = greatest(j.partitions, j.tasks + excluded.tasks)

-- name: count_backfill_tasks
-- Counts tasks of a backfill that have ended, at most so many ($3), and forgets them. Returns them. With $2 (the deployment), a task
-- that has committed something counts only when the jobs below that were given an earlier revision were given this one:
-- until then `follow_backfill_tasks` would not find their tasks.
with ended as (
    select b.task_id, b.job, t.state
      from windlass.backfill_task b left join windlass.task t on t.id = b.task_id
     where b.backfill_id = $1 and (t.id is null or t.finished_at is not null)
       and ($2::uuid is null or t.state is distinct from 'succeeded' or not exists (
            select from windlass.partition_revision r
              join windlass.deployment_edge e on e.deployment_id = $2 and e.dataset_version = r.dataset_version
               and e.trigger and e.by_partition
             where r.task_id = b.task_id
               and exists (select from windlass.consumption o
                            where o.job_id = e.job_id and o.input_index = e.input_index
                              and o.dataset_version = r.dataset_version and o.key = r.key and o.revision < r.revision)
               and not exists (select from windlass.consumption n
                                where n.job_id = e.job_id and n.input_index = e.input_index
                                  and n.dataset_version = r.dataset_version and n.key = r.key
                                  and n.revision >= r.revision)))
     order by b.task_id limit $3
), gone as (
    delete from windlass.backfill_task b using ended e where b.backfill_id = $1 and b.task_id = e.task_id
), counted as (
    select e.job, count(*) filter (where e.state = 'succeeded') as succeeded,
           count(*) filter (where e.state = 'failed') as failed,
           count(*) filter (where e.state in ('cancelled', 'skipped')) as cancelled
      from ended e group by e.job
), updated as (
    update windlass.backfill_job j
       set succeeded = j.succeeded + c.succeeded, failed = j.failed + c.failed, cancelled = j.cancelled + c.cancelled
      from counted c where j.backfill_id = $1 and j.job = c.job
)
select e.task_id from ended e

-- name: backfill_tally
-- Returns how many tasks of a backfill are open, with $3 of its own job ($2) only, how many failed, and how many were
-- cancelled.
select (select count(*) from windlass.backfill_task t
         where t.backfill_id = $1 and (not $3::boolean or t.job = $2)),
       coalesce(sum(j.failed), 0)::bigint, coalesce(sum(j.cancelled), 0)::bigint
  from windlass.backfill_job j where j.backfill_id = $1

-- name: forget_backfill_tasks
-- Forgets the tasks of a backfill that has ended.
delete from windlass.backfill_task t where t.backfill_id = $1

-- name: backfill_tasks_to_cancel
-- Returns tasks of a backfill, of its own job ($2), that were not cancelled yet.
select t.id from windlass.backfill_task b join windlass.task t on t.id = b.task_id
 where b.backfill_id = $1 and b.job = $2 and t.finished_at is null and t.cancel is null
 order by t.id limit $3

-- name: waiting_backfill_tasks
-- Returns the tasks of backfills that wait for these partitions ($2) of these jobs ($1) (index backfill_task_waiting).
select b.job_id, b.key, b.task_id
  from unnest($1::uuid[], $2::text[]) as u(job_id, key)
  join windlass.backfill_task b on b.job_id = u.job_id and b.key = u.key and b.waiting
 order by b.task_id

-- name: stop_waiting
-- Records that tasks of backfills have what they waited for.
update windlass.backfill_task b set waiting = false where b.task_id = any($1::uuid[]) and b.waiting

-- name: rewrite_inputs
-- Gives tasks that have not started other inputs.
update windlass.task t set wire = u.wire from unnest($1::uuid[], $2::bytea[]) as u(id, wire) where t.id = u.id

-- name: task_wires
-- Returns the `wire` of tasks.
select t.id, t.wire from windlass.task t where t.id = any($1::uuid[])
