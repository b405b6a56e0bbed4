-- name: insert_runs
-- Makes sure that these runs are there.
insert into windlass.run (id, namespace, created_at)
select u.id, u.namespace, windlass.now() from unnest($1::uuid[], $2::text[]) as u(id, namespace)
 order by u.id
on conflict (id) do nothing

-- name: lock_runs
-- The lock under which edges of a run are added and settled, taken in id order.
select r.id, r.namespace from windlass.run r where r.id = any($1::uuid[]) order by r.id for update

-- name: lock_free_runs
-- The same for those that nobody holds; it never waits.
select r.id from windlass.run r where r.id = any($1::uuid[]) order by r.id for update skip locked

-- name: mark_upstream
-- Upstream tasks that have not ended learn that somebody waits for them. Those not returned have ended or are unknown.
update windlass.task t set has_dependents = true
  from (select t.id from windlass.task t where t.id = any($1::uuid[]) order by t.id for update) locked
 where t.id = locked.id and t.finished_at is null
returning t.id

-- name: upstream_states
-- Where these tasks are, and in which run.
select t.id, t.state, t.run_id from windlass.task t where t.id = any($1::uuid[])

-- name: insert_edges
-- Who waits for whom.
insert into windlass.edge (task_id, upstream_id, run_id, any_outcome)
select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::boolean[])
on conflict do nothing

-- name: ended_edges
-- The edges whose upstream task has ended, with how it ended. Taken under the lock of the run.
select e.task_id, e.upstream_id, u.state, e.any_outcome
  from windlass.edge e join windlass.task u on u.id = e.upstream_id
 where e.upstream_id = any($1::uuid[]) and u.finished_at is not null
 order by e.task_id, e.upstream_id

-- name: delete_edges
-- Settled: these upstream tasks are not waited for any more.
delete from windlass.edge e
 using unnest($1::uuid[], $2::uuid[]) as u(task_id, upstream_id)
 where e.upstream_id = u.upstream_id and e.task_id = u.task_id

-- name: open_edges
-- How many edges each of these tasks still waits for.
select e.task_id, count(*) from windlass.edge e where e.task_id = any($1::uuid[]) group by e.task_id

-- name: run_task_ids
-- The unfinished tasks of a run, page by page, the oldest first (index task_run).
select t.created_at, t.id from windlass.task t
 where t.run_id = $1 and (t.created_at, t.id) > {from_position($2, $3)}
   and t.finished_at is null
 order by t.created_at, t.id limit $4

-- name: run_counts
-- How many tasks of a run are in each state.
select t.state, count(*) from windlass.task t where t.run_id = $1 group by t.state
