-- name: feed_is_on
-- Returns whether changes are recorded.
select exists (select from pg_trigger t where t.tgrelid = 'windlass.task'::regclass and t.tgname = 'record_new')

-- name: record_changes
-- Creates the triggers that record changes, or drops them.
select windlass.record_changes($1::boolean)

-- name: begin_feed
-- Records that the feed begins with this transaction. The lock that it holds excludes every transaction that writes
-- tasks.
update windlass.feed f set since = pg_current_xact_id(), read_at = windlass.now()

-- name: touch_feed
-- Records that the feed is being read, at most once a minute.
update windlass.feed f set read_at = windlass.now() where f.read_at < windlass.now() - interval '1 minute'

-- name: feed_position
-- Returns the current position of the feed.
select pg_current_snapshot()::text

-- name: feed_reaches
-- Returns whether the feed still has every change after this position: changes were recorded when the position was
-- taken, and no change after it was deleted.
select coalesce(pg_visible_in_snapshot(f.since, $1::text::pg_snapshot), false)
       and pg_snapshot_xmin($1::text::pg_snapshot) > f.forgotten
  from windlass.feed f

-- name: list_changes
-- Returns the changes that became visible after one position ($2) and up to another ($3, or now), from a row on ($4).
-- The changes of one task are in the order in which they happened, because a row gets its number while its task is
-- locked (index change_order).
select s.upto::text, c.id, c.at, c.namespace, c.queue, c.kind, c.state, c.task_ids, c.attempts
  from (select coalesce($3::text::pg_snapshot, pg_current_snapshot()) as upto) s
  left join lateral (
       select * from windlass.change c
        where c.tx >= pg_snapshot_xmin($2::text::pg_snapshot)
          and not pg_visible_in_snapshot(c.tx, $2::text::pg_snapshot) and pg_visible_in_snapshot(c.tx, s.upto)
          and c.id >= $4 and ($1::text is null or c.namespace = $1)
        order by c.id limit $5) c on true
 order by c.id

-- name: forget_changes
-- Deletes the oldest changes from before an instant, and records up to which transaction (index change_order).
with old as (
    select c.tx, c.id, c.at from windlass.change c order by c.tx, c.id limit $2
), gone as (
    delete from windlass.change c using old o
     where c.tx = o.tx and c.id = o.id and o.at < $1
    returning c.tx
), recorded as (
    update windlass.feed f set forgotten = greatest(f.forgotten, g.tx)
      from (select g.tx from gone g order by g.tx desc limit 1) g
)
select count(*) from gone

-- name: feed_is_unread
-- Returns whether the feed was last read before an instant. Locks the row: a reader that starts at the same time
-- (`touch_feed`) either comes first and is counted here, or waits and finds what this transaction did.
select f.read_at < $1 from windlass.feed f for update
