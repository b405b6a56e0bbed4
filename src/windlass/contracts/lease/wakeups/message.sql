-- name: put_messages
-- Adds messages for workers. An id that exists is the same message.
insert into windlass.message (id, namespace, queue, body, visible_at, created_at)
select u.id, $1, $2, u.body, windlass.now(), windlass.now() from unnest($3::uuid[], $4::bytea[]) as u(id, body)
on conflict (id) do nothing

-- name: receive_messages
-- Receives the oldest visible messages, and hides them from other receivers for $4 seconds (index message_visible).
update windlass.message m
   set deliveries = m.deliveries + 1, visible_at = windlass.now() + $4::double precision * interval '1 second'
  from (select d.id, d.visible_at from windlass.message d
         where d.namespace = $1 and d.queue = $2 and d.visible_at <= windlass.now()
         order by d.visible_at limit $3 for update skip locked) due
 where m.id = due.id
returning m.id, m.deliveries, m.body, due.visible_at

-- name: next_message
-- Returns when the next message of a queue becomes visible (index message_visible).
select m.visible_at, windlass.now() from windlass.message m
 where m.namespace = $1 and m.queue = $2 order by m.visible_at limit 1

-- name: message_namespace
-- Returns the namespace of a message.
select m.namespace from windlass.message m where m.id = $1

-- name: extend_message
-- Hides a message for longer, unless it was delivered again.
update windlass.message m set visible_at = windlass.now() + $3::double precision * interval '1 second'
 where m.id = $1 and m.deliveries = $2 returning m.id

-- name: ack_messages
-- Deletes messages, except those that were delivered again. Locks them in the order of their ids, which avoids
-- deadlocks.
delete from windlass.message m
 where m.id = any(array(
       select d.id from windlass.message d join unnest($1::uuid[], $2::integer[]) as u(id, deliveries)
           on d.id = u.id and d.deliveries = u.deliveries order by d.id for update of d))
returning m.id

-- name: nack_message
-- Makes a message visible again after a delay, unless it was delivered again.
update windlass.message m set visible_at = windlass.now() + $3::double precision * interval '1 second'
 where m.id = $1 and m.deliveries = $2 returning m.id, m.namespace, m.queue

-- name: forget_messages
-- Deletes messages so old that their tasks have ended or were announced again. Keeps those of batches.
delete from windlass.message m
 where m.created_at < windlass.now() - $1::double precision * interval '1 second' and m.queue not like 'buffer.%'
