-- name: find_keyed_request
-- Returns the request with this key.
select r.sha256, r.subject from windlass.request r where r.namespace = $1 and r.key = $2

-- name: insert_keyed_request
-- Adds a request, unless its key is taken.
insert into windlass.request (namespace, key, sha256, subject, at) values ($1, $2, $3, $4, windlass.now())
on conflict do nothing
returning key

-- name: delete_keyed_requests
-- Deletes requests of a while ago (index request_age).
delete from windlass.request r where r.at < windlass.now() - $1::double precision * interval '1 second' returning r.key
