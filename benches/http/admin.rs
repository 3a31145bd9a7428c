//! Third part of the table of rows: the record of changes and administration, which few clients use at the same time.

use crate::operations::{
    Against::{Get, Pgbench, Static},
    FEW, GET, JSON, ONE, Operation,
};

const NO_MORE_KEYS: &str = "delete from credentials where id between {first} and {last}";
/// Prepares one API key for each number.
const KEYS: &str =
    "insert into credentials (id, caller_id, kind, hash, hint) overriding system value
    select i, 1, 'api_key', sha256(i::text::bytea), '' from generate_series({first}, {last}) i";
const CLIENTS: &str = "insert into credentials (id, caller_id, kind, hash, hint, client_id) overriding system value
    select i, 1, 'client_secret', sha256(i::text::bytea), '', 'pic_' || i from generate_series({first}, {last}) i";
const SESSIONS: &str = "insert into credentials (id, caller_id, kind, hash, hint, expires_at) overriding system value
    select i, 1, 'session', sha256(i::text::bytea), '', now() + interval '1 hour' from generate_series({first}, {last}) i";

/// Prepares a webhook that is disabled, so that nothing is sent.
const WEBHOOKS: &str =
    "insert into webhooks (id, url, secret, kinds, position, enabled) overriding system value
    values (1, 'https://example.com/', sha256('x'), '{}', 0, false) on conflict do nothing";

/// A list or a resource that is read.
const fn read(name: &'static str, path: &'static str) -> Operation {
    Operation {
        name,
        request: ("GET", path),
        connections: ONE,
        against: &[Get],
        ..GET
    }
}

/// A credential that is created.
const fn create(name: &'static str, path: &'static str) -> Operation {
    Operation {
        name,
        request: ("POST", path),
        content_type: JSON,
        body: "{}",
        connections: ONE,
        against: &[Static],
        ..GET
    }
}

/// A credential of a number that is revoked.
const fn revoke(
    name: &'static str,
    path: &'static str,
    prepare: &'static [&'static str],
) -> Operation {
    Operation {
        name,
        request: ("DELETE", path),
        prepare,
        connections: ONE,
        against: &[Pgbench(
            "update credentials set revoked_at = now() where id = :n;",
        )],
        ..GET
    }
}

/// Operations on the record of changes, callers and credentials.
pub const OPERATIONS: &[Operation] = &[
    Operation {
        connections: FEW,
        ..read("listChanges", "/api/v3/changes?limit=20")
    },
    read("listCallers", "/api/v3/admin/callers?limit=20"),
    read("getCaller", "/api/v3/admin/callers/1"),
    read("getUsage", "/api/v3/admin/callers/1/usage"),
    read("listKeys", "/api/v3/admin/callers/1/keys?limit=20"),
    read("listClients", "/api/v3/admin/callers/1/clients?limit=20"),
    read("listSessions", "/api/v3/admin/sessions?limit=20"),
    Operation {
        name: "createCaller",
        request: ("POST", "/api/v3/admin/callers"),
        content_type: JSON,
        body: r#"{"name":"new <n>","plan":"free"}"#,
        prepare: &["delete from callers where name like 'new %'"],
        connections: ONE,
        against: &[Static],
        ..GET
    },
    Operation {
        name: "patchCaller",
        request: ("PATCH", "/api/v3/admin/callers/1"),
        content_type: JSON,
        body: r#"{"plan":"enterprise"}"#,
        connections: ONE,
        against: &[Pgbench("update callers set plan = 'enterprise' where id = 1;")],
        ..GET
    },
    Operation {
        name: "deleteCaller",
        request: ("DELETE", "/api/v3/admin/callers/<n>"),
        prepare: &[
            "delete from callers where id between {first} and {last}",
            "insert into callers (id, name, plan, scopes) overriding system value
             select i, 'old ' || i, 'free', array['read:pets'] from generate_series({first}, {last}) i",
        ],
        connections: ONE,
        against: &[Pgbench("delete from callers where id = :n;")],
        ..GET
    },
    read("listWebhooks", "/api/v3/admin/webhooks?limit=20"),
    Operation {
        prepare: &[WEBHOOKS],
        ..read("getWebhook", "/api/v3/admin/webhooks/1")
    },
    Operation {
        prepare: &[WEBHOOKS],
        ..read("listDeliveries", "/api/v3/admin/webhooks/1/deliveries?limit=20")
    },
    create("createKey", "/api/v3/admin/callers/1/keys"),
    create("createClient", "/api/v3/admin/callers/1/clients"),
    Operation {
        prepare: &[NO_MORE_KEYS, KEYS],
        ..create("rotateKey", "/api/v3/admin/keys/<n>/rotate")
    },
    revoke("revokeKey", "/api/v3/admin/keys/<n>", &[NO_MORE_KEYS, KEYS]),
    revoke(
        "revokeClient",
        "/api/v3/admin/clients/<n>",
        &[NO_MORE_KEYS, CLIENTS],
    ),
    revoke(
        "revokeSession",
        "/api/v3/admin/sessions/<n>",
        &[NO_MORE_KEYS, SESSIONS],
    ),
];
