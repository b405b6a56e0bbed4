-- The next fire of a schedule as a person set it, whatever its cron says. Empty once it is settled.
alter table windlass.schedule add column extra_fire_at timestamptz;
