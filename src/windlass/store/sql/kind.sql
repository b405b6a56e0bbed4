-- name: put_kinds
-- What an app declares for its kinds, in the order of their names, so that two workers that start cannot deadlock.
insert into windlass.kind as k (namespace, name, app, policy, declared_at)
select $1, u.name, $2, u.policy::jsonb, windlass.now()
  from (select * from unnest($3::text[], $4::text[]) as u(name, policy) order by 1) u
on conflict (namespace, name) do update set app = excluded.app, policy = excluded.policy, declared_at = excluded.declared_at
 where (k.app, k.policy) is distinct from (excluded.app, excluded.policy)

-- name: delete_kinds
-- Forgets what was declared for these kinds, and for those of the app that it has no more.
delete from windlass.kind k where k.namespace = $1 and (k.name = any($3::text[]) or (k.app = $2 and k.name <> all($4::text[])))

-- name: kind_policies
-- What is declared for these kinds (primary key).
select k.namespace, k.name, k.policy from windlass.kind k
  join unnest($1::text[], $2::text[]) as u(namespace, name) on u.namespace = k.namespace and u.name = k.name
