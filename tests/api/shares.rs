//! What one client address may use at the same time: connections, requests, memory of lists. Other clients are
//! served meanwhile.

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use test_support::*;
use tokio::{net::TcpStream, time::timeout};

/// Address of a client who attacks.
const ATTACKER: &str = "127.0.0.2";
/// Address of another client.
const OTHER: &str = "127.0.0.3";

fn client_of(address: &str) -> Client {
    let client = client_builder().no_proxy();
    let client = client.local_address(Some(address.parse().expect("an address")));
    client.build().expect("a client")
}

/// Returns the head of a request without a body, with [`TestApp::key`].
fn head(app: &TestApp, method: &str, path: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: a\r\napi_key: {}\r\nContent-Length: 0\r\n\r\n",
        app.key
    )
}

/// Returns true if the server has closed a connection without a request, or does so within 300 ms.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    let read = timeout(Duration::from_millis(300), stream.read(&mut byte));
    matches!(read.await, Ok(Ok(0) | Err(_)))
}

/// Waits until the server closes a connection without a request.
async fn closed(mut stream: TcpStream) {
    eventually(async || is_closed(&mut stream).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_an_address_are_bounded() {
    let settings = [("PET_INVENTORY__SERVER__MAX_CONNECTIONS_PER_ADDRESS", "3")];
    let app = TestApp::with(&settings).await;
    for address in [app.address, app.operations] {
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(connect_from(ATTACKER, address).await);
        }
        closed(connect_from(ATTACKER, address).await).await;
        for stream in &mut open {
            assert!(!is_closed(stream).await);
        }
        let live = client_of(OTHER).get(format!("http://{address}/livez"));
        live.is(200).await;
        // A connection that ends makes room for another.
        open.pop();
        eventually(async || !is_closed(&mut connect_from(ATTACKER, address).await).await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trusted_proxies_may_have_any_number_of_connections() {
    let settings = [
        ("PET_INVENTORY__SERVER__MAX_CONNECTIONS_PER_ADDRESS", "1"),
        ("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.2/32"),
    ];
    let app = TestApp::with(&settings).await;
    let mut open = Vec::new();
    for _ in 0..5 {
        open.push(connect_from(ATTACKER, app.address).await);
    }
    for stream in &mut open {
        assert!(!is_closed(stream).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_credentials_leave_permits_for_others() {
    let settings = [("PET_INVENTORY__SERVER__MAX_REQUESTS", "16")];
    let app = TestApp::with(&settings).await;
    let id = app.pet("a").await;
    // Half of the permits are for requests without credentials, of which one address may have a quarter.
    let mut slow = Vec::new();
    for path in ["/user", "/user/login"] {
        let mut raw = RawConnection::from(connect_from(ATTACKER, app.address).await);
        raw.send(format!(
            "POST /api/v3{path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 99\r\nExpect: 100-continue\r\n\r\n"
        ))
        .await;
        // Its body is read, so that it has a permit.
        assert_eq!(raw.response().await.status, 100);
        raw.send("{").await;
        slow.push(raw);
    }
    let sign_up = async |client: &Client, name: &str| {
        let user = json!({"username": name, "password": "correct horse"});
        client.post(app.url("/user")).json(&user).response().await
    };
    let attacker = client_of(ATTACKER);
    // Invalid, so that it takes no time.
    let log_in = || attacker.post(app.url("/user/login")).json(&json!({}));
    log_in().response().await.problem(503);
    // A header of any value makes no difference to an operation without credentials.
    let marked = log_in().header("api_key", "x");
    marked.response().await.problem(503);
    sign_up(&client_of(OTHER), "ada").await.is(201);
    for client in [attacker, client_of(OTHER)] {
        let get = client.get(app.url(&format!("/pet/{id}")));
        get.header("api_key", &app.key).is(200).await;
    }
}

/// A client has passwords hashed by each of the operations that do so.
#[tokio::test(flavor = "multi_thread")]
async fn password_hashes_of_an_address_leave_permits_to_others() {
    const ATTACKS: usize = 100;
    const PASSWORD: &str = "correct horse";
    let settings = [
        ("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "unlimited"),
        ("PET_INVENTORY__USERS__LOGINS_PER_MINUTE", "1000"),
        ("PET_INVENTORY__USERS__HASHES_AT_ONCE", "1"),
    ];
    let app = TestApp::with(&settings).await;
    let (attacker, other) = (client_of(ATTACKER), client_of(OTHER));
    let account = |name: &str| json!({"username": name, "password": PASSWORD});
    for name in ["ada", "eve"] {
        let sign_up = other.post(app.url("/user")).json(&account(name));
        sign_up.is(201).await;
    }
    let log_in = |client: &Client, name: &str| {
        let request = client.post(app.url("/user/login"));
        Call::from(request.json(&account(name)))
    };
    for operation in ["log in", "sign up", "change"] {
        let attack = |number: usize| match operation {
            "log in" => log_in(&attacker, "eve"),
            "sign up" => {
                let account = account(&format!("eve{number}"));
                attacker.post(app.url("/user")).json(&account).into()
            }
            _ => {
                let change = attacker.put(app.url("/user/eve")).json(&account("eve"));
                change.header("api_key", &app.key).into()
            }
        };
        let mut attacks: FuturesUnordered<_> = (0..ATTACKS)
            .map(|number| attack(number).into_future())
            .collect();
        let mut refused = 0;
        while let Some(response) = attacks.next().await {
            if response.status != 503 {
                assert!([200, 201].contains(&response.status), "{response}");
                continue;
            }
            if refused == 0 {
                for response in send_all((0..5).map(|_| log_in(&other, "ada"))).await {
                    assert_eq!(response.status, 200, "{operation}: {response}");
                }
            }
            refused += 1;
        }
        assert!(refused > 0, "{operation}");
        log_in(&attacker, "eve").await.is(200);
    }
}

/// A client sends bodies slowly with valid credentials.
#[tokio::test(flavor = "multi_thread")]
async fn slow_bodies_with_credentials_leave_permits_for_others() {
    const MAX_REQUESTS: usize = 16;
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__MAX_REQUESTS", "16")]).await;
    let id = app.pet("a").await;
    let ask = async |address: &str, method: Method| {
        let path = match method {
            Method::GET => format!("/pet/{id}"),
            _ => "/pet".to_owned(),
        };
        let request = client_of(address).request(method, app.url(&path));
        let request = request.header("api_key", &app.key);
        let request = request.json(&json!({"name": "b"}));
        request.response().await.status
    };
    let mut slow = Vec::new();
    // Again and again, because those that were refused are not tried again.
    while slow.len() < 2 * MAX_REQUESTS || ask(ATTACKER, Method::POST).await != 503 {
        assert!(slow.len() < 20 * MAX_REQUESTS, "not refused");
        let mut raw = RawConnection::from(connect_from(ATTACKER, app.address).await);
        raw.send(format!(
            "POST /api/v3/pet HTTP/1.1\r\nHost: a\r\napi_key: {}\r\n\
             Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{{",
            app.key
        ))
        .await;
        slow.push(raw);
    }
    for _ in 0..10 {
        assert_eq!(ask(OTHER, Method::POST).await, 201);
        assert_eq!(ask(OTHER, Method::GET).await, 200);
    }
    drop(slow);
    eventually(async || ask(ATTACKER, Method::POST).await == 201).await;
}

/// An address that uses its share gets 503 before a list is read: it has a pet that cannot be read.
#[tokio::test(flavor = "multi_thread")]
async fn list_is_counted_before_it_is_read() {
    // An address may use 2 MiB, of which a page of 15 takes 0.24, in one piece.
    let settings = [("PET_INVENTORY__SERVER__MAX_RESPONSE_MEMORY", "16MiB")];
    let app = TestApp::with(&settings).await;
    let pets = "insert into pets (id, status, details)
        select n, case when n <= 400 then 'sold' else 'pending' end,
               json_build_object('name', 'a', 'photoUrls', array_fill('/' || repeat('y', 2000), array[8]), 'tags', '[]'::json)
        from generate_series(1, 410) n";
    app.database.run(pets).await;
    let unreadable = "alter table pets drop constraint pets_id_in_range;
                      update pets set id = 1::bigint << 53 where id = 410";
    app.database.run(unreadable).await;
    let find = "/api/v3/pet/findByStatus?status=";
    let mut held = Vec::new();
    let mut status = 200;
    while status == 200 {
        let get = head(&app, "GET", &format!("{find}sold&limit=15"));
        let connection;
        (connection, status) = request_unread(ATTACKER, app.address, &get).await;
        held.push(connection);
        assert!(held.len() < 20, "pages have no bound");
    }
    assert_eq!(status, 503);
    for list in ["pending", "pending&limit=20"] {
        for (address, status) in [(ATTACKER, 503), (OTHER, 500)] {
            let get = client_of(address).get(format!("http://{}{find}{list}", app.address));
            let response = get.header("api_key", &app.key).response().await;
            assert_eq!(response.status, status, "{address} {list}: {response}");
        }
    }
    drop(held);
}

/// Each of the resources of a list is freed: a client that reads its lists is not refused.
#[tokio::test(flavor = "multi_thread")]
async fn lists_that_are_read_are_not_refused() {
    let settings = [("PET_INVENTORY__SERVER__MAX_RESPONSE_MEMORY", "16MiB")];
    let app = TestApp::with(&settings).await;
    let pets = "insert into pets (id, status, details)
        select n, 'sold',
               json_build_object('name', 'a', 'photoUrls', array_fill('/' || repeat('y', 2000), array[2]), 'tags', '[]'::json)
        from generate_series(1, 300) n";
    app.database.run(pets).await;
    for number in 0..20 {
        let limit = ["", "&limit=10", "&limit=1000"][number % 3];
        let encoding = ["identity", "gzip", "zstd"][number / 3 % 3];
        // The client may have read the end of a list before the thread that sent it drops its memory.
        eventually(async || {
            let get = app.get(&format!("/pet/findByStatus?status=sold{limit}"));
            get.header("accept-encoding", encoding).await.status == 200
        })
        .await;
    }
}

/// An address to which 32 images are being sent gets 503 before another one is read from the image store.
#[tokio::test(flavor = "multi_thread")]
async fn image_is_counted_before_it_is_read() {
    let app = TestApp::start().await;
    let upload = app.upload(app.pet("a").await, large_jpeg(300_000));
    let image = format!("/api/v3{}", upload.is(200).await.image_path());
    let get = head(&app, "GET", &image);
    let mut held = Vec::new();
    for _ in 0..32 {
        let (image, status) = request_unread(ATTACKER, app.address, &get).await;
        assert_eq!(status, 200);
        held.push(image);
    }
    // From now on, the image can be found but not be read.
    let unreadable = "update image_contents set key = repeat('0', 32)";
    app.database.run(unreadable).await;
    let ask = async |client: &str| {
        let get = client_of(client).get(format!("http://{}{image}", app.address));
        get.response().await.status
    };
    assert_eq!(ask(ATTACKER).await, 503);
    assert_eq!(ask(OTHER).await, 404);
    drop(held);
}

/// With four connections, one is for reads of many rows, and one for searches that cost much.
#[tokio::test(flavor = "multi_thread")]
async fn large_reads_leave_connections_to_others() {
    let app = TestApp::with(&[("PET_INVENTORY__DATABASE__MAX_CONNECTIONS", "4")]).await;
    let mut blocker = app.database.lock("pet_tags").await;
    let large = (0..32).map(|number| {
        let search = match number % 2 {
            0 => "findByTags?tags=a,b&match=all&limit=5",
            _ => "findByTags?tags=a,b,c,d,e,f,g,h,i&limit=5",
        };
        app.get(&format!("/pet/{search}"))
    });
    let large = send_all(large);
    let others = async {
        for _ in 0..50 {
            app.get("/store/inventory").is(200).await;
        }
        blocker.execute("commit").await.expect("free");
    };
    let (large, ()) = tokio::join!(large, others);
    // On a busy machine, some may have waited for too long.
    assert!(large.iter().all(|it| [200, 503].contains(&it.status)));
    assert!(large.iter().any(|it| it.status == 200));
}
