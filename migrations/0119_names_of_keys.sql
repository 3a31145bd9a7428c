-- Names of API keys, and that a key has one successor.

alter table credentials
    -- Name of an API key, for people.
    add column name       text,
    -- Time at which another key replaced it.
    add column rotated_at timestamptz;
