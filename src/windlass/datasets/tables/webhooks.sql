-- name: put_webhook_secret
-- Sets the secret of a webhook. The one before is accepted too, for $5 seconds.
insert into windlass.webhook_secret as w (namespace, dag, job, secret, set_at) values ($1, $2, $3, $4, windlass.now())
on conflict (namespace, dag, job) do update
   set secret = excluded.secret, set_at = excluded.set_at,
       previous_secret = case when $5::double precision > 0 then w.secret end,
       previous_until = case when $5::double precision > 0 then windlass.now() + $5 * interval '1 second' end
returning w.set_at, w.previous_until

-- name: delete_webhook_secret
-- Removes the secrets of a webhook.
delete from windlass.webhook_secret w where w.namespace = $1 and w.dag = $2 and w.job = $3 returning w.job

-- name: webhook_secrets
-- Returns the secrets that sign requests to a path now, with the DAG and the job that have it. The path is that of an
-- active deployment, or of a DAG that is retired.
select w.dag, w.job, w.secret, case when w.previous_until > windlass.now() then w.previous_secret end
  from ({webhook_jobs($1, $2)}) h
  join windlass.deployment d on d.id = h.deployment_id
  join windlass.deployment_job j on j.deployment_id = d.id and j.job_id = h.job_id
  join windlass.webhook_secret w on w.namespace = d.namespace and w.dag = d.dag and w.job = j.name

-- name: lock_webhook_secrets
-- Locks all secrets of webhooks.
select w.namespace, w.dag, w.job, w.secret, w.previous_secret from windlass.webhook_secret w
 order by w.namespace, w.dag, w.job for update

-- name: rewrite_webhook_secret
-- Replaces a secret of a webhook as it is stored.
update windlass.webhook_secret w
   set secret = case when $4::boolean then w.secret else $5::text end,
       previous_secret = case when $4 then $5 else w.previous_secret end
 where w.namespace = $1 and w.dag = $2 and w.job = $3
