-- name: installation
-- Returns the id of this installation. It distinguishes our machines where several installations share one launcher.
select i.id from windlass.installation i limit 1

-- name: request_machine
-- Records that a machine for an attempt is about to be started. Written before the start, so that every running
-- machine has a row.
insert into windlass.machine (task_id, attempt, namespace, queue, launcher, place, requested_at)
values ($1, $2, $3, $4, $5, $6, windlass.now())
on conflict (task_id, attempt) do update set launcher = excluded.launcher, place = excluded.place
 where windlass.machine.launched_at is null

-- name: keep_objects
-- Records that the objects under the prefix of a task are deleted $3 seconds after it has ended.
insert into windlass.export_object (task_id, prefix, keep_s) values ($1, $2, $3) on conflict (task_id) do nothing

-- name: machine_launched
-- Records that the machine of an attempt was started, and begins its timeout for the first call back.
update windlass.machine m
   set machine_id = $3, instance_id = $4, launched_at = windlass.now(),
       deadline_at = windlass.now() + $5::double precision * interval '1 second'
 where m.task_id = $1 and m.attempt = $2 and m.launched_at is null

-- name: open_machines
-- Returns the machines of a place that may exist, with their tasks and the time (index machine_open).
select m.task_id, m.attempt, m.launcher, m.place, m.machine_id, m.instance_id, m.launched_at, m.deadline_at,
       m.ended_at, m.exit_code, m.reason, {task_columns}, windlass.now()
  from windlass.machine m left join windlass.task t on t.id = m.task_id
 where m.launcher = $1 and m.place = $2 and m.ended_at is null order by m.task_id, m.attempt

-- name: task_machines
-- Returns the machines of a task, newest first (primary key).
select m.task_id, m.attempt, m.launcher, m.place, m.machine_id, m.instance_id, m.launched_at, m.deadline_at,
       m.ended_at, m.exit_code, m.reason
  from windlass.machine m where m.task_id = $1 order by m.attempt desc limit 100

-- name: close_machine
-- Records that a machine has ended and nothing of it is left.
update windlass.machine m set ended_at = windlass.now(), exit_code = $3, reason = $4
 where m.task_id = $1 and m.attempt = $2 and m.ended_at is null

-- name: mark_downloaded
-- Records that the output was downloaded completely, so that it need not be kept.
update windlass.export_object o set downloaded_at = coalesce(o.downloaded_at, windlass.now()) where o.task_id = $1

-- name: due_objects
-- Returns tasks whose objects can be deleted: the task did not succeed, its output was downloaded, or it ended long
-- enough ago, and none of its machines can still write. A machine whose deadline passed a day ago counts as one that
-- cannot. The table is small.
select o.task_id, o.prefix from windlass.export_object o
  left join windlass.task t on t.id = o.task_id
 where (t.id is null or (t.finished_at is not null and (t.state <> 'succeeded' or o.downloaded_at is not null
                         or t.finished_at + o.keep_s * interval '1 second' <= windlass.now())))
   and not exists (select from windlass.machine m where m.task_id = o.task_id and m.ended_at is null
                      and coalesce(m.deadline_at, m.requested_at) > windlass.now() - interval '1 day')
 order by o.task_id limit $1

-- name: forget_objects
-- Deletes the rows of objects that were deleted.
delete from windlass.export_object o where o.task_id = any($1::uuid[])

-- name: forget_machines
-- Deletes the machines of tasks that are no longer kept. Looks up the tasks one by one, however large the planner
-- expects their table to be.
delete from windlass.machine m
 where m.ended_at is not null and (select t.id from windlass.task t where t.id = m.task_id) is null
