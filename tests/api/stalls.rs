//! Timeouts of connections without progress, and retries of conflicting transactions.

use std::{
    future::pending,
    sync::atomic::{AtomicU32, Ordering},
};

use pet_inventory::db::{self, Connection, Database};
use test_support::*;
use tokio::{net::TcpSocket, sync::Barrier};

/// More pets than fit into the buffers between the service and a client.
const MANY: &str = "insert into pets (id, status, details)
    select n, 'sold', json_build_object('name', repeat('x', 255), 'photoUrls', array[repeat('/y', 50)], 'tags', '[]'::json)
    from generate_series(1, 20000) n";

/// Requests all of them on a new connection, and returns the connection with the response unread.
async fn request_without_reading(app: &TestApp) -> tokio::net::TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4 << 10).expect("a buffer");
    let mut stream = socket.connect(app.address).await.expect("a connection");
    let request = format!(
        "GET /api/v3/pet/findByStatus?status=sold HTTP/1.1\r\nHost: a\r\napi_key: {}\r\n\r\n",
        app.key
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    // The response has started.
    stream.readable().await.expect("a response");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_streams_leave_permits_for_other_requests_and_time_out() {
    let settings = [
        ("PET_INVENTORY__SERVER__MAX_RESPONSE_MEMORY", "128MiB"),
        ("PET_INVENTORY__SERVER__IDLE_TIMEOUT", "4s"),
    ];
    let app = TestApp::with(&settings).await;
    app.database.run(MANY).await;
    let all = "/pet/findByStatus?status=sold";
    for reads_bytes in [false, true] {
        // One client address has 16 MiB, and each stream needs two.
        let mut unread = JoinSet::new();
        while app.get(all).send().await.expect("a response").status() != 503 {
            assert!(unread.len() < 20, "streams have no bound");
            let mut stream = request_without_reading(&app).await;
            unread.spawn(async move {
                while reads_bytes && stream.read_u8().await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                pending::<()>().await;
                drop(stream);
            });
        }
        app.get("/pet/1").is(200).await;
        // The connections that do not read, or byte by byte, are closed, which returns their shares.
        eventually(async || app.get(all).send().await.expect("a response").status() == 200).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_takes_longer_than_idle_timeout_gets_its_response() {
    const IDLE_TIMEOUT: Duration = Duration::from_millis(100);
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__IDLE_TIMEOUT", "100ms")]).await;
    let mut lock = app.database.connect().await;
    let id = app.pet("a").await;
    let change = format!("/pet/{id}");
    let started = Instant::now();
    // Repeats: on a busy machine, the statement may wait for longer than it may, and the response is 503.
    loop {
        lock.execute("begin; lock table pets in exclusive mode")
            .await
            .expect("locked");
        let sent = Instant::now();
        let patch = app.patch(&change, &json!({"name": "c"}));
        let patch = tokio::spawn(patch.into_future());
        let waits = eventually(async || app.database.waiting_for_locks().await == 1);
        drop(tokio::time::timeout(Duration::from_secs(2), waits).await);
        tokio::time::sleep_until((sent + 5 * IDLE_TIMEOUT).into()).await;
        lock.execute("commit").await.expect("committed");
        let response = patch.await.expect("no panic");
        if response.status == 200 {
            break;
        }
        response.problem(503);
        assert!(started.elapsed() < PATIENCE, "always too late");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_whose_client_disconnects_keeps_its_connection_until_its_end() {
    const PIDS: &str = "select coalesce(sum(pid), 0)::int8 from pg_stat_activity
         where application_name = 'pet-inventory' and datname = current_database()";
    let app = TestApp::start().await;
    let mut lock = app.database.connect().await;
    let add = |key: &str| {
        app.post("/pet", &json!({"name": key}))
            .header("idempotency-key", key)
    };
    // Opens a connection of the pool.
    add("a").is(201).await;
    let before = app.database.number(PIDS).await;
    lock.execute("begin; lock table pets in exclusive mode")
        .await
        .expect("locked");
    let sent = tokio::spawn(add("b").into_future());
    eventually(async || app.database.waiting_for_locks().await == 1).await;
    sent.abort();
    let _ = sent.await;
    lock.execute("commit").await.expect("committed");
    eventually(async || app.count().await == 2).await;
    assert_eq!(app.database.number(PIDS).await, before);
    add("b").is(201).await;
    assert_eq!(app.count().await, 2, "the response was stored, too");
    assert_eq!(app.database.number(PIDS).await, before);
}

fn database(test: &TestDatabase) -> Database {
    let config = config(&test.url(), &[]);
    let url = config.database.url.as_ref().expect("a URL");
    let options = db::DatabaseUrl::parse(url, None).expect("a URL").options;
    Database::new(options, &config.database)
}

#[tokio::test(flavor = "multi_thread")]
async fn serialization_failure_is_retried() {
    let test = TestDatabase::migrated().await;
    let database = database(&test);
    for (code, is_retried) in [("40001", true), ("40P01", true), ("55P03", false)] {
        let tries = &AtomicU32::new(0);
        let done = database
            .transact(async |transaction: &mut Connection| {
                if tries.fetch_add(1, Ordering::Relaxed) < 2 {
                    let raise = format!("do $$ begin raise using errcode = '{code}'; end $$");
                    let raise = sqlx::raw_sql(AssertSqlSafe(raise));
                    transaction.execute(raise).await?;
                }
                Ok::<_, db::Error>(())
            })
            .await;
        assert_eq!(done.is_ok(), is_retried, "{code}: {done:?}");
        let expected = if is_retried { 3 } else { 1 };
        assert_eq!(tries.load(Ordering::Relaxed), expected, "{code}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlocked_transactions_both_commit() {
    let test = TestDatabase::migrated().await;
    let database = database(&test);
    test.run(
        "insert into pets (id, status, details)
              values (1, 'sold', json_build_object('name', 'a', 'photoUrls', '[]'::json, 'tags', '[]'::json)),
             (2, 'sold', json_build_object('name', 'b', 'photoUrls', '[]'::json, 'tags', '[]'::json))",
    )
    .await;
    let met = Barrier::new(2);
    let lock_both = async |first: i64, second: i64| {
        let tries = &AtomicU32::new(0);
        let met = &met;
        database
            .transact(async |transaction: &mut Connection| {
                let lock = "select from pets where id = $1 for update";
                sqlx::query(lock)
                    .bind(first)
                    .execute(&mut *transaction)
                    .await?;
                if tries.fetch_add(1, Ordering::Relaxed) == 0 {
                    met.wait().await;
                }
                sqlx::query(lock)
                    .bind(second)
                    .execute(&mut *transaction)
                    .await?;
                Ok::<_, db::Error>(tries.load(Ordering::Relaxed))
            })
            .await
    };
    let (one, other) = tokio::join!(lock_both(1, 2), lock_both(2, 1));
    let tries = one.expect("done") + other.expect("done");
    // One of them was retried.
    assert_eq!(tries, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn database_waits_of_a_request_share_one_deadline() {
    let test = TestDatabase::migrated().await;
    let database = database(&test);
    let slow = || {
        database.run(async |connection| {
            sqlx::query("select pg_sleep(0.75)")
                .execute(connection)
                .await?;
            Ok::<_, db::Error>(())
        })
    };
    let (first, second, third) = db::deadline::of_request(Box::pin(async {
        (
            db::deadline::wait(Duration::from_secs(2), slow()).await,
            db::deadline::wait(Duration::from_secs(2), slow()).await,
            db::deadline::wait(Duration::from_secs(2), slow()).await,
        )
    }))
    .await;
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    let third = third.expect_err("the third exceeds the total");
    assert!(matches!(third, db::Error::TotalTimedOut), "{third:?}");
}
