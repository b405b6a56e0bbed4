-- How work reaches the worker of a lease: one that claims gets nothing of queues that are delivered in another way.
alter table windlass.lease add column delivery text collate "C" not null default 'pull';
