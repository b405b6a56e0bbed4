-- Tasks that are sent to HTTP services, which call back.
--
-- heartbeat   one narrow row for each attempt that was sent out; its time is in no index, and half of each page is free, so
--             that a sign of life stays on its page. It runs out `infinity` until the push was delivered: until then the
--             outbox answers for the attempt. A row outlives its attempt until it runs out.
-- token_key   what the tokens of workers are signed with; the newest signs, the one before it still opens.
-- queue       the secret before the current one signs pushes too, while a rotation is under way.

create table windlass.heartbeat (
    task_id     uuid        not null primary key,
    attempt     integer     not null,
    timeout_ms  bigint      not null,
    slack_ms    bigint      not null,
    expires_at  timestamptz not null,
    heard_at    timestamptz,
    seen_at     timestamptz
) with (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1);

create table windlass.token_key (
    id          uuid        not null primary key,
    secret      bytea       not null,
    created_at  timestamptz not null
);

alter table windlass.queue
    add column previous_secret text,
    add column secret_until timestamptz;
