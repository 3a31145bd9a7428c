-- OAuth 2.0: clients, and the access tokens they are given.
--
-- A client's secret is a credential like any other, but one that opens nothing: it is exchanged for access
-- tokens. Those are credentials too, revoked with the client that got them.

alter table credentials
    add column client_id text,
    add column issued_by bigint references credentials on delete cascade,
    drop constraint credentials_kind_known,
    add constraint credentials_kind_known check (kind in ('api_key', 'client_secret', 'access_token')),
    add constraint credentials_client_id_unique unique (client_id),
    add constraint credentials_client_id_of_clients check ((kind = 'client_secret') = (client_id is not null)),
    add constraint credentials_issued_by_of_tokens check ((kind = 'access_token') = (issued_by is not null));

create index credentials_by_issuer on credentials (issued_by) where issued_by is not null;

-- For the sweep of tokens that have expired.
create index credentials_access_tokens_by_expiry on credentials (expires_at) where kind = 'access_token';
