-- name: insert_schedule
-- Adds a schedule, unless its id, its name or its request key exists (indexes schedule_name, schedule_request).
insert into windlass.schedule (id, namespace, name, app, kind, queue, cron, timezone, payload, priority, concurrency_key,
                               policy, wire, overlap, max_catchup, paused, settled_at, next_fire_at, created_at, updated_at,
                               declared_at, request_key, job_id)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::jsonb, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
        $23)
on conflict do nothing
returning id

-- name: find_schedule
-- Returns a schedule by its id, or by its namespace and name. Takes no lock.
select {schedule_columns} from windlass.schedule s
 where s.id = $1::uuid or ($1::uuid is null and s.namespace = $2 and s.name = $3)

-- name: find_request
-- Returns the schedule that this request created.
select {schedule_columns} from windlass.schedule s where s.namespace = $1 and s.request_key = $2

-- name: lock_schedule
-- Locks a schedule. A later statement reads the time.
select {schedule_columns} from windlass.schedule s where s.id = $1 for update

-- name: lock_declared_schedules
-- Locks the schedules that an app has declared, and those with one of its names, in the order of their ids.
select {schedule_columns} from windlass.schedule s
 where s.namespace = $1 and (s.app = $2 or s.name = any($3::text[])) order by s.id for update

-- name: list_schedules
-- Returns one page of schedules, newest first (index schedule_list).
select {schedule_columns} from windlass.schedule s
 where s.namespace = $1 and (s.created_at, s.id) < {beyond($2, $3)} and ($4::text is null or s.queue = $4)
 order by s.created_at desc, s.id desc limit $5

-- name: lock_due_schedules
-- Locks due schedules, the longest due first (index schedule_due). Skips those that another engine fires at this
-- moment.
select {schedule_columns}, windlass.now() from windlass.schedule s
 where not s.paused and s.next_fire_at <= windlass.now() order by s.next_fire_at limit $1 for update skip locked

-- name: lock_due_schedule
-- The same for one schedule.
select {schedule_columns}, windlass.now() from windlass.schedule s
 where s.id = $1 and not s.paused and s.next_fire_at <= windlass.now() for update skip locked

-- name: update_schedule
-- Writes every column that a person may change, as decided under the lock.
update windlass.schedule s
   set name = $2, kind = $3, queue = $4, cron = $5, timezone = $6, payload = $7, priority = $8, concurrency_key = $9,
       policy = $10::text::jsonb, wire = $11, overlap = $12, max_catchup = $13, paused = $14, settled_at = $15,
       next_fire_at = $16, problem = $17, updated_at = $18, declared_at = $19, extra_fire_at = $20,
       job_id = $21
 where s.id = $1

-- name: settle_schedules
-- Writes the columns that fires change, as decided under the locks.
update windlass.schedule s
   set settled_at = u.settled_at, next_fire_at = u.next_fire_at, last_fire_at = u.last_fire_at,
       last_task_id = u.last_task_id, fired = u.fired, skipped = u.skipped, problem = u.problem,
       extra_fire_at = u.extra_fire_at
  from unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[], $4::timestamptz[], $5::uuid[], $6::bigint[], $7::bigint[],
              $8::text[], $9::timestamptz[])
       as u(id, settled_at, next_fire_at, last_fire_at, last_task_id, fired, skipped, problem, extra_fire_at)
 where s.id = u.id

-- name: delete_schedules
-- Deletes schedules. The tasks that they submitted stay.
delete from windlass.schedule s where s.id = any($1::uuid[]) returning s.id

-- name: touch_declared_schedules
-- Records that running code still declares these schedules.
update windlass.schedule s set declared_at = windlass.now() where s.id = any($1::uuid[])

-- name: open_schedule_tasks
-- Returns the unfinished tasks of these schedules in the order of their creation, and whether others can wait for
-- them (index task_schedule_open).
select t.schedule_id, t.id, t.run_id is not distinct from t.schedule_id from windlass.task t
 where t.schedule_id = any($1::uuid[]) and t.finished_at is null order by t.created_at, t.id

-- name: list_schedule_tasks
-- Returns one page of the tasks of a schedule, newest first (index task_schedule).
select t.created_at, t.id from windlass.task t where t.schedule_id = $1 and (t.created_at, t.id) < {beyond($2, $3)}
 order by t.created_at desc, t.id desc limit $4

-- name: scheduler
-- Returns when an engine last looked for due schedules, the outages, the time, and when the next schedule is due
-- (index schedule_due).
select s.ticked_at, s.outages, windlass.now(),
       (select d.next_fire_at from windlass.schedule d where not d.paused and d.next_fire_at is not null
         order by d.next_fire_at limit 1)
  from windlass.scheduler s

-- name: lock_scheduler
-- Locks the row of the scheduler. A later statement reads the time.
select s.ticked_at, s.outages from windlass.scheduler s for update

-- name: outages
-- Returns the periods in which no engine looked for due schedules.
select s.outages from windlass.scheduler s

-- name: touch_scheduler
-- Records a fire as a sign of life, at most once in $2 seconds.
update windlass.scheduler s set ticked_at = $1
 where s.ticked_at < $1::timestamptz - $2::double precision * interval '1 second'

-- name: put_scheduler
-- Writes a sign of life and the outages.
update windlass.scheduler s set ticked_at = $1, outages = $2::text::jsonb
