//! Tests of `limits.database_url`: the use of limits in a database of its own.

use reqwest::Method;
use test_support::{Home, Output, TestApp, TestDatabase, eventually};

/// Starts a service with a limit of five requests per minute, counted in `limits`.
async fn counting_in(limits: &TestDatabase) -> TestApp {
    let database = TestDatabase::migrated().await;
    let app = TestApp::on(database, &settings(&limits.url())).await;
    let pro = "update callers set plan = 'pro' where name = 'tester'";
    app.database.run(pro).await;
    app
}

const fn settings(url: &str) -> [(&str, &str); 2] {
    [
        ("PET_INVENTORY__LIMITS__DATABASE_URL", url),
        ("PET_INVENTORY__PLANS__PRO__PER_MINUTE", "5"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn all_replicas_count_in_the_database_of_the_limits() {
    let limits = TestDatabase::empty().await;
    let app = counting_in(&limits).await;
    let other = TestApp::replica_of(&app, &settings(&limits.url())).await;
    for replica in [&app, &other, &app, &other, &app] {
        replica
            .with_key(&app.key, Method::GET, "/pet/1")
            .is(404)
            .await;
    }
    for replica in [&app, &other] {
        let refused = replica.with_key(&app.key, Method::GET, "/pet/1").await;
        refused.problem(429);
    }
    let used = "select coalesce(sum(day_used), 0)::bigint from limit_usage";
    assert_eq!(limits.number(used).await, 5);
    assert_eq!(app.database.number(used).await, 0);
    let by_day = "select coalesce(sum(admitted + refused), 0)::bigint from caller_usage";
    eventually(async || limits.number(by_day).await == 7).await;
    assert_eq!(app.database.number(by_day).await, 0);
    let of_today = app.get("/limits").is(200).await.json()["days"][29].take();
    assert_eq!(
        (&of_today["admitted"], &of_today["refused"]),
        (&5.into(), &2.into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_get_503_while_only_the_database_of_the_limits_is_away() {
    let limits = TestDatabase::empty().await;
    let app = counting_in(&limits).await;
    app.get("/pet/1").is(404).await;
    app.bare(Method::GET, "/readyz").is(200).await;
    let name = limits.options().get_database().expect("a name");
    let accepts = async |accepts: bool| {
        let set = format!("alter database {name} allow_connections {accepts}");
        app.database.run(&set).await;
    };
    accepts(false).await;
    let end =
        format!("select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'");
    app.database.run(&end).await;
    let away = app.get("/pet/1").await;
    away.problem(503);
    assert_eq!(away.header("retry-after"), "1");
    eventually(async || app.bare(Method::GET, "/readyz").await.status == 503).await;
    accepts(true).await;
    eventually(async || app.bare(Method::GET, "/readyz").await.status == 200).await;
    eventually(async || app.get("/pet/1").await.status == 404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_use_the_database_of_the_limits() {
    let (store, limits) = (TestDatabase::empty().await, TestDatabase::empty().await);
    let home = Home::new();
    let run = async |limits: &TestDatabase, arguments: &[&str]| {
        let mut command = home.command(arguments);
        command
            .env("DATABASE_URL", store.url())
            .env("PET_INVENTORY__LIMITS__DATABASE_URL", limits.url());
        Output::of(command).await
    };
    let migrated = run(&limits, &["migrate"]).await.is(0).stdout;
    assert!(migrated.contains("applied 0001 limits"), "{migrated}");
    let checked = run(&limits, &["check"]).await.is(0).stdout;
    assert!(
        checked.contains("ok      limits         PostgreSQL 1"),
        "{checked}"
    );
    // Both are on one server, whose connections are added up: 16 + 12 + 2 and 16 + 2 + 2.
    let mut replicas = home.command(["check", "--replicas", "1"]);
    replicas
        .env("DATABASE_URL", store.url())
        .env("PET_INVENTORY__LIMITS__DATABASE_URL", limits.url())
        .env("PET_INVENTORY__SERVER__WORKERS", "1");
    let added_up = Output::of(replicas).await.is(0).stdout;
    let line = "ok      connections    1 × 50 = 50 of the ";
    assert!(added_up.contains(line), "{added_up}");
    run(
        &limits,
        &["keys", "create", "--caller", "acme", "--plan", "pro"],
    )
    .await
    .is(0);
    let used = "insert into limit_usage (key, day_used) values ('caller:1', 7)";
    limits.run(used).await;
    let by_day = "insert into caller_usage values (1, (now() at time zone 'utc')::date, 5, 2)";
    limits.run(by_day).await;
    let shown = run(&limits, &["callers", "show", "acme"])
        .await
        .is(0)
        .stdout;
    assert!(shown.contains("Used today  7 of"), "{shown}");
    let usage = run(&limits, &["callers", "usage", "acme", "--json"]).await;
    let usage = usage.is(0).stdout;
    assert!(usage.contains(r#""admitted":5"#), "{usage}");

    // The two schemas cannot share a database.
    let refused = run(&store, &["check"]).await.is(1).stdout;
    let reason = "must lead to different databases";
    let line = refused
        .lines()
        .find(|line| line.starts_with("FAILED  limits"));
    assert!(line.is_some_and(|line| line.contains(reason)), "{refused}");
    let mut swapped = home.command(["migrate"]);
    swapped.env("DATABASE_URL", limits.url());
    let swapped = Output::of(swapped).await.is(1).stderr;
    assert!(swapped.contains(reason), "{swapped}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_the_limits_are_those_of_the_store() {
    let limits = TestDatabase::empty().await;
    let app = counting_in(&limits).await;
    let described = "select string_agg(line, e'\\n' order by line) from (
         select concat_ws(' ', table_name, column_name, data_type, is_nullable, column_default) as line
         from information_schema.columns where table_name in ('limit_usage', 'caller_usage')
         union all
         select indexdef from pg_indexes where tablename in ('limit_usage', 'caller_usage')
         union all
         select relname || reloptions::text from pg_class where relname in ('limit_usage', 'caller_usage')
         union all
         -- The function that this release calls: the last one.
         select regexp_replace(prosrc, '\\s*--[^\\n]*', '', 'g') || proargnames::text
         from pg_proc where proname = 'lease_requests' and pronargs = 12
     ) description";
    let of = async |database: &TestDatabase| {
        let mut connection = database.connect().await;
        let text = sqlx::query_scalar(described).fetch_one(&mut connection);
        text.await.expect("a description")
    };
    let (theirs, ours): (String, String) = (of(&app.database).await, of(&limits).await);
    assert!(ours.contains("limit_usage_by_day"), "{ours}");
    assert_eq!(ours, theirs);
}
