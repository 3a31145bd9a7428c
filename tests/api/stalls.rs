//! Responses that are not read and idle connections are closed; transactions that conflict are retried.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use pet_inventory::db::{self, Connection, Database};
use sqlx::Executor as _;
use test_support::{Ask, Raw, TestApp, TestDatabase, client_builder, config, eventually};
use tokio::{io::AsyncWriteExt as _, net::TcpSocket, sync::Barrier};

/// More pets than fit into the buffers between the service and a client.
const MANY: &str = "insert into pets (id, status, name, category, photo_urls, tags)
    select n, 'sold', repeat('x', 255), null, array[repeat('/y', 50)], '[]'
    from generate_series(1, 20000) n";

/// Connection that has requested all of them and reads nothing.
async fn unread(app: &TestApp) -> tokio::net::TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4 << 10).expect("a buffer");
    let mut stream = socket.connect(app.address).await.expect("a connection");
    let request = format!(
        "GET /api/v3/pet/findByStatus?status=sold HTTP/1.1\r\nHost: a\r\napi_key: {}\r\n\r\n",
        app.key
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    // The response has begun.
    stream.readable().await.expect("an answer");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_streams_leave_permits_for_other_requests_and_time_out() {
    let settings = [
        ("PET_INVENTORY__SERVER__MAX_REQUESTS", "2"),
        ("PET_INVENTORY__SERVER__IDLE_TIMEOUT", "1s"),
    ];
    let app = TestApp::with(&settings).await;
    app.database.run(MANY).await;
    let first = unread(&app).await;
    // One of the two permits is for streams.
    let all = "/pet/findByStatus?status=sold";
    app.get(all).answer().await.problem(503);
    app.get("/pet/1").answer().await.is(200);
    // The unread one is closed, which returns its permit.
    eventually(async || app.get(all).send().await.expect("an answer").status() == 200).await;
    drop(first);
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_connection_without_requests_is_closed() {
    const BEGINNING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__IDLE_TIMEOUT", "300ms")]).await;
    let mut raw = Raw::connect(app.address).await;
    raw.send(BEGINNING).await;
    raw.closed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_client_that_reads_slowly_gets_the_whole_response() {
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__IDLE_TIMEOUT", "1500ms")]).await;
    app.database
        .run(
            "insert into pets (id, status, name, category, photo_urls, tags)
             values (1, 'sold', 'a', null, array_fill('/' || repeat('y', 2000), array[100]), '[]')",
        )
        .await;
    let client = client_builder()
        .http2_prior_knowledge()
        .http2_initial_stream_window_size(16 << 10);
    let client = client.no_proxy().build().expect("a client");
    let get = client.get(app.url("/pet/1")).header("api_key", &app.key);
    let begun = Instant::now();
    let mut answer = get.send().await.expect("an answer");
    let mut read = 0;
    while let Some(chunk) = answer.chunk().await.expect("all of it") {
        read += chunk.len();
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert!(read > 200_000, "{read}");
    // Otherwise the test shows nothing.
    assert!(begun.elapsed() > Duration::from_secs(2), "in one piece");
}

fn database(of: &TestDatabase) -> Database {
    let config = config(&of.url(), &[]);
    let url = config.database.url.as_ref().expect("a URL");
    let options = db::parse_url(url).expect("a URL");
    Database::new(options, &config.database)
}

#[tokio::test(flavor = "multi_thread")]
async fn serialization_failure_is_retried() {
    let test = TestDatabase::migrated().await;
    let database = database(&test);
    for (code, gives_way) in [("40001", true), ("40P01", true), ("55P03", false)] {
        let tries = &AtomicU32::new(0);
        let done = database
            .transact(async |transaction: &mut Connection| {
                if tries.fetch_add(1, Ordering::Relaxed) < 2 {
                    let raise = format!("do $$ begin raise using errcode = '{code}'; end $$");
                    let raise = sqlx::raw_sql(sqlx::AssertSqlSafe(raise));
                    transaction.execute(raise).await?;
                }
                Ok::<_, db::Error>(())
            })
            .await;
        assert_eq!(done.is_ok(), gives_way, "{code}: {done:?}");
        let expected = if gives_way { 3 } else { 1 };
        assert_eq!(tries.load(Ordering::Relaxed), expected, "{code}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlocked_transactions_both_commit() {
    let test = TestDatabase::migrated().await;
    let database = database(&test);
    test.run(
        "insert into pets (id, status, name, category, photo_urls, tags)
              values (1, 'sold', 'a', null, '{}', '[]'), (2, 'sold', 'b', null, '{}', '[]')",
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
    let slow = || sqlx::query("select pg_sleep(1)").execute(database.pool());
    let (first, second, third) = db::deadline::scope(async {
        (
            db::deadline::wait(Duration::from_secs(2), slow()).await,
            db::deadline::wait(Duration::from_secs(2), slow()).await,
            db::deadline::wait(Duration::from_secs(2), slow()).await,
        )
    })
    .await;
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    assert!(matches!(third, Err(db::Error::TimedOut)), "{third:?}");
}
