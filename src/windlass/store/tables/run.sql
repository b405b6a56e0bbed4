-- name: insert_runs
-- Adds these runs, unless they exist.
insert into windlass.run (id, namespace, created_at)
select u.id, u.namespace, windlass.now() from unnest($1::uuid[], $2::text[]) as u(id, namespace)
 order by u.id
on conflict (id) do nothing

-- name: lock_runs
-- Locks runs in the order of their ids. The edges of a run are added and settled under this lock.
select r.id, r.namespace from windlass.run r where r.id = any($1::uuid[]) order by r.id for update

-- name: lock_free_runs
-- Locks those of these runs that no other transaction has locked. It never waits.
select r.id from windlass.run r where r.id = any($1::uuid[]) order by r.id for update skip locked

-- name: mark_upstream
-- Marks the unfinished tasks among these as tasks that others wait for, and returns them. The others have ended or do
-- not exist.
update windlass.task t set has_dependents = true
  from (select t.id from windlass.task t where t.id = any($1::uuid[]) order by t.id for update) locked
 where t.id = locked.id and t.finished_at is null
returning t.id

-- name: upstream_states
-- Returns the states and runs of these tasks.
select t.id, t.state, t.run_id from windlass.task t where t.id = any($1::uuid[])

-- name: insert_edges
-- Records which task waits for which.
insert into windlass.edge (task_id, upstream_id, run_id, any_outcome)
select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::boolean[])
on conflict do nothing

-- name: ended_edges
-- Returns the edges whose upstream task has ended, with its state. The caller has locked the run.
select e.task_id, e.upstream_id, u.state, e.any_outcome
  from windlass.edge e join windlass.task u on u.id = e.upstream_id
 where e.upstream_id = any($1::uuid[]) and u.finished_at is not null
 order by e.task_id, e.upstream_id

-- name: delete_edges
-- Deletes settled edges.
delete from windlass.edge e
 using unnest($1::uuid[], $2::uuid[]) as u(task_id, upstream_id)
 where e.upstream_id = u.upstream_id and e.task_id = u.task_id

-- name: open_edges
-- Counts the edges that each of these tasks still waits for.
select e.task_id, count(*) from windlass.edge e where e.task_id = any($1::uuid[]) group by e.task_id

-- name: run_task_ids
-- Returns one page of the unfinished tasks of a run, oldest first (index task_run).
select t.created_at, t.id from windlass.task t
 where t.run_id = $1 and (t.created_at, t.id) > {from_position($2, $3)}
   and t.finished_at is null
 order by t.created_at, t.id limit $4
