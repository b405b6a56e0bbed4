-- name: insert_key
-- A new key, by its hash.
insert into windlass.api_key (id, hash, hint, name, role, namespace, created_at)
values ($1, $2, $3, $4, $5, $6, windlass.now())
returning created_at

-- name: find_key
-- The key with this hash, if it may still be used (its unique index).
select k.id, k.name, k.role, k.namespace, k.hint, k.created_at, k.revoked_at
  from windlass.api_key k where k.hash = $1 and k.revoked_at is null

-- name: live_keys
-- Which of the keys with these hashes may still be used (its unique index).
select k.hash from windlass.api_key k where k.hash = any($1::bytea[]) and k.revoked_at is null

-- name: get_key
-- One key, revoked or not.
select k.id, k.name, k.role, k.namespace, k.hint, k.created_at, k.revoked_at
  from windlass.api_key k where k.id = $1

-- name: list_keys
-- Newest first, beyond a position; of one namespace, or all.
select k.id, k.name, k.role, k.namespace, k.hint, k.created_at, k.revoked_at
  from windlass.api_key k
 where ($1::text is null or k.namespace = $1) and (k.created_at, k.id) < {beyond($2, $3)}
 order by k.created_at desc, k.id desc limit $4

-- name: count_keys
-- How many keys may still be used, and how many of them are of admins in all namespaces.
select count(*), count(*) filter (where k.role = 'admin' and k.namespace is null)
  from windlass.api_key k where k.revoked_at is null

-- name: revoke_key
-- From now on this key opens nothing. It stays in the list, with the first time that it was revoked.
update windlass.api_key k set revoked_at = coalesce(k.revoked_at, windlass.now()) where k.id = $1
returning k.id, k.name, k.role, k.namespace, k.hint, k.created_at, k.revoked_at

-- name: insert_namespace
-- Makes sure that a namespace is known.
insert into windlass.namespace (name, created_at) values ($1, windlass.now()) on conflict (name) do nothing

-- name: list_namespaces
-- By name, beyond a position; one of them, or all.
select n.name, n.created_at from windlass.namespace n
 where ($1::text is null or n.name = $1) and ($2::text is null or n.name > $2)
 order by n.name limit $3
