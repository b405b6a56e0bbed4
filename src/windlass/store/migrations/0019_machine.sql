-- Tasks that run on machines of their own.
--
-- installation   who we are, where several installations start machines with the same daemon, cluster or account
-- machine        one row for each attempt that was to be launched; open until nothing of its machine is left
-- export_object  tasks that may have left objects behind; gone when those are

create table windlass.installation (id uuid not null primary key);
insert into windlass.installation values (gen_random_uuid());

create table windlass.machine (
    task_id      uuid        not null,
    attempt      integer     not null,
    namespace    text        not null,
    queue        text        not null,
    launcher     text        not null,
    place        text        not null,
    machine_id   text,
    instance_id  text,
    asked_at     timestamptz not null,
    launched_at  timestamptz,
    deadline_at  timestamptz,
    ended_at     timestamptz,
    exit_code    integer,
    reason       text,
    primary key (task_id, attempt)
);
create index machine_open on windlass.machine (launcher, place) where ended_at is null;

create table windlass.export_object (
    task_id        uuid             not null primary key,
    prefix         text             not null,
    keep_s         double precision not null,
    downloaded_at  timestamptz
);
