//! Migrations: each applies once over the data of the one before, even if replicas start together.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test panics with the reason"
)]

use std::pin::pin;

use pet_inventory::{
    config::{Config, Pooler},
    db::{
        self, Part,
        pets::{NameSearch, PetListing},
    },
    domain::{
        Text,
        caller::CallerKey,
        pet::{Category, PetDetails, Status, StoredPet},
    },
};
use sqlx::migrate::Migrator;
use test_support::*;

static MIGRATOR: Migrator = sqlx::migrate!();

/// Statements that insert rows as the program wrote them after a migration. A new migration adds an entry. The first ones,
/// up to 0309, came together.
const ROWS: [(i64, &str); 8] = [
    (
        309,
        r#"with acme as (
          insert into callers (name, plan, scopes) values ('acme', 'free', '{read:pets,write:pets}')
          returning id
      )
      insert into credentials (caller_id, kind, hash, hint, scopes)
      select id, 'api_key', sha256('secret'), 'pik_1234', '{read:pets}' from acme;
      with client as (
          insert into credentials (caller_id, kind, hash, hint, client_id)
          select id, 'client_secret', sha256('client'), 'pis_1234', 'pic_1' from callers
          returning id, caller_id
      )
      insert into credentials (caller_id, kind, hash, hint, issued_by, expires_at)
      select caller_id, 'access_token', sha256('token'), 'pit_1234', id, now() + interval '1 hour' from client;
      update credentials set last_used_at = now() where kind = 'api_key';
      update callers set plan = 'pro' where name = 'acme';

      with caller as (
          insert into callers (name, plan, scopes) values ('user:1', 'free', '{read:pets}') returning id
      )
      insert into users (id, caller_id, username, folded) select 1, id, 'Ada', 'ada' from caller;
      insert into credentials (caller_id, kind, hash, hint, expires_at)
      select caller_id, 'session', sha256('session'), 'pis_1234', now() + interval '1 hour' from users;
      update callers set disabled_at = now() where name = 'user:1';

      insert into pets (id, status, details) values (1, 'available', json_build_object('category', '{"id": 1, "name": "Dogs"}'::json,
                    'name', 'Rex', 'photoUrls', json_build_array('https://example.com/rex.jpg'),
                    'tags', '[{"id": 1, "name": "friendly"}, {"name": "big"}]'::json)),
             (2, 'sold', json_build_object('name', 'Äda 🦊', 'photoUrls', '[]'::json, 'tags', '[]'::json)),
             (4, 'sold', json_build_object('category', '{}'::json,
                                           'name', 'Gone', 'photoUrls', array_fill('/' || repeat('y', 2000), array[50]),
                                           'tags', '[{"name": "large"}]'::json)),
             (9007199254740991, 'pending', json_build_object('category', '{}'::json,
                    'name', 'Last', 'photoUrls', json_build_array('/a', '/b'),
                    'tags', '[{}, {"id": 5}, {"name": "big"}]'::json));
      do $$ begin
          assert (select pg_column_size(details) > 100000 from pets where id = 4);
      end $$;
      update pets set details = '{"name": "Äda 🦊", "photoUrls": [], "tags": [{"name": "small"}, {"name": "large"}]}' where id = 2;
      delete from pets where id = 4;

      insert into image_contents (sha256, key, media_type, size, width, height)
      values (sha256('image'), 'ab/abcd', 'image/png', 5, 8192, 1);
      insert into images (id, pet_id, sha256) values (decode(repeat('0f', 16), 'hex'), 1, sha256('image'));
      insert into image_renderings (sha256, width, key, media_type, size)
      values (sha256('image'), 16, 'cd/cdef', 'image/png', 4);
      update image_place set nonce = gen_random_uuid(), next_nonce = gen_random_uuid();

      insert into orders (id, owner, pet_id, held_pet, quantity, ship_date, status, complete) values
      (1, 1, 9007199254740991, 9007199254740991, 1, null, 'placed', false),
      (2, 1, 99, null, 2147483647, '2026-01-31T12:00:00Z', 'delivered', true);

      insert into idempotency_keys (caller, key, fingerprint, answer)
      values ('acme', 'k', sha256('request'), '{"status": 201, "headers": [], "body": ""}');

      insert into limit_usage (key, day_used) values ('caller:3', 1);
      select * from lease_requests('{caller:3}', '{60}', '{1000}', '{1}', '{1}', '{null}', '{null}');
      insert into caller_usage (caller_id, day, admitted, refused) values (1, '2026-01-31', 2, 1);

      insert into new_changes (kind, resource, action, version, actor, request_id, data)
      values ('pet', '1', 'created', 7, 'acme', 'r-1', '{"status": [null, "available"]}');

      update pets set details = jsonb_set(details::jsonb, '{tags,2}', '{"name": "new"}')::json where id = 2;
      do $$ begin
          assert (select array_agg(tag order by tag) = '{large,new,small}' from pet_tags where status = 'sold');
          assert (select count(*) = 3 from pet_tags where status <> 'sold');
      end $$;
      insert into tag_names (name, folded_name) values ('unused', 'unused');
      insert into pets (id, status, details)
      select 212, 'sold',
             json_build_object('name', 'Rex', 'photoUrls', '[]'::json,
                               'tags', jsonb_build_array('{"name": "a"}'::jsonb, '{"name": "a"}'::jsonb, '{}'::jsonb,
          '{"name": ""}'::jsonb, '{"name": "b"}'::jsonb, jsonb_build_object('name', repeat('x', 256))));
      do $$ begin
          assert (select array_agg(tag order by tag) = '{a,b}' from pet_tags where pet_id = 212);
          assert (select cardinality(tag_names) = 6 from pets where id = 212);
      end $$;
      delete from pets where id = 212;

      insert into webhooks (url, secret, kinds, position) values ('https://example.com/', sha256('x'), '{pet}', 1);
      insert into webhook_retries (webhook_id, position, kind, resource, attempts, next_at)
      values (1, 1, 'pet', '7', 1, now());
      update webhook_retries set parked_at = now();
      update credentials set name = 'till 3', rotated_at = now() where kind = 'api_key';
      select name from callers where name collate "C" >= 'ac' and name collate "C" < 'ad';
      insert into webhook_attempts (webhook_id, attempts) values (1, '[]')"#,
    ),
    (310, "insert into last_backup (at) values (now())"),
    (
        311,
        "insert into changes (position, at, kind, resource, action, data)
         values (9007199254740000, now(), 'pet', '1', 'changed', jsonb_build_object('name', array['a', repeat('x', 9000)]));
         do $$ begin
             assert (select pg_column_size(data) > 9000 from changes where position = 9007199254740000);
         end $$",
    ),
    (
        312,
        "insert into tag_names (name, folded_name) values ('ısırgan', 'ısırgan')",
    ),
    (
        313,
        "select caller_id from users where folded collate \"C\" >= 'ad' and folded collate \"C\" < 'ae'",
    ),
    (
        314,
        "do $$ begin
             assert (select count(*) = 3 from pets where created_order = 0);
         end $$;
         insert into pets (id, status, details) values
             (7, 'sold', '{\"name\": \"New\", \"photoUrls\": [], \"tags\": [{\"name\": \"big\"}]}');
         do $$ begin
             assert (select count(*) = 1 from pet_tags join pets on id = pet_id
                     where pet_tags.created_order = pets.created_order and pets.created_order > 0);
         end $$;
         delete from pets where id = 7",
    ),
    (315, "select from pets where status = 'sold' order by created_order"),
    (316, "select from pet_tags where tag || ':' || status = 'big:sold' order by created_order"),
];

async fn apply(options: &db::ConnectOptions) -> Result<(), db::Error> {
    db::migrations::apply(options, Pooler::None).await
}

async fn run(connection: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
        .execute(connection)
        .await
        .unwrap_or_else(|error| panic!("{statements}: {error}"));
}

async fn number(connection: &mut PgConnection, question: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(question.to_owned()))
        .fetch_one(connection)
        .await
        .unwrap_or_else(|error| panic!("{question}: {error}"))
}

/// Returns the columns, indexes, constraints, functions and triggers of the schema as text.
async fn schema(connection: &mut PgConnection) -> Vec<String> {
    sqlx::query_scalar(
        "select format('%s.%s %s %s %s', table_name, column_name, data_type, is_nullable, column_default)
         from information_schema.columns where table_schema = 'public'
         union all select indexdef from pg_indexes where schemaname = 'public'
         union all select format('%s %s', conname, pg_get_constraintdef(oid)) from pg_constraint
                   where connamespace = 'public'::regnamespace
         union all select pg_get_functiondef(oid) from pg_proc where pronamespace = 'public'::regnamespace
         union all select pg_get_triggerdef(oid) from pg_trigger where not tgisinternal
         order by 1",
    )
    .fetch_all(connection)
    .await
    .expect("the schema")
}

#[test]
fn migrations_all_have_test_rows() {
    let versions = MIGRATOR.iter().map(|migration| migration.version);
    let files: BTreeSet<i64> = versions.filter(|version| *version >= 309).collect();
    let rows: BTreeSet<i64> = ROWS.iter().map(|(version, _)| *version).collect();
    assert_eq!(files, rows, "add the rows of the new migration to ROWS");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_apply_over_existing_data() {
    let database = TestDatabase::empty().await;
    let mut connection = database.connect().await;
    for (version, rows) in ROWS {
        MIGRATOR
            .run_to(version, &mut connection)
            .await
            .unwrap_or_else(|error| panic!("migration {version}: {error}"));
        run(&mut connection, rows).await;
    }
    // The schema is the same whether migrations run one by one or together.
    apply(database.options()).await.expect("nothing is missing");
    let whole = TestDatabase::migrated().await;
    assert_eq!(
        schema(&mut connection).await,
        schema(&mut whole.connect().await).await
    );

    check_pets(&database).await;
    check_callers(&mut connection).await;
    check_images(&mut connection).await;
}

async fn check_pets(database: &TestDatabase) {
    let config = Config::defaults().expect("a configuration").database;
    let service = db::Database::new(database.options().clone(), &config);
    let part = Part {
        after: None,
        limit: 10,
        max_size: None,
        is_small: true,
        caller: CallerKey::Anonymous(None),
    };
    let found = db::pets::find_by_status(&service, &Status::ALL, part).await;
    let ids: Vec<i64> = found
        .expect("pets")
        .matches
        .iter()
        .map(|pet| pet.id.get())
        .collect();
    assert_eq!(ids, [1, 2, PetId::MAX]);
    let inventory = service.run(db::inventory::count).await;
    let inventory = inventory.expect("a database");
    let counts = [inventory.available, inventory.pending, inventory.sold];
    assert_eq!(counts, [1, 1, 1]);
    let big = ["big".to_owned()].into();
    let found = db::pets::find_by_any_tag(&service, big, part).await;
    let found = found.expect("pets").matches;
    assert_eq!(found.len(), 2, "{found:?}");
    let small = ["small".to_owned()].into();
    let changed = db::pets::find_by_any_tag(&service, small, part).await;
    assert_eq!(changed.expect("pets").matches.len(), 1);
    let large = ["large".to_owned()].into();
    let added = db::pets::find_by_any_tag(&service, large, part).await;
    assert_eq!(added.expect("pets").matches.len(), 1);
    let fold = service.transact(db::pets::fold_names).await;
    assert_eq!(fold.expect("a database"), 3);
    let part_by_name = Part {
        after: None,
        limit: 10,
        max_size: None,
        is_small: true,
        caller: CallerKey::Anonymous(None),
    };
    let search = NameSearch {
        prefix: "äd".to_owned(),
        statuses: Status::ALL.to_vec(),
        tags: vec!["new".to_owned()],
    };
    let named = db::pets::find_by_name(&service, &search, part_by_name).await;
    assert_eq!(named.expect("pets").matches[0].1.id.get(), 2);
    let listing = PetListing {
        ids: Vec::new(),
        statuses: vec![Status::Pending],
        tags: vec!["big".to_owned()],
        is_descending: true,
    };
    let listed = db::pets::list(&service, &listing, part).await;
    assert_eq!(listed.expect("pets").matches[0].id.get(), PetId::MAX);
    let add = async |it: &mut db::Connection| db::pets::add_used_tag_names(it, "").await;
    assert_eq!(service.run(add).await.expect("a database"), None);
    let remove = async |it: &mut db::Connection| db::pets::remove_unused_tag_names(it, "").await;
    assert_eq!(service.run(remove).await.expect("a database"), None);
    let suggest = async |it: &mut db::Connection| db::pets::suggest_tags(it, "N", 20).await;
    assert_eq!(service.run(suggest).await.expect("a database"), ["new"]);
    let unused = async |it: &mut db::Connection| db::pets::suggest_tags(it, "unused", 20).await;
    assert_eq!(service.run(unused).await.expect("a database"), [""; 0]);
    let details =
        |pet: &StoredPet| PetDetails::from_json(&pet.json, Status::Available).expect("a pet");
    let details = (details(&found[0]), details(&found[1]));
    let (details, last) = &details;
    assert_eq!(details.name.as_str(), "Rex");
    assert_eq!(
        details
            .category
            .as_ref()
            .and_then(|category| category.name.as_ref()),
        Some(&Text::from_stored("Dogs".to_owned()))
    );
    assert_eq!(
        details.photo_urls[0].as_str(),
        "https://example.com/rex.jpg"
    );
    assert_eq!(details.tags[0].id, Some(1));
    assert_eq!(last.category, Some(Category::default()));
    assert_eq!(last.tags.len(), 3);
}

async fn check_callers(connection: &mut PgConnection) {
    let hash = pet_inventory::auth::secret::sha256("secret");
    let callers = db::credentials::find_callers(&mut *connection, &[hash]).await;
    let caller = &callers.expect("a database")[&hash].caller;
    assert_eq!((caller.name.as_str(), caller.plan), ("acme", Plan::Pro));
    assert_eq!(caller.scopes.to_string(), "read:pets");
    assert_ne!(caller.scopes, Scopes::all());
    let kept = db::idempotency::find(&mut *connection, "acme", "k").await;
    assert_eq!(
        kept.expect("a database").expect("a response").response["status"],
        201
    );
}

async fn check_images(connection: &mut PgConnection) {
    let images = db::images::list(&mut *connection, PetId::new(1).expect("an id")).await;
    let images = images.expect("images");
    assert_eq!(images[0].id.to_string(), "0f".repeat(16));
    assert_eq!(
        (images[0].content.key.as_str(), images.len()),
        ("ab/abcd", 1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_applied_twice_change_nothing() {
    let database = TestDatabase::empty().await;
    let mut connection = database.connect().await;
    apply(database.options()).await.expect("migrated");
    let before = schema(&mut connection).await;
    run(&mut connection, ROWS[0].1).await;
    let moment =
        "select sum(extract(epoch from installed_on) * 1000000)::bigint from _sqlx_migrations";
    let installed = number(&mut connection, moment).await;
    for _ in 0..2 {
        apply(database.options()).await.expect("nothing to do");
    }
    assert_eq!(schema(&mut connection).await, before);
    assert_eq!(
        number(&mut connection, "select count(*) from pets").await,
        3
    );
    assert_eq!(number(&mut connection, moment).await, installed);
    let pending = db::migrations::pending(database.options(), Pooler::None)
        .await
        .expect("a database");
    assert!(pending.is_empty(), "{pending:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_started_together_are_applied_once() {
    for _ in 0..3 {
        let database = TestDatabase::empty().await;
        let appliers = (0..4).map(|_| apply(database.options()));
        for outcome in join_all(appliers).await {
            outcome.expect("migrated");
        }
        let mut connection = database.connect().await;
        let files = i64::try_from(MIGRATOR.iter().count()).expect("a few");
        let recorded = "select count(*) from _sqlx_migrations where success";
        assert_eq!(number(&mut connection, recorded).await, files);
        let locks = "select count(*) from pg_locks where locktype = 'advisory'
                     and database = (select oid from pg_database where datname = current_database())";
        assert_eq!(number(&mut connection, locks).await, 0, "the lock is kept");
    }
}

/// After an interrupted concurrent build, the index is built again; behind a pooler, in the transaction of all migrations.
#[tokio::test(flavor = "multi_thread")]
async fn indexes_are_complete_after_an_interrupted_build_and_behind_a_pooler() {
    let whole = schema(&mut TestDatabase::migrated().await.connect().await).await;
    for pooler in [Pooler::None, Pooler::Transaction] {
        let database = TestDatabase::empty().await;
        let mut connection = database.connect().await;
        MIGRATOR
            .run_to(314, &mut connection)
            .await
            .expect("migrated");
        if pooler == Pooler::None {
            // PostgreSQL leaves an index that does not fit its table: here, of no unique values.
            run(&mut connection, ROWS[0].1).await;
            run(
                &mut connection,
                "update pets set created_order = 1, status = 'sold'",
            )
            .await;
            let interrupted = sqlx::raw_sql(
                "create unique index concurrently pets_by_creation on pets (status, created_order)",
            );
            let refused = interrupted.execute(&mut connection).await;
            assert!(refused.is_err(), "{refused:?}");
        }
        db::migrations::apply(database.options(), pooler)
            .await
            .expect("migrated");
        assert_eq!(schema(&mut connection).await, whole, "{pooler:?}");
        let incomplete = "select count(*) from pg_index where not indisvalid";
        assert_eq!(number(&mut connection, incomplete).await, 0, "{pooler:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn migration_with_another_checksum_stops_the_start() {
    let database = TestDatabase::migrated().await;
    let mut connection = database.connect().await;
    run(
        &mut connection,
        "update _sqlx_migrations set checksum = 'x' where version = 301",
    )
    .await;
    let error = apply(database.options())
        .await
        .expect_err("another migration 301");
    assert!(error.to_string().contains("migration"), "{error}");
    // A migration of a later release is ignored.
    let database = TestDatabase::migrated().await;
    let mut connection = database.connect().await;
    run(
        &mut connection,
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
         values (9999, 'of a later release', true, 'x', 1)",
    )
    .await;
    apply(database.options()).await.expect("nothing to do");
}

#[tokio::test(flavor = "multi_thread")]
async fn database_with_the_migrations_of_an_earlier_build_is_refused_unchanged() {
    let database = TestDatabase::migrated().await;
    let mut connection = database.connect().await;
    // As those builds left it: tables, and migrations up to 212.
    let latest = "select max(version) from _sqlx_migrations";
    let earlier = format!("update _sqlx_migrations set version = version - ({latest}) + 212");
    run(&mut connection, &earlier).await;
    let before = schema(&mut connection).await;
    for pooler in [Pooler::None, Pooler::Transaction] {
        let refused = db::migrations::apply(database.options(), pooler).await;
        let text = refused.expect_err("an earlier schema").to_string();
        assert!(text.contains("schema 0212"), "{text}");
        assert!(text.contains("pet-inventory export"), "{text}");
        assert!(text.contains("pet-inventory import"), "{text}");
    }
    assert_eq!(schema(&mut connection).await, before);
    let recorded = "select count(*) from _sqlx_migrations where version < 301";
    let files = i64::try_from(MIGRATOR.iter().count()).expect("a few");
    assert_eq!(number(&mut connection, recorded).await, files);
}

/// Last migration of the store that is upgraded: that of the release before.
const RELEASED: i64 = 309;
/// Longest time for which a migration may hold up the release before it, in a store of 100,000 pets. A second for a million would be 0.1 s;
/// the rest is for a busy machine.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// Adds 100,000 pets, each with two tags, and an order for each tenth.
const FILL: &str = "
    insert into pets (id, status, details, folded_name)
    select id, 'available',
           json_build_object('name', 'Pet ' || id, 'photoUrls', json_build_array('https://example.com/rex.jpg'),
                             'tags', jsonb_build_array(jsonb_build_object('name', 'tag ' || id % 100), jsonb_build_object('name', 'all'))), 'pet ' || id
    from generate_series(1, 100000) as id;
    insert into orders (id, owner, pet_id, quantity, status, complete)
    select id, 0, id * 10, 1, 'delivered', true from generate_series(1, 10000) as id";

/// Returns the longest time for which a reader and writer of all tables waits for `migration`, which goes on in a task of its own: with a
/// lock, it must not wait for what waits for the lock.
async fn longest_wait(database: &TestDatabase, migration: impl Future<Output = ()>) -> Duration {
    let mut connection = database.connect().await;
    let tables = "select string_agg(tablename, ', ') from pg_tables
                  where schemaname = 'public' and tablename <> '_sqlx_migrations'";
    let tables: String = sqlx::query_scalar(tables)
        .fetch_one(&mut connection)
        .await
        .expect("tables");
    // As a statement that changes rows, which waits in the same way.
    let change = format!("begin; lock table {tables} in row exclusive mode; rollback");
    let mut longest = Duration::ZERO;
    let mut migration = pin!(migration);
    let mut has_ended = false;
    while !has_ended {
        let started = Instant::now();
        run(&mut connection, &change).await;
        longest = longest.max(started.elapsed());
        let pause = Duration::from_millis(5);
        has_ended = tokio::time::timeout(pause, &mut migration).await.is_ok();
    }
    longest
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_loses_no_row_and_holds_no_lock_for_long() {
    let database = TestDatabase::empty().await;
    let mut connection = database.connect().await;
    let released = MIGRATOR.run_to(RELEASED, &mut connection).await;
    released.expect("the schema of the release before");
    run(&mut connection, FILL).await;
    let counts = "select (select count(*) from pets) + (select count(*) from pet_tags) + (select count(*) from orders)";
    let before = number(&mut connection, counts).await;
    assert_eq!(before, 310_000);
    let turkish = "update pets set folded_name = 'i\u{307}stanbul', details = '{\"name\": \"\u{130}stanbul\", \"photoUrls\": [], \"tags\": []}' where id = 7";
    run(&mut connection, turkish).await;
    let options = database.options().clone();
    let upgrade = tokio::spawn(async move { apply(&options).await.expect("migrated") });
    let wait = longest_wait(&database, async { upgrade.await.expect("a task") }).await;
    assert!(wait < MAX_WAIT, "a statement waited for {wait:?}");
    assert_eq!(number(&mut connection, counts).await, before - 2);
    // The service folds it again.
    let unfolded = "select sum(id)::bigint from pets where folded_name is null";
    assert_eq!(number(&mut connection, unfolded).await, 7);

    // The measurement tells a migration that ends at once from one that holds a lock.
    let database = &database;
    let waits_for = async |migration: &'static str| {
        let migrating = tokio::spawn({
            let mut connection = database.connect().await;
            async move { run(&mut connection, migration).await }
        });
        longest_wait(database, async { migrating.await.expect("migrated") }).await
    };
    let wait = waits_for("lock table pets in share mode; select pg_sleep(1)").await;
    assert!(wait > MAX_WAIT, "{wait:?}");
}
