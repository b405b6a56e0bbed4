-- name: open_dispatch
-- Adds the lease under which engines dispatch attempts. It belongs to no worker and no namespace and never expires:
-- each attempt has a token of its own.
insert into windlass.lease (id, namespace, worker, queues, ttl_s, expires_at, created_at)
values ($1, '', 'dispatch', '{}', 0, 'infinity', windlass.now()) on conflict (id) do nothing

-- name: insert_heartbeats
-- Adds the heartbeat rows of attempts that are dispatched. They cannot expire before the attempt is delivered.
insert into windlass.heartbeat as h (task_id, attempt, timeout_ms, slack_ms, expires_at)
select u.task_id, u.attempt, u.timeout_ms, least($4, u.timeout_ms), 'infinity'
  from unnest($1::uuid[], $2::integer[], $3::bigint[]) as u(task_id, attempt, timeout_ms)
on conflict (task_id) do update
   set attempt = excluded.attempt, timeout_ms = excluded.timeout_ms, slack_ms = excluded.slack_ms,
       expires_at = excluded.expires_at, heartbeat_at = null
 where h.attempt < excluded.attempt

-- name: delivered
-- Starts the timeout for the first heartbeat of an attempt that was delivered. Leaves a row alone that has a
-- heartbeat already.
update windlass.heartbeat h set expires_at = windlass.now() + $3::double precision * interval '1 second'
 where h.task_id = $1 and h.attempt = $2 and h.expires_at = 'infinity'

-- name: attempt_statuses
-- Returns what the answer to a heartbeat needs to know of each of these attempts, in their order. `alive`: the
-- attempt was not found silent. `covered`: the stored expiry lasts for the whole timeout from now on. Looks up the
-- rows by id and takes no lock.
select u.task_id, t.namespace, t.run_id, t.state, t.attempt, t.outcome, t.lease_id, t.worker, t.cancel,
       coalesce(h.attempt = u.attempt, false) as alive,
       coalesce(h.heartbeat_at is not null and h.expires_at >= c.now + h.timeout_ms * interval '1 millisecond', false)
           as covered, c.now
  from (select windlass.now() as now) c,
       unnest($1::uuid[], $2::integer[]) with ordinality as u(task_id, attempt, place)
  left join lateral (select * from windlass.task o where o.id = u.task_id offset 0) t on true
  left join lateral (select * from windlass.heartbeat o where o.task_id = u.task_id offset 0) h on true
 order by u.place

-- name: keep_alive
-- Writes heartbeats of many attempts: each lasts for its timeout from now on, and its slack. An attempt that was
-- found silent has no row and is not returned. The commit does not wait for the disk: a crash of the database loses
-- less than a second of heartbeats, and its restart takes longer than that.
with quickly as materialized (select set_config('synchronous_commit', 'off', true))
update windlass.heartbeat h
   set expires_at = windlass.now() + (h.timeout_ms + h.slack_ms) * interval '1 millisecond',
       heartbeat_at = windlass.now()
  from quickly, unnest($1::uuid[], $2::integer[]) as u(task_id, attempt)
 where h.task_id = u.task_id and h.attempt = u.attempt
returning h.task_id, h.attempt

-- name: silent_attempts
-- Locks attempts whose heartbeat has expired. The table is small and has no index on the time.
select h.task_id, h.attempt from windlass.heartbeat h
 where h.expires_at <= windlass.now() order by h.task_id limit $1 for update skip locked

-- name: forget_heartbeats
-- Deletes the heartbeat rows of attempts that have ended.
delete from windlass.heartbeat h using unnest($1::uuid[], $2::integer[]) as u(task_id, attempt)
 where h.task_id = u.task_id and h.attempt = u.attempt

-- name: last_heartbeat
-- Returns the time of the last heartbeat of the current attempt.
select h.heartbeat_at from windlass.heartbeat h join windlass.task t on t.id = h.task_id and t.attempt = h.attempt
 where h.task_id = $1

-- name: undelivered
-- Counts the attempts of a queue that were dispatched by this effect and are not delivered yet, up to a limit (index
-- outbox_due).
select count(*) from (
    select from windlass.outbox o
     where o.kind = $1 and o.dead_at is null and o.namespace = $2 and o.body ->> 'queue' = $3 limit $4) u

-- name: shortest_lease
-- Returns the shortest lease of any queue whose workers claim tasks by id, and of any job of a DAG.
select least((select min((q.delivery ->> 'lease_ms')::bigint) from windlass.queue q where q.delivery ->> 'type' = 'wakeup'),
             (select 1000 * min((j.definition #>> '{limits,heartbeat_timeout_seconds}')::bigint)
                from windlass.deployment d join windlass.deployment_job j on j.deployment_id = d.id
               where d.state in ('active', 'building', 'ready')))

-- name: rotate_secret
-- Sets a new signing secret for a queue. The previous one signs as well, for $4 seconds.
update windlass.queue q
   set previous_secret = q.signing_secret, signing_secret = $3,
       secret_until = windlass.now() + $4::double precision * interval '1 second'
 where q.namespace = $1 and q.name = $2
returning q.name, pg_notify('windlass', 'settings')

-- name: token_keys
-- Returns the key that signs tokens, and the one before it while tokens signed with it may live ($1 seconds after the
-- change).
select k.id, k.secret from (
    select k.id, k.secret, k.created_at, lag(k.created_at) over (order by k.created_at desc, k.id desc) as replaced_at
      from windlass.token_key k) k
 where k.replaced_at is null or k.replaced_at > windlass.now() - $1::double precision * interval '1 second'
 order by k.created_at desc, k.id desc limit 2

-- name: lock_token_keys
-- Takes the lock under which one engine at a time makes a key.
select pg_advisory_xact_lock(hashtext('windlass.token_key'))

-- name: insert_token_key
-- Adds a key that signs from now on. Deletes all but the last two.
with gone as (
    delete from windlass.token_key k
     where k.id not in (select n.id from windlass.token_key n order by n.created_at desc, n.id desc limit 1)
)
insert into windlass.token_key (id, secret, created_at) values ($1, $2, windlass.now())

-- name: token_secrets
-- Returns all keys that sign tokens.
select k.id, k.secret from windlass.token_key k order by k.id

-- name: set_token_secret
-- Replaces a key by the same key under another encryption.
update windlass.token_key k set secret = $2 where k.id = $1
