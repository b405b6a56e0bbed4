-- What a worker says of itself, for people who look. On the lease's own row, which no index covers but its key: a
-- heartbeat stays an update in place.
alter table windlass.lease
    add column host     text    not null default '',
    add column pid      integer not null default 0,
    add column version  text    not null default '';
