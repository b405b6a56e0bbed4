-- name: open_claim
-- Returns one row to begin a claim with: whether the lease is live (2 if it drains and takes no more), the config of
-- the queue, whether its delivery differs from the one that this lease claims for, the lanes after a position that
-- hold tasks, and the time. The key share lock keeps the lease live until the commit, because expiry skips locked
-- rows.
with recursive lease as materialized (
    select l.draining_until is null as takes from windlass.lease l
     where l.id = $1 and l.expires_at > windlass.now() for key share
), lanes as (
{lanes_after($2, $3, $4, $5)}
), found as (
    select * from lanes limit $6
)
select (select count(*) + count(*) filter (where not l.takes) from lease l) as live, q.config,
       coalesce(q.delivery ->> 'type', 'pull') <> $7::text as elsewhere,
       array(select priority from found) as priorities,
       array(select concurrency_key from found) as keys,
       windlass.now() as now
  from (select) one left join windlass.queue q on q.namespace = $2 and q.name = $3

-- name: check_claim
-- The short form of open_claim, used while the lanes read a moment ago are still good.
with lease as materialized (
    select l.draining_until is null as takes from windlass.lease l
     where l.id = $1 and l.expires_at > windlass.now() for key share
)
select (select count(*) + count(*) filter (where not l.takes) from lease l) as live, q.config,
       coalesce(q.delivery ->> 'type', 'pull') <> $4::text as elsewhere, windlass.now() as now
  from (select) one left join windlass.queue q on q.namespace = $2 and q.name = $3

-- name: claim_tasks
-- Locks the oldest due tasks of the given lanes, lane by lane in the given order, at most `take` from each and $7 in
-- all (index task_ready, from `floor_at` on). Skips locked rows.
select {task_columns}, t.payload
  from unnest($3::smallint[], $4::text[], $5::integer[], $6::timestamptz[]) as lane(priority, key, take, floor_at)
 cross join lateral (
       select * from windlass.task t
        where t.namespace = $1 and t.queue = $2 and t.state = 'queued'
          and t.priority = lane.priority and t.concurrency_key = lane.key
          and t.available_at >= lane.floor_at and t.available_at <= windlass.now()
          and ($8::text[] is null or t.kind = any($8)) and t.kind <> all($9::text[])
          and (t.requires is null or t.requires <@ $10::text[])
        order by t.available_at limit lane.take
          for update skip locked) t
 limit $7

-- name: claimed_at_once
-- Returns the attempts that a claim began. Read when the reply to the claim was lost.
select {task_columns}, t.payload
  from windlass.task t
 where t.namespace = $1 and t.queue = $2 and t.state = 'running' and t.lease_id = $3 and t.claim_id = $4

-- name: claimed_tasks
-- Returns those of these attempts that run under a lease. Read when the reply to a commit was lost. `offset 0` makes
-- it look up the tasks by id: without statistics the planner may expect fewer running tasks than ids and scan those
-- instead.
select {task_columns}, t.payload
  from unnest($2::uuid[], $3::integer[]) as u(id, attempt)
  cross join lateral (select * from windlass.task o where o.id = u.id offset 0) t
 where t.attempt = u.attempt and t.lease_id = $1 and t.state = 'running'

-- name: next_due
-- For a claim that found nothing: returns when the next task of these lanes becomes due, and whether a due task could
-- have been claimed had its row not been locked (index task_ready).
select min(n.available_at), coalesce(bool_or(h.locked), false)
  from unnest($3::smallint[], $4::text[]) as lane(priority, key)
  left join lateral (
       select t.available_at from windlass.task t
        where t.namespace = $1 and t.queue = $2 and t.state = 'queued'
          and t.priority = lane.priority and t.concurrency_key = lane.key and t.available_at > windlass.now()
        order by t.available_at limit 1) n on true
  left join lateral (
       select true as locked from windlass.task t
        where t.namespace = $1 and t.queue = $2 and t.state = 'queued'
          and t.priority = lane.priority and t.concurrency_key = lane.key and t.available_at <= windlass.now()
          and ($5::text[] is null or t.kind = any($5)) and t.kind <> all($6::text[])
          and (t.requires is null or t.requires <@ $7::text[])
        order by t.available_at limit 1) h on true

-- name: lock_queue
-- Locks a queue, so that one transaction at a time decides its limits. Later statements count what runs.
select q.config from windlass.queue q where q.namespace = $1 and q.name = $2 for update

-- name: queue_running
-- Counts what runs in a queue, by kind and key (index task_running).
select t.kind, t.concurrency_key, count(*)
  from windlass.task t
 where t.namespace = $1 and t.queue = $2 and t.state = 'running'
 group by t.kind, t.concurrency_key

-- name: rate_starts
-- Returns the starts within a window, oldest first.
select r.at, r.count from windlass.rate_start r
 where r.namespace = $1 and r.queue = $2 and r.at > windlass.now() - $3::double precision * interval '1 second'
 order by r.at

-- name: insert_rate_start
-- Records a batch of starts, and deletes those that have left every window of this queue.
with gone as (
    delete from windlass.rate_start r
     where r.namespace = $1 and r.queue = $2 and r.at <= $3::timestamptz - $5::double precision * interval '1 second'
)
insert into windlass.rate_start (namespace, queue, at, count) values ($1, $2, $3, $4)

-- name: put_queue
-- Sets the config of a queue, and notifies the queue.
with set as (
    insert into windlass.queue (namespace, name, config) values ($1, $2, $3::text::jsonb)
    on conflict (namespace, name) do update set config = excluded.config
)
select pg_notify('windlass', concat_ws(chr(31), 'queue', $1, $2))

-- name: get_queue
-- Returns the config of a queue.
select q.config from windlass.queue q where q.namespace = $1 and q.name = $2

-- name: queue_secrets
-- Returns the secrets of every queue that has one.
select q.namespace, q.name, q.signing_secret, q.previous_secret from windlass.queue q
 where q.signing_secret is not null or q.previous_secret is not null
 order by q.namespace, q.name

-- name: set_queue_secrets
-- Replaces the secrets of a queue by the same secrets under another encryption.
update windlass.queue q set signing_secret = $3, previous_secret = $4 where q.namespace = $1 and q.name = $2
returning pg_notify('windlass', 'settings')

-- name: queues_delivered
-- Returns the settings of all queues with one of these deliveries, in all namespaces.
select q.namespace, q.name, q.config, q.delivery, q.policy, q.signing_secret,
       case when q.secret_until > windlass.now() then q.previous_secret end
  from windlass.queue q where q.delivery ->> 'type' = any($1::text[]) order by q.namespace, q.name

-- name: get_settings
-- Returns the settings of the queues with these names, or of all.
select q.name, q.config, q.delivery, q.policy, q.signing_secret,
       case when q.secret_until > windlass.now() then q.previous_secret end
  from windlass.queue q where q.namespace = $1 and ($2::text[] is null or q.name = any($2)) order by q.name

-- name: put_settings
-- Sets all settings of a queue, and notifies every waiting call. Keeps a secret that exists.
with set as (
    insert into windlass.queue as q (namespace, name, config, delivery, policy, signing_secret)
    values ($1, $2, $3::text::jsonb, $4::text::jsonb, $5::text::jsonb, $6)
    on conflict (namespace, name) do update
       set config = excluded.config, delivery = excluded.delivery, policy = excluded.policy,
           signing_secret = coalesce(q.signing_secret, excluded.signing_secret)
)
select pg_notify('windlass', 'settings')
