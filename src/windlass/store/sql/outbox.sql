-- name: insert_outbox
-- Effects, written with the change that decided them. The same effect again is the same row.
insert into windlass.outbox (id, kind, namespace, task_id, attempt, body, available_at, created_at)
select u.id, u.kind, u.namespace, u.task_id, u.attempt, u.body::jsonb, windlass.now(), windlass.now()
  from unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::integer[], $6::text[])
       as u(id, kind, namespace, task_id, attempt, body)
on conflict (id) do nothing

-- name: take_effects
-- Takes due effects of these kinds for a while, some ($4) for less ($5): who dies with them loses them to the next taker
-- (index outbox_due).
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
-- Effects that are carried out inside this very transaction, such as settling a run.
select o.id, o.kind, o.namespace, o.task_id, o.attempt, o.body, o.tries from windlass.outbox o
 where o.kind = $1 and o.dead_at is null and o.available_at <= windlass.now()
 order by o.available_at, o.id limit $2 for update skip locked

-- name: delete_effects
-- Carried out.
delete from windlass.outbox o where o.id = any($1::uuid[])

-- name: delay_effect
-- Not carried out this time: again later, with the reason.
update windlass.outbox o
   set available_at = windlass.now() + $2::double precision * interval '1 second', error = $3
 where o.id = $1

-- name: delay_effects
-- Could not be carried out now: again later. That was no try.
update windlass.outbox o set available_at = windlass.now() + $2::double precision * interval '1 second'
 where o.id = any($1::uuid[])

-- name: put_off_effect
-- Whoever gets it is busy: again later. That was no try; it says so if that goes on for too long ($4 seconds).
update windlass.outbox o
   set available_at = windlass.now() + $2::double precision * interval '1 second', error = $3,
       tries = greatest(0, o.tries - 1)
 where o.id = $1
returning o.created_at < windlass.now() - $4::double precision * interval '1 second'

-- name: bury_effect
-- Given up. The task is told in the same transaction.
update windlass.outbox o set dead_at = windlass.now(), error = $2 where o.id = $1 and o.dead_at is null

-- name: revive_effect
-- A dead letter is tried again, as if it were new.
update windlass.outbox o set dead_at = null, tries = 0, available_at = windlass.now()
 where o.id = $1 and o.dead_at is not null
returning o.id

-- name: discard_effect
-- A dead letter is thrown away.
delete from windlass.outbox o where o.id = $1 and o.dead_at is not null returning o.id
