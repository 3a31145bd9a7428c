-- Deliveries that wait, by resource: the first of each decides whether a webhook has something to deliver; and those that were
-- given up, to count and to delete them.

create index webhook_retries_waiting on webhook_retries (webhook_id, kind, resource, position) where parked_at is null;
create index webhook_retries_parked on webhook_retries (webhook_id, parked_at) where parked_at is not null;
