-- name: open_claim
-- One row to begin a claim with: is the lease live (and kept so until the commit: a key share lock makes expiry pass it
-- by; 2 if it drains and takes no more), what is set for the queue, whether its tasks reach their workers in another way
-- than this lease takes them, which lanes hold tasks beyond a position, and the time.
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
-- The short form of open_claim, for when the lanes are known from a moment ago.
with lease as materialized (
    select l.draining_until is null as takes from windlass.lease l
     where l.id = $1 and l.expires_at > windlass.now() for key share
)
select (select count(*) + count(*) filter (where not l.takes) from lease l) as live, q.config,
       coalesce(q.delivery ->> 'type', 'pull') <> $4::text as elsewhere, windlass.now() as now
  from (select) one left join windlass.queue q on q.namespace = $2 and q.name = $3

-- name: claim_tasks
-- Locks the oldest due tasks of the given lanes, lane by lane in the given order, at most `take` from each and $7 in all
-- (index task_ready, from `floor_at` on). What somebody else has locked is passed by.
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

-- name: start_due
-- Begins the oldest due tasks of one lane in the statement that selects them, where nothing is to be decided between the
-- two: the lease is live (and kept so, see open_claim) and takes what is delivered in this way, nobody limited the queue,
-- and it has no other lane. The lane is given by who knows it, otherwise found as open_claim does. What it writes is what the rule `core.task.claim` says, and a
-- test holds the two together; the claim is written too, for claimed_at_once. The ids go through an array, so that the
-- update is driven from them to the primary key whatever the planner believes of their number. One row tells of the
-- claim; beside it there is one for each task, with those of its columns that are not the same for all of them.
with recursive lease as materialized (
    select l.draining_until is null as takes from windlass.lease l
     where l.id = $1 and l.expires_at > windlass.now() for key share
), queue as materialized (
    select q.config, coalesce(q.delivery ->> 'type', 'pull') <> $12::text as elsewhere from windlass.queue q
     where q.namespace = $3 and q.name = $4
       and (q.config <> '{}' or coalesce(q.delivery ->> 'type', 'pull') <> $12::text)
), lanes as (
    (select t.priority, t.concurrency_key from windlass.task t
      where t.namespace = $3 and t.queue = $4 and t.state = 'queued' and $6::smallint is null
      order by t.priority, t.concurrency_key limit 1)
    union all
    select n.priority, n.concurrency_key
      from lanes l cross join lateral (
           select t.priority, t.concurrency_key from windlass.task t
            where t.namespace = $3 and t.queue = $4 and t.state = 'queued'
              and (t.priority, t.concurrency_key) > (l.priority, l.concurrency_key)
            order by t.priority, t.concurrency_key limit 1) n
), found as materialized (
    select * from (select $6::smallint as priority, $7::text as key where $6::smallint is not null
                   union all select * from lanes) l limit 2
), due as materialized (
    select t.id from windlass.task t
     where t.namespace = $3 and t.queue = $4 and t.state = 'queued'
       and t.priority = (select f.priority from found f limit 1)
       and t.concurrency_key = (select f.key from found f limit 1)
       and t.available_at >= $8 and t.available_at <= windlass.now()
       and ($10::text[] is null or t.kind = any($10)) and (t.requires is null or t.requires <@ $11::text[])
       and (select count(*) from lease l where l.takes) = 1 and (select count(*) from queue) = 0
       and (select count(*) from found) = 1
     order by t.available_at limit $9 for update skip locked
), started as (
    update windlass.task t
       set state = 'running', attempt = t.attempt + 1, outcome = null, lease_id = $1, worker = $2, claim_id = $5,
           started_at = windlass.now(),
           timer_at = least(t.deadline_at, windlass.now() + (t.policy ->> 'timeout_s')::double precision
                                                            * interval '1 second')
     where t.id = any(array(select d.id from due d))
    returning {started_columns}, t.payload
)
select a.live, a.config, a.elsewhere, a.priorities, a.keys, a.now, s.*
  from (select (select count(*) + count(*) filter (where not l.takes) from lease l) as live,
               (select q.config from queue q) as config,
               coalesce((select q.elsewhere from queue q), false) as elsewhere,
               array(select f.priority from found f) as priorities, array(select f.key from found f) as keys,
               windlass.now() as now) a
  full join started s on false

-- name: claimed_at_once
-- What a claim began: asked when its reply was lost.
select {task_columns}, t.payload
  from windlass.task t
 where t.namespace = $1 and t.queue = $2 and t.state = 'running' and t.lease_id = $3 and t.claim_id = $4

-- name: claimed_tasks
-- Which of these attempts are ours: asked when the reply to a commit was lost. One by one by their ids (`offset 0`), since
-- without statistics the planner may take all that runs to be fewer.
select {task_columns}, t.payload
  from unnest($2::uuid[], $3::integer[]) as u(id, attempt)
  cross join lateral (select * from windlass.task o where o.id = u.id offset 0) t
 where t.attempt = u.attempt and t.lease_id = $1 and t.state = 'running'

-- name: next_due
-- For a claim that found nothing: when the first task of these lanes that is not due yet becomes so, and whether one is
-- due that could have been claimed, had not somebody held its row (index task_ready).
select min(n.available_at), coalesce(bool_or(h.held), false)
  from unnest($3::smallint[], $4::text[]) as lane(priority, key)
  left join lateral (
       select t.available_at from windlass.task t
        where t.namespace = $1 and t.queue = $2 and t.state = 'queued'
          and t.priority = lane.priority and t.concurrency_key = lane.key and t.available_at > windlass.now()
        order by t.available_at limit 1) n on true
  left join lateral (
       select true as held from windlass.task t
        where t.namespace = $1 and t.queue = $2 and t.state = 'queued'
          and t.priority = lane.priority and t.concurrency_key = lane.key and t.available_at <= windlass.now()
          and ($5::text[] is null or t.kind = any($5)) and t.kind <> all($6::text[])
          and (t.requires is null or t.requires <@ $7::text[])
        order by t.available_at limit 1) h on true

-- name: lock_queue
-- The lock under which the limits of a queue are decided. Counts are taken by later statements.
select q.config from windlass.queue q where q.namespace = $1 and q.name = $2 for update

-- name: queue_running
-- What runs in a queue (index task_running), with the time.
select t.kind, t.concurrency_key, count(*)
  from windlass.task t
 where t.namespace = $1 and t.queue = $2 and t.state = 'running'
 group by t.kind, t.concurrency_key

-- name: rate_starts
-- The starts within a window, oldest first.
select r.at, r.count from windlass.rate_start r
 where r.namespace = $1 and r.queue = $2 and r.at > windlass.now() - $3::double precision * interval '1 second'
 order by r.at

-- name: insert_rate_start
-- Records a batch of starts and forgets those that no window of this queue can contain any more.
with gone as (
    delete from windlass.rate_start r
     where r.namespace = $1 and r.queue = $2 and r.at <= $3::timestamptz - $5::double precision * interval '1 second'
)
insert into windlass.rate_start (namespace, queue, at, count) values ($1, $2, $3, $4)

-- name: put_queue
-- Sets what an operator wants of a queue, and wakes it.
with set as (
    insert into windlass.queue (namespace, name, config) values ($1, $2, $3::text::jsonb)
    on conflict (namespace, name) do update set config = excluded.config
)
select pg_notify('windlass', concat_ws(chr(31), 'queue', $1, $2))

-- name: get_queue
-- What was set for a queue.
select q.config from windlass.queue q where q.namespace = $1 and q.name = $2

-- name: queue_secrets
-- What is signed with, for every queue that has a secret.
select q.namespace, q.name, q.signing_secret, q.previous_secret from windlass.queue q
 where q.signing_secret is not null or q.previous_secret is not null
 order by q.namespace, q.name

-- name: set_queue_secrets
-- The same secrets in another form.
update windlass.queue q set signing_secret = $3, previous_secret = $4 where q.namespace = $1 and q.name = $2
returning pg_notify('windlass', 'settings')

-- name: list_queues
-- All queues that somebody configured.
select q.name, q.config from windlass.queue q where q.namespace = $1 order by q.name

-- name: queues_delivered
-- All that was set for the queues whose tasks reach their workers in one of these ways, in all namespaces.
select q.namespace, q.name, q.config, q.delivery, q.policy, q.signing_secret,
       case when q.secret_until > windlass.now() then q.previous_secret end
  from windlass.queue q where q.delivery ->> 'type' = any($1::text[]) order by q.namespace, q.name

-- name: get_settings
-- All that was set for queues: those with these names, or every one.
select q.name, q.config, q.delivery, q.policy, q.signing_secret,
       case when q.secret_until > windlass.now() then q.previous_secret end
  from windlass.queue q where q.namespace = $1 and ($2::text[] is null or q.name = any($2)) order by q.name

-- name: put_settings
-- Sets all of what an operator wants of a queue, and wakes everybody. A secret that is there stays.
with set as (
    insert into windlass.queue as q (namespace, name, config, delivery, policy, signing_secret)
    values ($1, $2, $3::text::jsonb, $4::text::jsonb, $5::text::jsonb, $6)
    on conflict (namespace, name) do update
       set config = excluded.config, delivery = excluded.delivery, policy = excluded.policy,
           signing_secret = coalesce(q.signing_secret, excluded.signing_secret)
)
select pg_notify('windlass', 'settings')
