-- name: server_vitals
-- Returns the state of the server: its durability settings, its connections, and the age of the oldest transaction,
-- which keeps vacuum from removing rows.
select current_setting('server_version') as version,
       pg_is_in_recovery() as standby,
       current_setting('fsync') = 'on' as fsync,
       current_setting('synchronous_commit') <> 'off' as synchronous_commit,
       current_setting('autovacuum') = 'on' as autovacuum,
       current_setting('max_connections')::integer as connections_max,
       (select count(*) from pg_stat_activity where backend_type = 'client backend')::integer as connections,
       (select coalesce(extract(epoch from max(now() - xact_start)), 0)
          from pg_stat_activity where pid <> pg_backend_pid())::float8 as oldest_transaction_s,
       extract(epoch from clock_timestamp())::float8 as clock_s

-- name: table_vitals
-- Returns the numbers of live and dead rows in the tables that change most.
select s.relname as name, s.n_live_tup as live, s.n_dead_tup as dead
  from pg_stat_user_tables s where s.schemaname = 'windlass' and s.relname in ('task', 'lease', 'outbox')
 order by s.relname

-- name: work_vitals
-- Returns what is overdue or given up: expired leases that were not removed, effects that are due or dead, parked
-- tasks, and queues with due tasks but no live worker, among those with one of these deliveries.
select (select count(*) from windlass.lease l
         where l.expires_at > windlass.now() and l.namespace <> '')::integer as workers,
       (select count(*) from windlass.lease l
         where l.expires_at < windlass.now() - interval '30 seconds')::integer as leases_overdue,
       (select count(*) from windlass.outbox o
         where o.dead_at is null and o.available_at < windlass.now() - interval '60 seconds')::integer
           as effects_overdue,
       (select count(*) from windlass.outbox o where o.dead_at is not null)::integer as effects_dead,
       (select count(*) from windlass.task t where t.state = 'parked')::integer as parked,
       coalesce((select array_agg(q.queue order by q.queue) from (
           select distinct t.queue from windlass.task t
            where t.state = 'queued' and t.available_at <= windlass.now()
              and not exists (select from windlass.lease l where l.namespace = t.namespace and t.queue = any(l.queues)
                                 and l.expires_at > windlass.now()
                                 and l.delivery = coalesce((select q.delivery ->> 'type' from windlass.queue q
                                                             where q.namespace = t.namespace and q.name = t.queue), 'pull'))
              and not exists (select from windlass.queue q where q.namespace = t.namespace and q.name = t.queue
                                 and q.delivery ->> 'type' <> all($1::text[]))
            limit 20) q), '{}') as unattended
