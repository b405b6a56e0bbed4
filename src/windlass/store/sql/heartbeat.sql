-- name: open_dispatch
-- The lease under which the engines themselves begin attempts that they send out. It is nobody's, in no namespace, and
-- does not run out: each attempt has a lease of its own from then on.
insert into windlass.lease (id, namespace, worker, queues, ttl_s, expires_at, created_at)
values ($1, '', 'dispatch', '{}', 0, 'infinity', windlass.now()) on conflict (id) do nothing

-- name: send_out
-- Attempts that are sent out. Until they are delivered they cannot run out.
insert into windlass.heartbeat as h (task_id, attempt, timeout_ms, slack_ms, expires_at)
select u.task_id, u.attempt, $3, $4, 'infinity' from unnest($1::uuid[], $2::integer[]) as u(task_id, attempt)
on conflict (task_id) do update
   set attempt = excluded.attempt, timeout_ms = excluded.timeout_ms, slack_ms = excluded.slack_ms,
       expires_at = excluded.expires_at, heard_at = null, seen_at = null
 where h.attempt < excluded.attempt

-- name: delivered
-- The push has arrived: from now on the worker has so long to be heard of. One that was heard of already is left alone.
update windlass.heartbeat h set expires_at = windlass.now() + $3::double precision * interval '1 second'
 where h.task_id = $1 and h.attempt = $2 and h.expires_at = 'infinity'

-- name: pulses
-- What each of these attempts has to know to be answered, driven by their ids, in their order; takes no lock. `alive` if
-- nobody has found it silent, `covered` if what is written down lasts for the timeout from now on.
select u.task_id, t.namespace, t.run_id, t.state, t.attempt, t.outcome, t.lease_id, t.worker, t.cancel,
       coalesce(h.attempt = u.attempt, false) as alive,
       coalesce(h.heard_at is not null and h.expires_at >= c.now + h.timeout_ms * interval '1 millisecond', false) as covered,
       c.now
  from (select windlass.now() as now) c,
       unnest($1::uuid[], $2::integer[]) with ordinality as u(task_id, attempt, place)
  left join lateral (select * from windlass.task o where o.id = u.task_id offset 0) t on true
  left join lateral (select * from windlass.heartbeat o where o.task_id = u.task_id offset 0) h on true
 order by u.place

-- name: keep_alive
-- Signs of life of many attempts in one statement: they last for their timeout from now on, and somewhat longer. What was
-- found silent meanwhile is gone, and not returned. Nobody waits for the disk: a database that crashes has lost less than a
-- second of them, and is away for longer.
with quickly as materialized (select set_config('synchronous_commit', 'off', true))
update windlass.heartbeat h
   set expires_at = windlass.now() + (h.timeout_ms + h.slack_ms) * interval '1 millisecond', heard_at = windlass.now(),
       seen_at = coalesce(u.seen_at, windlass.now())
  from quickly, unnest($1::uuid[], $2::integer[], $3::timestamptz[]) as u(task_id, attempt, seen_at)
 where h.task_id = u.task_id and h.attempt = u.attempt
returning h.task_id, h.attempt

-- name: silent_attempts
-- Locks attempts of which nothing was heard for too long. The table is small and has no index on the time.
select h.task_id, h.attempt from windlass.heartbeat h
 where h.expires_at <= windlass.now() order by h.task_id limit $1 for update skip locked

-- name: forget_heartbeats
-- Of these attempts nothing more is expected.
delete from windlass.heartbeat h using unnest($1::uuid[], $2::integer[]) as u(task_id, attempt)
 where h.task_id = u.task_id and h.attempt = u.attempt

-- name: last_heartbeat
-- When the current attempt was last heard of, as far as that was written down.
select h.heard_at from windlass.heartbeat h join windlass.task t on t.id = h.task_id and t.attempt = h.attempt
 where h.task_id = $1

-- name: undelivered
-- How many attempts of a queue were sent out by this effect and have not arrived, as far as a limit (index outbox_due).
select count(*) from (
    select from windlass.outbox o
     where o.kind = $1 and o.dead_at is null and o.namespace = $2 and o.body ->> 'queue' = $3 limit $4) u

-- name: shortest_lease
-- The shortest lease of any queue whose workers claim tasks by their ids.
select min((q.delivery ->> 'lease_ms')::bigint) from windlass.queue q where q.delivery ->> 'type' = 'wakeup'

-- name: rotate_secret
-- A new secret signs what is sent for a queue; the one before signs it too, for so long.
update windlass.queue q
   set previous_secret = q.signing_secret, signing_secret = $3,
       secret_until = windlass.now() + $4::double precision * interval '1 second'
 where q.namespace = $1 and q.name = $2
returning q.name, pg_notify('windlass', 'settings')

-- name: token_keys
-- The key that signs tokens, and the one before it for as long as a token of it may live ($1 seconds after the change).
select k.id, k.secret from (
    select k.id, k.secret, k.created_at, lag(k.created_at) over (order by k.created_at desc, k.id desc) as replaced_at
      from windlass.token_key k) k
 where k.replaced_at is null or k.replaced_at > windlass.now() - $1::double precision * interval '1 second'
 order by k.created_at desc, k.id desc limit 2

-- name: lock_token_keys
-- One engine at a time makes a key.
select pg_advisory_xact_lock(hashtext('windlass.token_key'))

-- name: insert_token_key
-- A key that signs from now on. Those that open nothing any more are forgotten.
with gone as (
    delete from windlass.token_key k
     where k.id not in (select n.id from windlass.token_key n order by n.created_at desc, n.id desc limit 1)
)
insert into windlass.token_key (id, secret, created_at) values ($1, $2, windlass.now())

-- name: token_secrets
-- All keys of tokens.
select k.id, k.secret from windlass.token_key k order by k.id

-- name: set_token_secret
-- The same key in another form.
update windlass.token_key k set secret = $2 where k.id = $1
