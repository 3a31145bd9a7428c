-- Time of the last complete backup: a metric shows it, so that an alert tells of backups that have stopped.

create table last_backup (
    is_only boolean     primary key default true,
    -- Time of its snapshot.
    at      timestamptz not null,
    constraint last_backup_has_one_row check (is_only)
);
