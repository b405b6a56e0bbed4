-- name: get_lake
-- Returns which store is the lake of this database.
select l.id, l.url from windlass.lake l

-- name: choose_lake
-- Records the lake. The first process that uses it decides.
insert into windlass.lake (only_one, id, url, created_at, next_at) values (true, $1, $2, windlass.now(), windlass.now())
on conflict (only_one) do nothing

-- name: move_lake
-- Changes the URL of the lake, which stays the same store.
update windlass.lake l set url = $1
