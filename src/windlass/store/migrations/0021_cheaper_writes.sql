-- What every claim and report pays for and nobody uses, is gone.
--
-- The triggers of the live feed: a trigger that is disabled records nothing, but each statement still keeps copies of all
-- rows that it wrote for it (its transition tables). They are made when somebody follows the feed, and dropped when
-- nobody does any more.
create function windlass.record_changes(wanted boolean) returns void
language plpgsql
as $$
begin
    if wanted then
        create trigger record_new after insert on windlass.task
            referencing new table as new_tasks for each statement execute function windlass.record_new();
        create trigger record_moved after update on windlass.task
            referencing new table as new_tasks old table as old_tasks
            for each statement execute function windlass.record_moved();
    else
        drop trigger record_new on windlass.task;
        drop trigger record_moved on windlass.task;
    end if;
end
$$;

do $$
begin
    if exists (select from pg_trigger t
                where t.tgrelid = 'windlass.task'::regclass and t.tgname = 'record_new' and t.tgenabled = 'D') then
        perform windlass.record_changes(false);
    end if;
end
$$;

-- What runs, by when it began: entries of one claim are folded into one, and new ones come at the end. By kind and key,
-- as it was, all that runs in a queue had the same few keys, and every insert had to make room among what had ended.
drop index windlass.task_running;
create index task_running on windlass.task (namespace, queue, started_at) where state = 'running';
