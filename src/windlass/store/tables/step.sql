-- name: put_steps
-- Records steps, as decided under the lock of the task. Overwrites a step that waited, and one that failed if a later
-- attempt began it again. Never overwrites a success.
insert into windlass.step as s (task_id, name, occurrence, position, kind, state, attempt, recorded_at, took_s, failures,
                                wake_at, child_id, error, result)
select u.task_id, u.name, u.occurrence, u.position, u.kind, u.state, u.attempt, u.recorded_at, u.took_s, u.failures,
       u.wake_at, u.child_id, u.error::jsonb, u.result
  from unnest($1::uuid[], $2::text[], $3::integer[], $4::integer[], $5::text[], $6::text[], $7::integer[],
              $8::timestamptz[], $9::double precision[], $10::integer[], $11::timestamptz[], $12::uuid[], $13::text[],
              $14::bytea[])
       as u(task_id, name, occurrence, position, kind, state, attempt, recorded_at, took_s, failures, wake_at, child_id,
            error, result)
on conflict (task_id, name, occurrence) do update
   set kind = excluded.kind, state = excluded.state, attempt = excluded.attempt, recorded_at = excluded.recorded_at,
       took_s = excluded.took_s,
       failures = excluded.failures, wake_at = excluded.wake_at, child_id = excluded.child_id, error = excluded.error,
       result = excluded.result
 where s.state = 'waiting' or (s.state = 'failed' and excluded.attempt > s.attempt)

-- name: known_steps
-- Returns those of these steps that are recorded (primary key).
select {step_columns}
  from unnest($1::uuid[], $2::text[], $3::integer[]) as u(task_id, name, occurrence)
  join windlass.step s on s.task_id = u.task_id and s.name = u.name and s.occurrence = u.occurrence

-- name: task_steps
-- Returns all records of these workflows, in the order of the code (primary key).
select {step_columns} from windlass.step s where s.task_id = any($1::uuid[]) order by s.task_id, s.position

-- name: insert_signals
-- Stores signals in the order of their arrival. A signal whose id exists is the same signal.
insert into windlass.signal (id, task_id, name, sent_at, payload)
select u.id, u.task_id, u.name, u.sent_at, u.payload
  from unnest($1::uuid[], $2::uuid[], $3::text[], $4::timestamptz[], $5::bytea[])
       with ordinality as u(id, task_id, name, sent_at, payload, place)
 order by u.place
on conflict (id) do nothing

-- name: sent_signals
-- Returns those of these signals that were sent before (primary key).
select g.id from windlass.signal g where g.id = any($1::uuid[])

-- name: pending_signals
-- Returns the signals of these names that are not consumed, in the order of their arrival (index signal_pending).
select g.id, g.task_id, g.name, g.payload, g.sent_at
  from unnest($1::uuid[], $2::text[]) as u(task_id, name)
  join windlass.signal g on g.task_id = u.task_id and g.name = u.name and not g.consumed
 order by g.number

-- name: consume_signals
-- Marks signals as consumed: each ends one wait only.
update windlass.signal g set consumed = true where g.id = any($1::uuid[])

-- name: awaited_signals
-- Returns those of these workflows that wait for a signal of this name (primary key of the steps).
select distinct u.task_id, u.name
  from unnest($1::uuid[], $2::text[]) as u(task_id, name)
  join windlass.step s on s.task_id = u.task_id and s.name = 'signal:' || u.name and s.state = 'waiting'

-- name: child_tasks
-- Returns these tasks. Takes no lock: a child that ends after this read wakes its workflow.
select {task_columns} from windlass.task t where t.id = any($1::uuid[])

-- name: begin_fork
-- Sets the attempt of a fork to 1, so that its first run reads the records copied from its origin.
update windlass.task t set attempt = 1 where t.id = $1 and t.attempt = 0
