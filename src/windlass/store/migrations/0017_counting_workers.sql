-- Whether a worker has ever said how much it runs, in this life: from then on what it says is believed, also when it is none.
alter table windlass.worker add column counts boolean not null default false;
