-- part: attempt_columns
-- The columns of a step attempt, in the order of its record.
a.id, a.task_id, a.name, a.occurrence, a.number, a.attempt, a.tries, a.state, a.begun_at, a.ended_at, a.policy, a.final,
a.error, a.input

-- name: put_attempts
-- Writes step attempts, started or ended, as decided under the lock of the task.
insert into windlass.step_attempt as a (id, task_id, name, occurrence, number, attempt, tries, state, begun_at, ended_at,
                                        policy, final, error, input)
select u.id, u.task_id, u.name, u.occurrence, u.number, u.attempt, u.tries, u.state, u.begun_at, u.ended_at,
       u.policy::jsonb, string_to_array(u.final, chr(31)), u.error::jsonb, u.input
  from unnest($1::uuid[], $2::uuid[], $3::text[], $4::integer[], $5::integer[], $6::integer[], $7::integer[], $8::text[],
              $9::timestamptz[], $10::timestamptz[], $11::text[], $12::text[], $13::text[], $14::bytea[])
       as u(id, task_id, name, occurrence, number, attempt, tries, state, begun_at, ended_at, policy, final, error, input)
on conflict (id) do update set state = excluded.state, ended_at = excluded.ended_at, error = excluded.error

-- name: latest_attempts
-- Returns the latest attempt of each of these steps (index step_attempt_number).
select l.* from unnest($1::uuid[], $2::text[], $3::integer[]) as u(task_id, name, occurrence)
 cross join lateral (
       select {attempt_columns()} from windlass.step_attempt a
        where a.task_id = u.task_id and a.name = u.name and a.occurrence = u.occurrence
        order by a.number desc limit 1) l

-- name: open_attempts
-- Returns the step attempts of these tasks that have not ended (index step_attempt_number).
select {attempt_columns()} from windlass.step_attempt a where a.task_id = any($1::uuid[]) and a.state = 'running'

-- name: next_positions
-- Returns the position after the last recorded step of each of these tasks (primary key of the steps).
select s.task_id, max(s.position) + 1 from windlass.step s where s.task_id = any($1::uuid[]) group by s.task_id

-- name: task_attempts
-- Returns every step attempt of one task, in order (index step_attempt_number).
select {attempt_columns()} from windlass.step_attempt a where a.task_id = $1 order by a.begun_at, a.name, a.number

-- name: get_attempt
-- Returns one step attempt.
select {attempt_columns()} from windlass.step_attempt a where a.id = $1
