-- part: lanes_after
-- The lanes of a queue ($1, $2) after a position ($3, $4) that hold tasks, as the body of a recursive `lanes`. Skips
-- from one lane to the next in index task_ready, without reading the tasks in between.
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
