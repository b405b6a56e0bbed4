-- name: lock_wakeups
-- Takes the lock under which one engine at a time decides which tasks of a queue are announced.
select pg_advisory_xact_lock(hashtextextended(concat_ws(chr(31), 'windlass.wakeup', $1::text, $2::text), 0))

-- name: forget_wakeups
-- Deletes the rows of tasks that were claimed, ended or sleep and need no message (index wakeup_queue, then task by
-- task).
delete from windlass.wakeup w
 where w.namespace = $1 and w.queue = $2
   and not exists (select from windlass.task t
                    where t.id = w.task_id and t.state = 'queued' and t.attempt = w.attempt and t.queue = w.queue)

-- name: announced_tasks
-- Counts the tasks of a queue with a message in flight, by kind and key: sent recently, or still in the outbox.
select t.kind, t.concurrency_key, count(*)
  from windlass.wakeup w join windlass.task t on t.id = w.task_id
 where w.namespace = $1 and w.queue = $2 and w.dead_at is null
   and (w.again_at > windlass.now()
        or exists (select from windlass.outbox o where o.task_id = w.task_id and o.kind = 'wakeup' and o.dead_at is null))
 group by t.kind, t.concurrency_key

-- name: ready_lanes
-- Returns the lanes after a position that hold tasks.
with recursive lanes as (
{lanes_after($1, $2, $3, $4)}
)
select l.priority, l.concurrency_key from lanes l limit $5

-- name: unannounced_tasks
-- Returns the oldest due tasks of the given lanes without a message in flight or a dead letter, at most `take` from
-- each lane and $6 in all (index task_ready), with the number of messages since the last attempt. Leaves out tasks
-- that require labels: workers that claim by id have none. Takes no locks: a message for a task that is claimed
-- meanwhile does no harm.
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
-- Records that messages are sent for these tasks, and when the next is due if no worker claims them.
insert into windlass.wakeup as w (task_id, attempt, namespace, queue, times, sent_at, again_at)
select u.task_id, u.attempt, $1, $2, u.times, windlass.now(), windlass.now() + u.again_s * interval '1 second'
  from unnest($3::uuid[], $4::integer[], $5::integer[], $6::double precision[]) as u(task_id, attempt, times, again_s)
on conflict (task_id) do update
   set attempt = excluded.attempt, namespace = excluded.namespace, queue = excluded.queue, times = excluded.times,
       sent_at = excluded.sent_at, again_at = excluded.again_at, dead_at = null

-- name: discard_dead_wakeups
-- Deletes the dead effects of tasks that are announced again (index outbox_task).
delete from windlass.outbox o where o.task_id = any($1::uuid[]) and o.kind = 'wakeup' and o.dead_at is not null

-- name: next_wakeup
-- Returns when the next message of a queue is due without a notification: a task of these lanes becomes due (index
-- task_ready), or one has to be announced again (index wakeup_queue).
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

-- name: resend_wakeups
-- Makes all tasks of these queues due for a message now, because the queues have a new carrier or address.
update windlass.wakeup w set again_at = windlass.now()
  from unnest($1::text[], $2::text[]) as u(namespace, queue)
 where w.namespace = u.namespace and w.queue = u.queue and w.dead_at is null

-- name: resend_lost
-- Makes messages due again that were sent long enough ago, because a worker waits for messages of this queue and
-- receives none. The wait doubles with each repeat (index wakeup_queue). Leaves out messages that are still in the
-- outbox, since they were not sent.
update windlass.wakeup w set again_at = windlass.now()
 where w.namespace = $1 and w.queue = $2 and w.dead_at is null and w.again_at > windlass.now()
   and w.sent_at <= windlass.now() - least($3::double precision * power(2, least(w.times, 30) - 1), $4::double precision)
                                     * interval '1 second'
   and not exists (select from windlass.outbox o where o.task_id = w.task_id and o.kind = 'wakeup' and o.dead_at is null)
returning w.task_id

-- name: resend_wakeup_soon
-- Makes the next message of a task due soon, because the last one was consumed before the task could be claimed.
update windlass.wakeup w set again_at = least(w.again_at, windlass.now() + $2::double precision * interval '1 second')
 where w.task_id = $1 and w.dead_at is null
returning w.namespace, w.queue, pg_notify('windlass', concat_ws(chr(31), 'queue', w.namespace, w.queue))

-- name: dead_letter_wakeup
-- Records that the message of a task is a dead letter. No other message is sent until it is replayed, or the task
-- starts another attempt.
update windlass.wakeup w set dead_at = windlass.now() where w.task_id = $1 and w.namespace = $2 and w.queue = $3

-- name: revive_wakeup
-- Makes a task with a dead letter due for a message now.
update windlass.wakeup w set dead_at = null, again_at = windlass.now()
 where w.task_id = $1 and w.dead_at is not null
returning w.namespace, w.queue, pg_notify('windlass', concat_ws(chr(31), 'queue', w.namespace, w.queue))

-- name: get_wakeup
-- Returns the state of the messages for a task.
select w.times, w.again_at, w.dead_at from windlass.wakeup w join windlass.task t on t.id = w.task_id
 where w.task_id = $1 and w.attempt = t.attempt and t.state = 'queued'

-- name: insert_dead_message
-- Adds a dead letter. The same message again is the same row; another body under the same carrier id is another
-- message.
insert into windlass.dead_message (id, namespace, queue, message_id, task_id, body, deliveries, reason, dead_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, windlass.now()) 
on conflict (namespace, queue, message_id, md5(body)) do nothing

-- name: list_dead_messages
-- Returns one page of dead letters, newest first (index dead_message_newest).
select d.id, d.namespace, d.queue, d.message_id, d.task_id, d.body, d.deliveries, d.reason, d.dead_at from windlass.dead_message d
 where d.namespace = $1 and (d.dead_at, d.id) < {beyond($2, $3)} and ($4::text is null or d.queue = $4)
 order by d.dead_at desc, d.id desc limit $5

-- name: count_dead_messages
-- Counts the dead letters of all namespaces.
select count(*) from windlass.dead_message

-- name: forget_dead_messages
-- Deletes old dead letters. Keeps one whose task still waits, since only its replay lets the task go on, and those of
-- batches, since no data is dropped silently.
delete from windlass.dead_message d
 where d.id = any(array(
       select o.id from windlass.dead_message o
        where o.dead_at < $1 and o.queue not like 'buffer.%'
          and not exists (select from windlass.wakeup w join windlass.task t on t.id = w.task_id
                           where w.task_id = o.task_id and w.dead_at is not null and w.attempt = t.attempt
                             and t.state = 'queued')
        limit $2))

-- name: get_dead_message
-- Returns one dead letter.
select d.id, d.namespace, d.queue, d.message_id, d.task_id, d.body, d.deliveries, d.reason, d.dead_at from windlass.dead_message d
 where d.id = $1

-- name: delete_dead_message
-- Deletes a dead letter that was replayed or discarded.
delete from windlass.dead_message d where d.id = $1 returning d.id
