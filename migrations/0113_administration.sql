-- Administration of callers over HTTP.

-- Callers by the beginning of their names, compared by bytes.
create index callers_by_name on callers (name collate "C");
-- The administrators, of which one has to be left.
create index callers_administrators on callers (id) where scopes @> '{admin}' and disabled_at is null;

-- Keys, clients and sessions of all callers.
create index credentials_by_kind on credentials (kind, id);
