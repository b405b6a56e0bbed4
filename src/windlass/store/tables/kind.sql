-- name: put_kinds
-- Stores what an app declares for its kinds. Writes in the order of the names, so that two workers that start at once
-- cannot deadlock.
insert into windlass.kind as k (namespace, name, app, policy, declared_at)
select $1, u.name, $2, u.policy::jsonb, windlass.now()
  from (select * from unnest($3::text[], $4::text[]) as u(name, policy) order by 1) u
on conflict (namespace, name) do update set app = excluded.app, policy = excluded.policy, declared_at = excluded.declared_at
 where (k.app, k.policy) is distinct from (excluded.app, excluded.policy)

-- name: delete_kinds
-- Deletes the declarations of these kinds, and of those that the app no longer has.
delete from windlass.kind k where k.namespace = $1 and (k.name = any($3::text[]) or (k.app = $2 and k.name <> all($4::text[])))

-- name: kind_policies
-- Returns what is declared for these kinds (primary key).
select k.namespace, k.name, k.policy from windlass.kind k
  join unnest($1::text[], $2::text[]) as u(namespace, name) on u.namespace = k.namespace and u.name = k.name
