-- name: insert_key
-- Adds an API key. Only its hash is stored.
insert into windlass.api_key (id, hash, hint, name, role, namespace, groups, created_at)
values ($1, $2, $3, $4, $5, $6, $7, windlass.now())
returning created_at

-- name: find_key
-- Returns the key with this hash, unless it is revoked (the unique index on the hash).
select k.id, k.name, k.role, k.namespace, k.hint, k.created_at, k.revoked_at, k.groups
  from windlass.api_key k where k.hash = $1 and k.revoked_at is null

-- name: live_keys
-- Returns those of these hashes whose keys are not revoked (the unique index on the hash).
select k.hash from windlass.api_key k where k.hash = any($1::bytea[]) and k.revoked_at is null

-- name: get_key
-- Returns one key, revoked or not.
select k.id, k.name, k.role, k.namespace, k.hint, k.created_at, k.revoked_at, k.groups
  from windlass.api_key k where k.id = $1

-- name: list_keys
-- Returns one page of keys of a namespace, or of all namespaces, newest first.
select k.id, k.name, k.role, k.namespace, k.hint, k.created_at, k.revoked_at, k.groups
  from windlass.api_key k
 where ($1::text is null or k.namespace = $1) and (k.created_at, k.id) < {beyond($2, $3)}
 order by k.created_at desc, k.id desc limit $4

-- name: count_keys
-- Counts the keys that are not revoked, and those of them that belong to an admin of all namespaces.
select count(*), count(*) filter (where k.role = 'admin' and k.namespace is null)
  from windlass.api_key k where k.revoked_at is null

-- name: revoke_key
-- Revokes a key. It stays in the list; a second revocation keeps the first time.
update windlass.api_key k set revoked_at = coalesce(k.revoked_at, windlass.now()) where k.id = $1
returning k.id, k.name, k.role, k.namespace, k.hint, k.created_at, k.revoked_at, k.groups

-- name: insert_namespace
-- Adds a namespace, unless it exists.
insert into windlass.namespace (name, created_at) values ($1, windlass.now()) on conflict (name) do nothing

-- name: list_namespaces
-- Returns one page of namespaces by name: one of them, or all.
select n.name, n.created_at from windlass.namespace n
 where ($1::text is null or n.name = $1) and ($2::text is null or n.name > $2)
 order by n.name limit $3
