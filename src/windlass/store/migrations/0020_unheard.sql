-- When the last message for a task was written, so that one which nobody hears of can be told from one that is on its way.
alter table windlass.wakeup add column sent_at timestamptz not null default now();

-- A carrier that lost all it had counts from the beginning again: the same id may be another message.
alter table windlass.dead_message drop constraint dead_message_namespace_queue_message_id_key;
create unique index dead_message_once on windlass.dead_message (namespace, queue, message_id, md5(body));
