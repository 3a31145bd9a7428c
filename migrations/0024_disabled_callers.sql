-- Disabled callers: the service refuses their credentials, and an issuer's tokens for them, until they are enabled
-- again. Replicas of the previous release do not know the column: until they have stopped, they accept such callers.
alter table callers add column disabled_at timestamptz;
