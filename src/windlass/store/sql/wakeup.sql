-- name: lock_wakeups
-- One engine at a time decides which tasks of a queue messages are sent for.
select pg_advisory_xact_lock(hashtextextended(concat_ws(chr(31), 'windlass.wakeup', $1::text, $2::text), 0))

-- name: forget_wakeups
-- Whose task was claimed, ended or has gone to sleep needs no message any more (index wakeup_queue, then task by task).
delete from windlass.wakeup w
 where w.namespace = $1 and w.queue = $2
   and not exists (select from windlass.task t
                    where t.id = w.task_id and t.state = 'queued' and t.attempt = w.attempt and t.queue = w.queue)

-- name: announced_tasks
-- For how many tasks of a queue a message is under way, by kind and key: sent a while ago at most, or still to be sent.
select t.kind, t.concurrency_key, count(*)
  from windlass.wakeup w join windlass.task t on t.id = w.task_id
 where w.namespace = $1 and w.queue = $2 and w.dead_at is null
   and (w.again_at > windlass.now()
        or exists (select from windlass.outbox o where o.task_id = w.task_id and o.kind = 'wakeup' and o.dead_at is null))
 group by t.kind, t.concurrency_key

-- name: ready_lanes
-- Which lanes hold tasks beyond a position.
with recursive lanes as (
{lanes_after($1, $2, $3, $4)}
)
select l.priority, l.concurrency_key from lanes l limit $5

-- name: unannounced_tasks
-- The oldest due tasks of the given lanes for which no message is under way and none was buried, at most `take` from each
-- and $6 in all (index task_ready), with how often one was sent since the last attempt. One that requires
-- labels is claimed by nobody who is woken. Takes no locks: a message for a task that is claimed meanwhile does no harm.
select t.id, t.attempt, t.priority, t.concurrency_key, t.times
  from unnest($3::smallint[], $4::text[], $5::integer[]) as lane(priority, key, take)
 cross join lateral (
       select t.id, t.attempt, t.priority, t.concurrency_key, coalesce(w.times, 0) as times
         from windlass.task t
         left join windlass.wakeup w on w.task_id = t.id and w.attempt = t.attempt
        where t.namespace = $1 and t.queue = $2 and t.state = 'queued'
          and t.priority = lane.priority and t.concurrency_key = lane.key
          and t.available_at <= windlass.now() and t.kind <> all($7::text[]) and coalesce(t.requires, '{}') = '{}'
          and (w.task_id is null
               or (w.dead_at is null and w.again_at <= windlass.now()
                   and not exists (select from windlass.outbox o
                                    where o.task_id = t.id and o.kind = 'wakeup' and o.dead_at is null)))
        order by t.available_at limit lane.take) t
 limit $6

-- name: put_wakeups
-- Messages are sent for these tasks; when again, if nobody claims them.
insert into windlass.wakeup as w (task_id, attempt, namespace, queue, times, sent_at, again_at)
select u.task_id, u.attempt, $1, $2, u.times, windlass.now(), windlass.now() + u.again_s * interval '1 second'
  from unnest($3::uuid[], $4::integer[], $5::integer[], $6::double precision[]) as u(task_id, attempt, times, again_s)
on conflict (task_id) do update
   set attempt = excluded.attempt, namespace = excluded.namespace, queue = excluded.queue, times = excluded.times,
       sent_at = excluded.sent_at, again_at = excluded.again_at, dead_at = null

-- name: discard_dead_wakeups
-- Effects that were given up for tasks of which is spoken again (index outbox_task).
delete from windlass.outbox o where o.task_id = any($1::uuid[]) and o.kind = 'wakeup' and o.dead_at is not null

-- name: next_wakeup
-- When something is to be sent in a queue, if nothing happens before: a task of these lanes becomes due (index task_ready),
-- or one has to be spoken of again (index wakeup_queue).
select least(
    (select min(n.available_at)
       from unnest($3::smallint[], $4::text[]) as lane(priority, key)
      cross join lateral (
            select t.available_at from windlass.task t
             where t.namespace = $1 and t.queue = $2 and t.state = 'queued'
               and t.priority = lane.priority and t.concurrency_key = lane.key and t.available_at > windlass.now()
             order by t.available_at limit 1) n),
    (select min(w.again_at) from windlass.wakeup w
      where w.namespace = $1 and w.queue = $2 and w.dead_at is null and w.again_at > windlass.now()))

-- name: hasten_wakeups
-- The workers of these queues look elsewhere now: each task of theirs is spoken of there.
update windlass.wakeup w set again_at = windlass.now()
  from unnest($1::text[], $2::text[]) as u(namespace, queue)
 where w.namespace = u.namespace and w.queue = u.queue and w.dead_at is null

-- name: hasten_unheard
-- Somebody waits for messages of this queue and gets none: those that left a while ago are sent again, each with more
-- patience than the time before (index wakeup_queue). What the outbox still has was not sent.
update windlass.wakeup w set again_at = windlass.now()
 where w.namespace = $1 and w.queue = $2 and w.dead_at is null and w.again_at > windlass.now()
   and w.sent_at <= windlass.now() - least($3::double precision * power(2, least(w.times, 30) - 1), $4::double precision)
                                     * interval '1 second'
   and not exists (select from windlass.outbox o where o.task_id = w.task_id and o.kind = 'wakeup' and o.dead_at is null)
returning w.task_id

-- name: hasten_wakeup
-- A message came before its task could be claimed, and is gone: another one soon.
update windlass.wakeup w set again_at = least(w.again_at, windlass.now() + $2::double precision * interval '1 second')
 where w.task_id = $1 and w.dead_at is null
returning w.namespace, w.queue, pg_notify('windlass', concat_ws(chr(31), 'queue', w.namespace, w.queue))

-- name: bury_wakeup
-- The message of a task was buried: no other is sent until somebody wants it, or the task has moved on.
update windlass.wakeup w set dead_at = windlass.now() where w.task_id = $1 and w.namespace = $2 and w.queue = $3

-- name: revive_wakeup
-- Speak of a task again, now.
update windlass.wakeup w set dead_at = null, again_at = windlass.now()
 where w.task_id = $1 and w.dead_at is not null
returning w.namespace, w.queue, pg_notify('windlass', concat_ws(chr(31), 'queue', w.namespace, w.queue))

-- name: get_wakeup
-- What is known of the messages for a task.
select w.times, w.again_at, w.dead_at from windlass.wakeup w join windlass.task t on t.id = w.task_id
 where w.task_id = $1 and w.attempt = t.attempt and t.state = 'queued'

-- name: insert_dead_message
-- A message that nobody could do anything with. The same again is the same row; another body under an id that a carrier
-- gave twice is another message.
insert into windlass.dead_message (id, namespace, queue, message_id, task_id, body, deliveries, reason, dead_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, windlass.now()) 
on conflict (namespace, queue, message_id, md5(body)) do nothing

-- name: list_dead_messages
-- The newest first, beyond a position (index dead_message_newest).
select d.id, d.namespace, d.queue, d.message_id, d.task_id, d.body, d.deliveries, d.reason, d.dead_at from windlass.dead_message d
 where d.namespace = $1 and (d.dead_at, d.id) < {beyond($2, $3)} and ($4::text is null or d.queue = $4)
 order by d.dead_at desc, d.id desc limit $5

-- name: count_dead_messages
-- In all namespaces.
select count(*) from windlass.dead_message

-- name: forget_dead_messages
-- Those that nobody has looked at for so long. One whose task still waits for it is kept: it is the only way to go on.
delete from windlass.dead_message d
 where d.id = any(array(
       select o.id from windlass.dead_message o
        where o.dead_at < $1
          and not exists (select from windlass.wakeup w join windlass.task t on t.id = w.task_id
                           where w.task_id = o.task_id and w.dead_at is not null and w.attempt = t.attempt
                             and t.state = 'queued')
        limit $2))

-- name: get_dead_message
-- One of them.
select d.id, d.namespace, d.queue, d.message_id, d.task_id, d.body, d.deliveries, d.reason, d.dead_at from windlass.dead_message d
 where d.id = $1

-- name: delete_dead_message
-- Somebody has looked at it.
delete from windlass.dead_message d where d.id = $1 returning d.id
