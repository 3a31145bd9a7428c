-- no-transaction
-- Pets of a status with a tag, in the order of their creation. Another expression than that of `pet_tags_by_status`, so that neither index
-- can be used in place of the other.

create index concurrently if not exists pet_tags_by_creation on pet_tags ((tag || ':' || status), created_order, pet_id);
