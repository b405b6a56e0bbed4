-- name: live_attempts
-- Returns those of these attempts that run now (index task_pkey). Takes no lock: the statements that write progress
-- compare the attempt again.
select n.place from unnest($1::uuid[], $2::integer[], $3::uuid[]) with ordinality as n(task_id, attempt, lease_id, place)
 where exists (select from windlass.task t
                where t.id = n.task_id and t.attempt = n.attempt and t.lease_id = n.lease_id and t.state = 'running')

-- name: write_progress
-- Writes the latest progress of each task. An earlier attempt does not overwrite a later one.
insert into windlass.progress as p (task_id, attempt, current, maximum, message, at)
select n.task_id, n.attempt, n.current, n.maximum, n.message, windlass.now()
  from unnest($1::uuid[], $2::integer[], $3::double precision[], $4::double precision[], $5::text[])
       as n(task_id, attempt, current, maximum, message)
 order by n.task_id
on conflict (task_id) do update
   set attempt = excluded.attempt, current = excluded.current, maximum = excluded.maximum, message = excluded.message,
       at = excluded.at
 where p.attempt <= excluded.attempt

-- name: write_checkpoints
-- Writes the latest checkpoint of each task. An earlier attempt does not overwrite a later one.
insert into windlass.checkpoint as c (task_id, attempt, data, at)
select n.task_id, n.attempt, n.data, windlass.now()
  from unnest($1::uuid[], $2::integer[], $3::bytea[]) as n(task_id, attempt, data)
 order by n.task_id
on conflict (task_id) do update
   set attempt = excluded.attempt, data = excluded.data, at = excluded.at
 where c.attempt <= excluded.attempt

-- name: write_log_lines
-- Writes log lines into a ring: each overwrites the older line in its place. A repeated line changes nothing.
insert into windlass.log_line as l (task_id, attempt, place, number, level, message, at)
select n.task_id, n.attempt, n.place, n.number, n.level, n.message, windlass.now() - n.age_s * interval '1 second'
  from unnest($1::uuid[], $2::integer[], $3::smallint[], $4::integer[], $5::text[], $6::text[], $7::double precision[])
       as n(task_id, attempt, place, number, level, message, age_s)
 order by n.task_id, n.attempt, n.place
on conflict (task_id, attempt, place) do update
   set number = excluded.number, level = excluded.level, message = excluded.message, at = excluded.at
 where l.number < excluded.number

-- name: delete_log_lines
-- Deletes the log lines of these tasks up to and including the given attempts.
delete from windlass.log_line l using unnest($1::uuid[], $2::integer[]) as n(task_id, attempt)
 where l.task_id = n.task_id and l.attempt <= n.attempt

-- name: task_progress
-- Returns the progress of those of these tasks that reported any.
select p.task_id, p.current, p.maximum, p.message, p.attempt, p.at
  from windlass.progress p where p.task_id = any($1::uuid[])

-- name: task_checkpoint
-- Returns the checkpoint from which the next attempt may continue.
select c.data from windlass.checkpoint c where c.task_id = $1

-- name: task_log
-- Returns one page of the log lines of a task in order, of one attempt or of all.
select l.attempt, l.number, l.at, l.level, l.message from windlass.log_line l
 where l.task_id = $1 and ($2::integer is null or l.attempt = $2)
   and (l.attempt, l.number) > ($3::integer, $4::integer)
 order by l.attempt, l.number limit $5
