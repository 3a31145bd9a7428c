//! Second part of the table of rows: users, OAuth and limits.

use crate::{
    load::Credential::{Absent, Bearer},
    operations::{
        Against::{Pgbench, Static},
        FEW, GET, JSON, Keys, ONE, Operation,
    },
};

const FORM: &str = "application/x-www-form-urlencoded";

const NO_MORE_USERS: &str = "delete from callers using users
    where users.caller_id = callers.id and users.username like 'u%'";

/// Operations on users, tokens and limits.
pub const OPERATIONS: &[Operation] = &[
    Operation {
        name: "createUser",
        request: ("POST", "/api/v3/user"),
        credential: Absent,
        content_type: JSON,
        body: r#"{"username":"u<n>","email":"u@example.com"}"#,
        prepare: &[NO_MORE_USERS],
        connections: FEW,
        against: &[Pgbench(
            "with made as (
                 insert into callers (name, plan, scopes)
                 values ('user:' || 1000000000 + :n, 'free', '{}') returning id
             )
             insert into users (id, caller_id, username, folded, email)
             select 1000000000 + :n, id, 'u' || :n::text, 'u' || :n::text, 'u@example.com' from made;",
        )],
        ..GET
    },
    Operation {
        name: "createUsersWithListInput",
        request: ("POST", "/api/v3/user/createWithList"),
        content_type: JSON,
        body: r#"[{"username":"u<n>","email":"u@example.com"}]"#,
        prepare: &[NO_MORE_USERS],
        connections: ONE,
        against: &[Static],
        ..GET
    },
    Operation {
        name: "getUserByName",
        request: ("GET", "/api/v3/user/bench<n%1000>"),
        connections: FEW,
        against: &[Pgbench(
            "select id, caller_id, username, first_name, last_name, email, phone, user_status
             from users where folded = 'bench' || :n % 1000;",
        )],
        ..GET
    },
    Operation {
        name: "updateUser",
        request: ("PUT", "/api/v3/user/bench<n%1000>"),
        content_type: JSON,
        body: r#"{"username":"bench<n%1000>","email":"u<math.random(1e9)>@example.com"}"#,
        connections: FEW,
        against: &[Pgbench(
            "update users set email = 'u@example.com' where folded = 'bench' || :n % 1000;",
        )],
        ..GET
    },
    Operation {
        name: "deleteUser",
        request: ("DELETE", "/api/v3/user/u<n>"),
        prepare: &[
            NO_MORE_USERS,
            "with made as (
                 insert into callers (name, plan, scopes)
                 select 'user:' || 1000000000 + i, 'free', array['read:pets'] from generate_series({first}, {last}) i
                 returning id, name
             )
             insert into users (id, caller_id, username, folded)
             select number, id, 'u' || number - 1000000000, 'u' || number - 1000000000
             from (select id, substr(name, 6)::bigint as number from made) numbered",
        ],
        connections: ONE,
        against: &[Pgbench(
            "delete from callers using users where users.caller_id = callers.id and users.folded = 'u' || :n::text;",
        )],
        ..GET
    },
    Operation {
        name: "loginUser",
        request: ("GET", "/api/v3/user/login?username=benchuser&password=correct+horse"),
        credential: Absent,
        connections: ONE,
        against: &[Static],
        ..GET
    },
    Operation {
        name: "createSession",
        request: ("POST", "/api/v3/user/login"),
        credential: Absent,
        content_type: JSON,
        body: r#"{"username":"benchuser","password":"correct horse"}"#,
        connections: ONE,
        against: &[Static],
        ..GET
    },
    Operation {
        name: "logoutUser",
        request: ("GET", "/api/v3/user/logout"),
        credential: Bearer,
        keys: Keys::Sessions,
        prepare: &["update credentials set revoked_at = null where kind = 'session' and revoked_at is not null"],
        connections: ONE,
        against: &[Pgbench(
            "update credentials set revoked_at = now()
             where id = 1000000000 + :n::bigint - :first;",
        )],
        ..GET
    },
    Operation {
        name: "issueToken",
        request: ("POST", "/oauth/token"),
        credential: Absent,
        content_type: FORM,
        body: "grant_type=client_credentials&client_id={client}&client_secret={secret}",
        connections: FEW,
        against: &[Pgbench(
            "insert into credentials (caller_id, kind, hash, hint, expires_at, issued_by)
             select caller_id, 'access_token', sha256(gen_random_uuid()::text::bytea), 'bench',
                    now() + interval '1 hour', id
             from credentials where client_id = '{client}' for share;",
        )],
        ..GET
    },
    Operation {
        name: "introspectToken",
        request: ("POST", "/oauth/introspect"),
        credential: Absent,
        keys: Keys::Tokens,
        content_type: FORM,
        body: "token=<key>&client_id={client}&client_secret={secret}",
        connections: FEW,
        against: &[Pgbench(
            "select * from credentials join callers on callers.id = caller_id where client_id = '{client}';
             select * from credentials join callers on callers.id = caller_id where credentials.id = 1 + :n % 8;",
        )],
        ..GET
    },
    Operation {
        name: "revokeToken",
        request: ("POST", "/oauth/revoke"),
        credential: Absent,
        keys: Keys::Tokens,
        content_type: FORM,
        body: "token=<key>&client_id={client}&client_secret={secret}",
        prepare: &["update credentials set revoked_at = null where kind = 'access_token' and revoked_at is not null"],
        connections: ONE,
        against: &[Pgbench(
            "select * from credentials join callers on callers.id = caller_id where client_id = '{client}';
             update credentials set revoked_at = now()
             where id = 2000000000 + :n::bigint - :first;",
        )],
    },
    Operation {
        name: "getOAuthMetadata",
        request: ("GET", "/.well-known/oauth-authorization-server"),
        credential: Absent,
        connections: FEW,
        against: &[Static],
        ..GET
    },
    Operation {
        name: "getLimits",
        request: ("GET", "/api/v3/limits"),
        keys: Keys::ManyCallers,
        connections: ONE,
        against: &[Static],
        ..GET
    },
];
