-- What the code of workers says about the tasks of a kind, for those that are submitted without it: by name, from elsewhere.

create table windlass.kind (
    namespace    text collate "C" not null,
    name         text collate "C" not null,
    app          text        not null,
    policy       jsonb       not null,
    declared_at  timestamptz not null,
    primary key (namespace, name)
);
