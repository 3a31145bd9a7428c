//! Timeouts of connections without progress, and retries of conflicting transactions.

use std::{
    future::pending,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use pet_inventory::db::{self, Connection, Database};
use reqwest::{Method, RequestBuilder};
use serde_json::json;
use sqlx::Executor as _;
use test_support::{
    Http2, RawConnection, RequestExt, TestApp, TestDatabase, client, client_builder, config,
    eventually,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
    sync::Barrier,
    task::JoinSet,
};

/// More pets than fit into the buffers between the service and a client.
const MANY: &str = "insert into pets (id, status, name, category, photo_urls, tags)
    select n, 'sold', repeat('x', 255), null, array[repeat('/y', 50)], '[]'
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
        ("PET_INVENTORY__SERVER__IDLE_TIMEOUT", "1s"),
    ];
    let app = TestApp::with(&settings).await;
    app.database.run(MANY).await;
    let all = "/pet/findByStatus?status=sold";
    for reads_bytes in [false, true] {
        // One client address has 12 MiB, and each stream needs three.
        let mut unread = JoinSet::new();
        for _ in 0..4 {
            let mut stream = request_without_reading(&app).await;
            unread.spawn(async move {
                while reads_bytes && stream.read_u8().await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                pending::<()>().await;
                drop(stream);
            });
        }
        app.get(all).response().await.problem(503);
        app.get("/pet/1").response().await.is(200);
        // The connections that do not read, or byte by byte, are closed, which returns their shares.
        eventually(async || app.get(all).send().await.expect("a response").status() == 200).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_connection_without_requests_is_closed() {
    /// Client connection preface and an empty SETTINGS frame.
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__IDLE_TIMEOUT", "300ms")]).await;
    let mut raw = RawConnection::connect(app.address).await;
    raw.send(PREFACE).await;
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
    let started = Instant::now();
    let mut response = get.send().await.expect("a response");
    let mut read = 0;
    while let Some(chunk) = response.chunk().await.expect("all of it") {
        read += chunk.len();
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert!(read > 200_000, "{read}");
    // Longer than the timeout; otherwise the test would prove nothing.
    assert!(started.elapsed() > Duration::from_secs(2), "in one piece");
}

/// A window of 0 holds back the whole body, a window of 1 all but its first byte.
#[tokio::test(flavor = "multi_thread")]
async fn http2_stream_without_progress_is_reset_after_idle_timeout() {
    const IDLE_TIMEOUT: Duration = Duration::from_millis(500);
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__IDLE_TIMEOUT", "500ms")]).await;
    app.database.run(MANY).await;
    for window in [0, 1] {
        let started = Instant::now();
        let connection = Http2::connect(app.address, window).await;
        let pets = "/api/v3/pet/findByStatus?status=sold";
        let response = connection.fetch(Method::GET, pets, &app.key).await;
        assert_eq!(response.status(), 200);
        let (mut body, mut received) = (response.into_body(), 0);
        let reset = async {
            loop {
                match body.data().await.expect("not the end of the body") {
                    Ok(bytes) => received += bytes.len(),
                    Err(error) => break error,
                }
            }
        };
        // Other streams and connections are served meanwhile. The requests keep this connection from being idle.
        let served = async {
            let mut period = tokio::time::interval(IDLE_TIMEOUT / 10);
            while started.elapsed() < 6 * IDLE_TIMEOUT {
                period.tick().await;
                let head = connection.fetch(Method::HEAD, "/livez", &app.key).await;
                assert_eq!(head.status(), 200);
                app.get("/pet/1").response().await.is(200);
            }
        };
        let error = tokio::select! {
            error = reset => error,
            () = served => panic!("not reset within {:?}", started.elapsed()),
        };
        assert!(error.is_remote() && error.is_reset(), "{window}: {error}");
        assert_eq!(received, window as usize);
        assert!(started.elapsed() >= IDLE_TIMEOUT, "{:?}", started.elapsed());
        let head = connection.fetch(Method::HEAD, "/livez", &app.key).await;
        assert_eq!(head.status(), 200);
    }
}

/// A client opens its window by one byte, now and then.
#[tokio::test(flavor = "multi_thread")]
async fn http2_stream_that_is_read_byte_by_byte_ends_after_idle_timeout() {
    const IDLE_TIMEOUT: Duration = Duration::from_millis(500);
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__IDLE_TIMEOUT", "500ms")]).await;
    app.database.run(MANY).await;
    for path in ["/api/v3/pet/findByStatus?status=sold", "/api/v3/pet/1"] {
        let started = Instant::now();
        let connection = Http2::connect(app.address, 1).await;
        let response = connection.fetch(Method::GET, path, &app.key).await;
        let mut body = response.into_body();
        // Ends with an error, as the stream is reset or the connection is closed.
        while let Ok(bytes) = body.data().await.expect("not the end of the body") {
            assert!(started.elapsed() < 6 * IDLE_TIMEOUT, "{path}");
            tokio::time::sleep(IDLE_TIMEOUT / 10).await;
            let released = body.flow_control().release_capacity(bytes.len());
            released.expect("a window of one byte again");
        }
        assert!(started.elapsed() >= IDLE_TIMEOUT, "{path}");
        app.get("/pet/1").response().await.is(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_response_is_sent_through_a_window_of_one_byte() {
    let app = TestApp::start().await;
    let id = app.pet("a").await;
    let connection = Http2::connect(app.address, 1).await;
    let path = format!("/api/v3/pet/{id}");
    let mut body = connection
        .fetch(Method::GET, &path, &app.key)
        .await
        .into_body();
    let mut received = Vec::new();
    while let Some(bytes) = body.data().await {
        let bytes = bytes.expect("a part of the body");
        assert!(bytes.len() <= 1);
        let released = body.flow_control().release_capacity(bytes.len());
        released.expect("a window of one byte again");
        received.extend_from_slice(&bytes);
    }
    assert_eq!(
        received,
        app.get(&format!("/pet/{id}")).response().await.body
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_takes_longer_than_idle_timeout_gets_its_response() {
    const IDLE_TIMEOUT: Duration = Duration::from_millis(100);
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__IDLE_TIMEOUT", "100ms")]).await;
    let http2 = client_builder().no_proxy().http2_prior_knowledge();
    let http2 = http2.build().expect("a client");
    let mut lock = app.database.connect().await;
    let ids = [app.pet("a").await, app.pet("b").await];
    lock.execute("begin; lock table pets in exclusive mode")
        .await
        .expect("locked");
    let started = Instant::now();
    let pet = json!({"name": "c"});
    let patches = [client(), http2].into_iter().zip(ids).map(|(client, id)| {
        let patch = app.patch(&format!("/pet/{id}"), &pet).build();
        let patch = RequestBuilder::from_parts(client, patch.expect("a request"));
        tokio::spawn(patch.response())
    });
    let patches: Vec<_> = patches.collect();
    let waiting = "select count(*) from pg_locks where not granted
         and database = (select oid from pg_database where datname = current_database())";
    eventually(async || app.database.number(waiting).await == 2).await;
    tokio::time::sleep_until((started + 5 * IDLE_TIMEOUT).into()).await;
    lock.execute("commit").await.expect("committed");
    for patch in patches {
        patch.await.expect("no panic").is(200);
    }
}

fn database(test: &TestDatabase) -> Database {
    let config = config(&test.url(), &[]);
    let url = config.database.url.as_ref().expect("a URL");
    let options = db::parse_url(url).expect("a URL");
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
                    let raise = sqlx::raw_sql(sqlx::AssertSqlSafe(raise));
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
    let slow = || {
        database.run(async |connection| {
            sqlx::query("select pg_sleep(1)")
                .execute(connection)
                .await?;
            Ok::<_, db::Error>(())
        })
    };
    let (first, second, third) = db::deadline::scope(async {
        (
            db::deadline::wait(Duration::from_secs(2), slow()).await,
            db::deadline::wait(Duration::from_secs(2), slow()).await,
            db::deadline::wait(Duration::from_secs(2), slow()).await,
        )
    })
    .await;
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    let third = third.expect_err("the third exceeds the total");
    assert!(matches!(third, db::Error::TotalTimedOut), "{third:?}");
}
