-- name: feed_is_on
-- Whether changes are recorded.
select exists (select from pg_trigger t where t.tgrelid = 'windlass.task'::regclass and t.tgname = 'record_new')

-- name: record_changes
-- Makes the triggers that record changes, or drops them.
select windlass.record_changes($1::boolean)

-- name: begin_feed
-- Recording begins with this transaction, which holds a lock that nobody who writes tasks can hold beside it.
update windlass.feed f set since = pg_current_xact_id(), read_at = windlass.now()

-- name: touch_feed
-- Somebody reads.
update windlass.feed f set read_at = windlass.now() where f.read_at < windlass.now() - interval '1 minute'

-- name: feed_position
-- Now, as a position to go on from.
select pg_current_snapshot()::text

-- name: feed_reaches
-- Whether everything after this position is still kept: it was taken while changes were recorded, and none that it does
-- not know was forgotten.
select coalesce(pg_visible_in_snapshot(f.since, $1::text::pg_snapshot), false)
       and pg_snapshot_xmin($1::text::pg_snapshot) > f.forgotten
  from windlass.feed f

-- name: list_changes
-- What became visible after one position ($2) and until another ($3, or now), beyond a row ($4), in the order in which it
-- happened to each task: rows are numbered while the locks on their tasks are held (index change_order).
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
-- Forgets the oldest rows that are older than an instant, and remembers up to where (index change_order).
with old as (
    select c.tx, c.id, c.at from windlass.change c order by c.tx, c.id limit $2
), gone as (
    delete from windlass.change c using old o
     where c.tx = o.tx and c.id = o.id and o.at < $1
    returning c.tx
), told as (
    update windlass.feed f set forgotten = greatest(f.forgotten, g.tx)
      from (select g.tx from gone g order by g.tx desc limit 1) g
)
select count(*) from gone

-- name: feed_is_unread
-- Whether nobody has read since an instant. Locks the row, so that whoever begins to read just now (`touch_feed`) is
-- either seen here or sees what we make of it.
select f.read_at < $1 from windlass.feed f for update
