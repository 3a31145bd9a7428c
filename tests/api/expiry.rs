//! Tests that the service deletes rows once they have expired, and only these.

use test_support::*;

/// Adds an expired row and one that is kept to each table that rows are purged from: the second is the newer one.
const ROWS: &str = "
    insert into callers (name, plan, scopes) values ('c', 'free', '{}');
    insert into credentials (caller_id, kind, hash, hint, client_id)
    select id, 'client_secret', sha256('s'), '', 'c' from callers where name = 'c';
    insert into credentials (caller_id, kind, hash, hint, issued_by, expires_at)
    select caller_id, kinds.kind, sha256((kinds.kind || age)::bytea), '', case kinds.kind when 'access_token' then id end, now() - age
    from credentials, (values ('session'), ('access_token')) kinds (kind), (values (interval '61 min'), ('-1 min')) ages (age)
    where client_id = 'c';
    insert into idempotency_keys (caller, key, fingerprint, answer, created_at)
    select 'c', age::text, '', '{}', now() - age from (values (interval '24 h 1 s'), ('23 h 59 min')) ages (age);
    insert into limit_usage (key, day)
    select age::text, (now() at time zone 'utc')::date - age from (values (2), (0)) ages (age);
    insert into caller_usage (caller_id, day, admitted, refused)
    select 0, (now() at time zone 'utc')::date - age, 0, 0 from (values (30), (1)) ages (age);
    insert into changes (position, at, kind, resource, action)
    select (extract(epoch from now() - age) * 1000000)::bigint, now() - age, 'pet', '1', 'created'
    from (values (interval '32 d'), ('31 d'), ('29 d')) ages (age);
    insert into webhooks (url, secret, kinds, position, enabled) values ('http://127.0.0.1', '', '{}', 0, false);
    insert into webhook_retries (webhook_id, position, kind, resource, attempts, next_at, parked_at)
    select id, age, 'pet', '1', 1, now(), now() - make_interval(days => age)
    from webhooks, (values (31), (29)) ages (age)";

/// Expired and other rows of each table. The newest change before the retention stays, as the place where readers go on.
const TABLES: [(&str, &str, &str); 7] = [
    (
        "credentials where kind = 'session' and",
        "expires_at < now()",
        "expires_at > now()",
    ),
    (
        "credentials where kind = 'access_token' and",
        "expires_at < now()",
        "expires_at > now()",
    ),
    (
        "idempotency_keys where",
        "key like '24:00:01%'",
        "key like '23:59%'",
    ),
    ("limit_usage where", "key = '2'", "key = '0'"),
    (
        "caller_usage where caller_id = 0 and",
        "day <= now()::date - 30",
        "day > now()::date - 30",
    ),
    (
        "changes where resource = '1' and",
        "at < now() - interval '31 d 12 h'",
        "at > now() - interval '31 d 12 h'",
    ),
    ("webhook_retries where", "position = 31", "position = 29"),
];

#[tokio::test(flavor = "multi_thread")]
async fn service_deletes_expired_rows_of_each_table() {
    let database = TestDatabase::migrated().await;
    let mut connection = database.connect().await;
    connection.execute(ROWS).await.expect("rows");
    let count = async |database: &TestDatabase, table: &str, rows: &str| {
        let query = format!("select count(*) from {table} {rows}");
        database.number(&query).await
    };
    for (table, expired, _) in TABLES {
        assert_eq!(count(&database, table, expired).await, 1, "{table}");
    }
    let TestApp { database, .. } = &TestApp::on(database, &[]).await;
    for (table, expired, kept) in TABLES {
        eventually(async || count(database, table, expired).await == 0).await;
        assert!(count(database, table, kept).await > 0, "{table}");
    }
}
