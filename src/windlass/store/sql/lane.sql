-- part: lanes_after
-- The lanes of a queue ($1, $2) that hold tasks beyond a position ($3, $4), as the body of a recursive `lanes`: found by
-- skipping from one to the next in index task_ready. Nothing that waits in them is read.
    (select t.priority, t.concurrency_key from windlass.task t
      where t.namespace = $1 and t.queue = $2 and t.state = 'queued'
        and (t.priority, t.concurrency_key) > ($3::smallint, $4::text)
      order by t.priority, t.concurrency_key limit 1)
    union all
    select n.priority, n.concurrency_key
      from lanes l cross join lateral (
           select t.priority, t.concurrency_key from windlass.task t
            where t.namespace = $1 and t.queue = $2 and t.state = 'queued'
              and (t.priority, t.concurrency_key) > (l.priority, l.concurrency_key)
            order by t.priority, t.concurrency_key limit 1) n
