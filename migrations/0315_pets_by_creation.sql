-- no-transaction
-- Pets of a status, in the order of their creation.

create index concurrently if not exists pets_by_creation on pets (status, created_order, id);
