-- Payloads and results that are too long for a row are objects in a blob store. All processes beside this database must use
-- the same one: its id is kept here and in the store itself. The URL is for people, and holds nothing that is secret.

create table windlass.blob_store (
    only_one    boolean     not null default true primary key check (only_one),
    id          uuid        not null,
    url         text        not null,
    created_at  timestamptz not null
);
