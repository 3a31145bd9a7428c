-- Nonces of the sweeps of orphaned blobs. A physical copy of the cluster has the same name in the image store as the
-- original. Each sweep writes a new nonce to both the store and this row, so that whichever finds another nonce in the
-- store knows that a copy sweeps it, and deletes nothing. The previous release takes a store with a nonce for that of
-- another database, and does not sweep it either.
alter table image_place
    -- Of the last completed sweep, if there was one.
    add column nonce uuid,
    -- Of the sweep that begins: committed before it is written to the store.
    add column next_nonce uuid;
