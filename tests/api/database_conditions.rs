//! Requirements on a database and its role: `check` names each reason that stops the start.

use test_support::postgres::url;
use test_support::*;

/// Statements for a role that may only read and write rows, in a migrated database.
const READS_AND_WRITES_ROWS: &str = "
    revoke create on schema public from public;
    grant select, insert, update, delete on all tables in schema public to ROLE;
    grant usage, select, update on all sequences in schema public to ROLE";

/// Returns the commands of a role of its own in a database, after statements of the superuser.
async fn role_in(database: &TestDatabase, statements: &str) -> Home {
    let name = database
        .options()
        .get_database()
        .expect("a name")
        .to_owned();
    let role = format!("role_of_{name}");
    let statements = format!("create role ROLE login; {statements}");
    let statements = statements.replace("ROLE", &role).replace("DATABASE", &name);
    let mut connection = database.connect().await;
    let run = sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut connection);
    run.await.expect("the statements are valid");
    let url = database.url().replace("postgres@", &format!("{role}@"));
    Home::on(url)
}

#[tokio::test(flavor = "multi_thread")]
async fn check_names_what_stops_the_start() {
    // Statements in a migrated or an empty database, and a text of the refusal.
    for (is_migrated, statements, refusal) in [
        (
            false,
            "revoke create on schema public from public",
            "may not change the schema public: run pet-inventory migrate as its owner",
        ),
        (true, "revoke all on schema public from public", "has no schema that it may use"),
        (
            true,
            "alter role ROLE in database DATABASE set search_path = nowhere",
            "has no schema that it may use",
        ),
        (true, "", "lacks rights (select on _sqlx_migrations, "),
        (
            true,
            "grant all on all tables in schema public to ROLE; grant all on all sequences in schema public to ROLE;
             revoke insert on pets from ROLE",
            "lacks rights (insert on pets)",
        ),
        (
            true,
            "grant all on all tables in schema public to ROLE",
            "lacks rights (usage on callers_id_seq, ",
        ),
        (
            true,
            "grant all on all tables in schema public to ROLE; grant all on all sequences in schema public to ROLE;
             revoke all on _sqlx_migrations from ROLE",
            "lacks rights (select on _sqlx_migrations)",
        ),
        (
            true,
            "alter role ROLE superuser; drop table webhook_attempts, image_place",
            "tables are missing (image_place, webhook_attempts)",
        ),
        (
            true,
            "grant all on schema public to ROLE; grant all on all tables in schema public to ROLE;
             delete from _sqlx_migrations where version = (select max(version) from _sqlx_migrations)",
            "run pet-inventory migrate as postgres",
        ),
        (
            true,
            "alter role ROLE superuser; update _sqlx_migrations set checksum = '' where version = 303",
            "0303 differs from that of the build that applied it: run that build",
        ),
        (
            true,
            "alter role ROLE superuser; update _sqlx_migrations set success = false where version = 304",
            "0304 was interrupted; to repeat it",
        ),
        (
            false,
            "alter role ROLE superuser; create table pets (id int); create table orders (id int)",
            "tables of another program (orders, pets)",
        ),
        (
            true,
            "alter role ROLE superuser;
             update _sqlx_migrations set version = 212 where version = (select max(version) from _sqlx_migrations)",
            "schema 0212 of a build before 0.1.0",
        ),
        (true, "alter role ROLE nologin", "is not permitted to log in"),
        (
            true,
            "revoke connect on database DATABASE from public",
            "permission denied for database",
        ),
    ] {
        let database = if is_migrated {
            TestDatabase::migrated().await
        } else {
            TestDatabase::empty().await
        };
        refuses(&role_in(&database, statements).await, refusal).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_names_what_is_wrong_with_a_database() {
    let database = TestDatabase::empty().await;
    let name = database.options().get_database().expect("a name");
    for (options, refusal) in [
        ("encoding 'LATIN1'", "the database has the encoding LATIN1"),
        (
            "encoding 'SQL_ASCII'",
            "the database has the encoding SQL_ASCII",
        ),
        (
            "allow_connections false",
            "is not currently accepting connections",
        ),
    ] {
        let other = format!("{name}_{}", options.len());
        let create = format!(
            "create database {other} template template0 lc_collate 'C' lc_ctype 'C' {options}"
        );
        database.run(&create).await;
        refuses(
            &Home::on(url(&database.options().clone().database(&other))),
            refusal,
        )
        .await;
        database
            .run(&format!("drop database {other} with (force)"))
            .await;
    }
    let unknown = url(&database.options().clone().database("nowhere"));
    refuses(&Home::on(unknown), "database \"nowhere\" does not exist").await;
}

/// Checks that the start, `check` and `migrate` refuse a database with a text, and suggest no other PostgreSQL.
async fn refuses(home: &Home, text: &str) {
    for arguments in [["serve"], ["check"], ["migrate"]] {
        let output = home.run(&arguments).await.is(1);
        let printed = format!("{}{}", output.stdout, output.stderr);
        assert!(
            printed.contains(text),
            "{arguments:?}, no {text} in {printed}"
        );
        assert!(!printed.contains("embedded"), "{printed}");
        if arguments == ["check"] {
            let failed = |line: &str| line.starts_with("FAILED") && line.contains(text);
            assert!(printed.lines().any(failed), "{printed}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn role_that_reads_and_writes_rows_is_enough() {
    let database = TestDatabase::migrated().await;
    let home = role_in(&database, READS_AND_WRITES_ROWS).await;
    home.run(&["check"]).await.is(0);
    serves(&home, &database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_role_and_the_database_change_nothing() {
    let database = TestDatabase::empty().await;
    let settings = [
        ("default_transaction_isolation", "serializable"),
        ("default_transaction_read_only", "on"),
        ("default_transaction_deferrable", "on"),
        ("timezone", "Asia/Tokyo"),
        ("datestyle", "German"),
        ("intervalstyle", "iso_8601"),
        ("bytea_output", "escape"),
        ("client_encoding", "LATIN1"),
        ("extra_float_digits", "-3"),
        ("standard_conforming_strings", "off"),
        ("enable_indexscan", "off"),
        ("statement_timeout", "1s"),
    ];
    let settings = settings.map(|(name, value)| {
        format!("alter database DATABASE set {name} = '{value}'; alter role ROLE set {name} = '{value}';")
    });
    let statements = format!("grant all on schema public to ROLE; {}", settings.concat());
    let home = role_in(&database, &statements).await;
    home.run(&["migrate"]).await.is(0);
    home.run(&["check"]).await.is(0);
    serves(&home, &database).await;
}

/// Checks that the service answers 40 concurrent changes of one pet, and other requests.
async fn serves(home: &Home, database: &TestDatabase) {
    let create = [
        "keys",
        "create",
        "--caller",
        "till",
        "--plan",
        "enterprise",
        "--json",
    ];
    let key = home.run(&create).await.is(0).stdout;
    let key: Value = serde_json::from_str(&key).expect("JSON");
    let key = key["key"].as_str().expect("a key").to_owned();
    let service = home.serve().await;
    let pet = json!({"name": "日本", "photoUrls": [], "tags": [{"name": "t"}]});
    let id = service
        .request(Method::POST, "/pet", &key)
        .json(&pet)
        .is(201)
        .await
        .id();
    let mut changes = JoinSet::new();
    for change in 0..40 {
        let path = format!("/pet/{id}");
        let request = service.request(Method::PATCH, &path, &key);
        changes.spawn(
            request
                .json(&json!({"name": format!("日本 {change}")}))
                .is(200)
                .into_future(),
        );
    }
    changes.join_all().await;
    let order = json!({"petId": id, "quantity": 1, "shipDate": "2026-01-02T03:04:05.678Z"});
    let order = service
        .request(Method::POST, "/store/order", &key)
        .json(&order)
        .is(201)
        .await;
    assert_eq!(order.json()["shipDate"], "2026-01-02T03:04:05.678Z");
    for path in [
        "/pet?name=%E6%97%A5",
        "/pet/findByTags?tags=t",
        "/store/inventory",
    ] {
        service.request(Method::GET, path, &key).is(200).await;
    }
    service.stop().await;
    assert_eq!(
        database
            .number("select count(*) from pets where details ->> 'name' like '日本%'")
            .await,
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn check_warns_if_the_key_of_the_last_administrator_ends() {
    const WARNING: &str = "no administrator has a key";
    let database = TestDatabase::migrated().await;
    let home = Home::on(database.url());
    let warns = async || home.run(&["check"]).await.is(0).stdout.contains(WARNING);
    assert!(!warns().await, "nobody is an administrator yet");
    let create = [
        "keys",
        "create",
        "--caller",
        "boss",
        "--plan",
        "enterprise",
        "--scope",
        "admin",
    ];
    home.run(&[&create[..], &["--expires", "12h"]].concat())
        .await
        .is(0);
    assert!(warns().await);
    home.run(&[&create[..], &["--expires", "25h"]].concat())
        .await
        .is(0);
    assert!(!warns().await);
    database
        .run("update credentials set expires_at = now() - interval '1 hour'")
        .await;
    assert!(warns().await);
}
