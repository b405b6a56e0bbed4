-- name: insert_outbox
-- Writes effects, in the transaction of the change that decided them. A repeated effect is the same row.
insert into windlass.outbox (id, kind, namespace, task_id, attempt, body, available_at, created_at)
select u.id, u.kind, u.namespace, u.task_id, u.attempt, u.body::jsonb, windlass.now(), windlass.now()
  from unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::integer[], $6::text[])
       as u(id, kind, namespace, task_id, attempt, body)
on conflict (id) do nothing

-- name: take_effects
-- Takes due effects of these kinds for $3 seconds, and those of some kinds ($4) for $5. If the process that takes
-- them dies, another one takes them after that time (index outbox_due).
update windlass.outbox o
   set tries = o.tries + 1,
       available_at = windlass.now() + interval '1 second'
                                       * case when o.kind = any($4::text[]) then $5 else $3::double precision end
  from (select d.id from windlass.outbox d
         where d.kind = any($1::text[]) and d.dead_at is null and d.available_at <= windlass.now()
         order by d.available_at, d.id limit $2 for update skip locked) due
 where o.id = due.id
returning o.id, o.kind, o.namespace, o.task_id, o.attempt, o.body, o.tries

-- name: lock_effects
-- Locks due effects that this transaction carries out itself, such as settling a run.
select o.id, o.kind, o.namespace, o.task_id, o.attempt, o.body, o.tries from windlass.outbox o
 where o.kind = $1 and o.dead_at is null and o.available_at <= windlass.now()
 order by o.available_at, o.id limit $2 for update skip locked

-- name: delete_effects
-- Deletes effects that were carried out.
delete from windlass.outbox o where o.id = any($1::uuid[])

-- name: delay_effect
-- Delays an effect that failed, and records the reason.
update windlass.outbox o
   set available_at = windlass.now() + $2::double precision * interval '1 second', error = $3
 where o.id = $1

-- name: delay_effects
-- Delays effects that could not be attempted now. This does not count as a try.
update windlass.outbox o set available_at = windlass.now() + $2::double precision * interval '1 second'
 where o.id = any($1::uuid[])

-- name: put_off_effect
-- Delays an effect because its receiver is busy. This does not count as a try. Returns whether the effect is older
-- than $4 seconds.
update windlass.outbox o
   set available_at = windlass.now() + $2::double precision * interval '1 second', error = $3,
       tries = greatest(0, o.tries - 1)
 where o.id = $1
returning o.created_at < windlass.now() - $4::double precision * interval '1 second'

-- name: dead_letter_effect
-- Gives up an effect. The same transaction changes its task.
update windlass.outbox o set dead_at = windlass.now(), error = $2 where o.id = $1 and o.dead_at is null

-- name: revive_effect
-- Makes a dead effect due again, as if it were new.
update windlass.outbox o set dead_at = null, tries = 0, available_at = windlass.now()
 where o.id = $1 and o.dead_at is not null
returning o.id

-- name: discard_effect
-- Deletes a dead effect.
delete from windlass.outbox o where o.id = $1 and o.dead_at is not null returning o.id
