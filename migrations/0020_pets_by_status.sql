-- no-transaction
-- The pets of each status in the order of their ids. A search names the status and the id together, which no other index
-- can be used for: with the partial indexes of 0001, PostgreSQL chose between them and a scan of the primary key by a guess
-- at the frequency of the status. Replicas of the previous release still use those indexes; the next release drops them.
--
-- Concurrently, so that no change of a pet waits. In a transaction, as behind a transaction pooler, it is built with a lock.
create index concurrently pets_by_status on pets (status, id);
