-- name: installation
-- Who we are to whoever starts machines for several.
select i.id from windlass.installation i limit 1

-- name: ask_machine
-- An attempt is about to be launched here. Written before anything is started, so that nothing that runs is unknown.
insert into windlass.machine (task_id, attempt, namespace, queue, launcher, place, asked_at)
values ($1, $2, $3, $4, $5, $6, windlass.now())
on conflict (task_id, attempt) do update set launcher = excluded.launcher, place = excluded.place
 where windlass.machine.launched_at is null

-- name: keep_objects
-- What a task leaves under its prefix is deleted so long after it has ended.
insert into windlass.export_object (task_id, prefix, keep_s) values ($1, $2, $3) on conflict (task_id) do nothing

-- name: machine_there
-- The machine of an attempt is there: from now on it has so long to call back.
update windlass.machine m
   set machine_id = $3, instance_id = $4, launched_at = windlass.now(),
       deadline_at = windlass.now() + $5::double precision * interval '1 second'
 where m.task_id = $1 and m.attempt = $2 and m.launched_at is null

-- name: open_machines
-- Machines of a place that may be there, with their tasks and the time (index machine_open).
select m.task_id, m.attempt, m.namespace, m.queue, m.launcher, m.place, m.machine_id, m.instance_id, m.asked_at,
       m.launched_at, m.deadline_at, m.ended_at, m.exit_code, m.reason, windlass.now(), {task_columns}
  from windlass.machine m left join windlass.task t on t.id = m.task_id
 where m.launcher = $1 and m.place = $2 and m.ended_at is null order by m.task_id, m.attempt

-- name: task_machines
-- The machines of a task, the newest first (primary key).
select m.task_id, m.attempt, m.namespace, m.queue, m.launcher, m.place, m.machine_id, m.instance_id, m.asked_at,
       m.launched_at, m.deadline_at, m.ended_at, m.exit_code, m.reason
  from windlass.machine m where m.task_id = $1 order by m.attempt desc limit 100

-- name: close_machine
-- Nothing of it is left.
update windlass.machine m set ended_at = windlass.now(), exit_code = $3, reason = $4
 where m.task_id = $1 and m.attempt = $2 and m.ended_at is null

-- name: mark_downloaded
-- Somebody has got all of it: it need not be kept.
update windlass.export_object o set downloaded_at = coalesce(o.downloaded_at, windlass.now()) where o.task_id = $1

-- name: due_objects
-- Tasks whose objects may go: they have ended otherwise than well, were downloaded, or ended long enough ago; and none of
-- their machines can write any more; one that nobody has looked at for a day never will. The table is small.
select o.task_id, o.prefix from windlass.export_object o
  left join windlass.task t on t.id = o.task_id
 where (t.id is null or (t.finished_at is not null and (t.state <> 'succeeded' or o.downloaded_at is not null
                         or t.finished_at + o.keep_s * interval '1 second' <= windlass.now())))
   and not exists (select from windlass.machine m where m.task_id = o.task_id and m.ended_at is null
                      and coalesce(m.deadline_at, m.asked_at) > windlass.now() - interval '1 day')
 order by o.task_id limit $1

-- name: forget_objects
-- They are gone.
delete from windlass.export_object o where o.task_id = any($1::uuid[])

-- name: forget_machines
-- Machines whose tasks are no longer kept; looked up one by one, whatever the planner believes of the table of tasks.
delete from windlass.machine m
 where m.ended_at is not null and (select t.id from windlass.task t where t.id = m.task_id) is null
