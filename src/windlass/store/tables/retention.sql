-- name: delete_finished
-- Deletes tasks that ended before an instant, with all rows that belong to them, namespace by namespace and the
-- oldest first (index task_created). It starts at the position that the last call reached ($2, $3, $4), so that
-- long-lived tasks are not read again by every call. Keeps a task while tasks that wait for it are not settled, or its
-- job has not moved on yet. Keeps a child until its workflow has ended or, if the result of the child is an object,
-- until the workflow is deleted. Objects are deleted by an effect. A batch is kept until it is written and its object
-- deleted.
with recursive space(name) as (
    (select t.namespace from windlass.task t where t.namespace >= $2 order by t.namespace limit 1)
    union all
    select (select t.namespace from windlass.task t where t.namespace > s.name order by t.namespace limit 1)
      from space s where s.name is not null
), old as (
    select t.id, t.namespace, t.idempotency_key, t.created_at,
           t.finished_at < $1 and not exists (select from windlass.edge e where e.upstream_id = t.id)
             and (t.job_id is null
                  or not exists (select from windlass.outbox x where x.task_id = t.id and x.kind = 'job' and x.dead_at is null))
             and coalesce((select p.finished_at is not null and substring(t.result from 1 for 1) is distinct from '@'::bytea
                             from windlass.task p where p.id = t.parent_id), true) as gone
      from space s
     cross join lateral (
           select t.* from windlass.task t
            where t.namespace = s.name and t.created_at < $1
              and (t.created_at, t.id) > {from_position((case when s.name = $2 then $3::timestamptz end),
                                                        (case when s.name = $2 then $4::uuid end))}
            order by t.created_at, t.id limit $5) t
     limit $5
), gone as (
    delete from windlass.task t
     where t.id = any(array(select o.id from old o where o.gone)) and t.finished_at < $1
    returning t.id, t.namespace, t.payload, t.result
), keys as (
    delete from windlass.idempotency i using old o
     where o.gone and i.namespace = o.namespace and i.key = o.idempotency_key and i.task_id = o.id
), progress as (
    delete from windlass.progress p using gone g where p.task_id = g.id
), heartbeats as (
    delete from windlass.heartbeat h using gone g where h.task_id = g.id
), checkpoints as (
    delete from windlass.checkpoint c using gone g where c.task_id = g.id
), log as (
    delete from windlass.log_line l using gone g where l.task_id = g.id
), steps as (
    delete from windlass.step s where s.task_id = any(array(select o.id from old o where o.gone))
    returning s.task_id, s.result
), attempts as (
    delete from windlass.step_attempt a where a.task_id = any(array(select o.id from old o where o.gone))
), signals as (
    delete from windlass.signal g where g.task_id = any(array(select o.id from old o where o.gone))
), events as (
    delete from windlass.event e where e.task_id = any(array(select o.id from old o where o.gone))
), publishes as (
    delete from windlass.publish p where p.task_id = any(array(select o.id from old o where o.gone))
       and (not p.buffered or p.removed_at is not null)
), referred as (
    select g.id as task_id, g.namespace, t.text from gone g cross join lateral (values (g.payload), (g.result)) as t(text)
    union all
    select s.task_id, o.namespace, s.result from steps s join old o on o.id = s.task_id
), objects as (
    insert into windlass.outbox as x (id, kind, namespace, task_id, attempt, body, available_at, created_at)
    select distinct on (1) md5(k.key)::uuid, 'delete_object', k.namespace, k.task_id, 0,
           jsonb_build_object('reference', k.reference), windlass.now(), windlass.now()
      from (select r.task_id, r.namespace, convert_from(r.text, 'UTF8') as reference,
                   substring(convert_from(r.text, 'UTF8') from 2)::jsonb ->> 'key' as key
              from referred r where substring(r.text from 1 for 1) = '@'::bytea offset 0) k
     where k.key like 'tasks/' || k.task_id || '/%'
    on conflict (id) do update set available_at = excluded.available_at
)
select (select count(*) from gone), (select count(*) from old), o.namespace, o.created_at, o.id
  from (select) nothing
  left join lateral (select o.namespace, o.created_at, o.id from old o
                      order by o.namespace desc, o.created_at desc, o.id desc limit 1) o on true

-- name: delete_empty_runs
-- Deletes runs without tasks that are older than an instant.
delete from windlass.run r
 where r.id in (select o.id from windlass.run o
                 where o.created_at < $1 and not exists (select from windlass.task t where t.run_id = o.id) limit $2)

-- name: history_partitions
-- Returns the names of the history partitions. Each name contains its day.
select c.relname from pg_inherits i
  join pg_class c on c.oid = i.inhrelid
 where i.inhparent = 'windlass.history'::regclass order by c.relname

-- name: default_history_days
-- Returns the days after this one for which the default partition holds entries.
select distinct (h.at at time zone 'utc')::date from windlass.history_default h
 where h.at >= ($1::date + 1)::timestamp at time zone 'utc'

-- name: delete_default_history
-- Deletes old history from the default partition, which holds the days that had no partition.
delete from windlass.history_default h where h.at < $1

-- name: now
-- Returns the time.
select windlass.now()

-- name: try_retention_lock
-- Tries to take the lock under which one engine at a time creates and drops partitions. Does not wait.
select pg_try_advisory_xact_lock(hashtext('windlass.retention'))

-- name: due_work
-- Returns whether any loop has something to do. An idle engine runs this query only. It reads the first timer from
-- its index, whatever the statistics are; with `exists` the planner might scan all tasks when none has a timer.
select exists (select from windlass.lease l
                where l.expires_at <= windlass.now() or l.draining_until <= windlass.now()),
       coalesce((select t.timer_at <= windlass.now() from windlass.task t
                  where t.timer_at is not null order by t.timer_at limit 1), false),
       exists (select from windlass.outbox o where o.dead_at is null and o.available_at <= windlass.now())
