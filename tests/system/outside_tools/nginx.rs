//! `config/nginx.conf`, changed only in addresses and folders, in Debian's nginx in front of two replicas.

use std::{ffi::OsStr, sync::atomic::Ordering};

use nix::sys::signal::kill;
use reqwest::{Certificate, Version};
use test_support::*;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
};

use crate::proxies::{
    Deployment, LARGEST, PUBLIC_URL, Proxy, SIX_PER_ADDRESS, assert_callers_stay_at_one_replica,
    assert_conditions_and_images_pass, assert_events_pass_at_once, seven_requests_of_an_address,
};

/// nginx, ended with its workers when dropped.
struct Nginx {
    child: Child,
    address: SocketAddr,
}

impl Proxy for Nginx {
    async fn start(folder: &Path, address: SocketAddr, replicas: [SocketAddr; 2]) -> Self {
        let listen = vec![("listen 8000;", format!("listen {address};"))];
        Self::configured(folder, address, replicas, listen).await
    }

    fn origin(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Nginx {
    /// Starts nginx with changed settings of `config/nginx.conf`.
    async fn configured(
        folder: &Path,
        address: SocketAddr,
        replicas: [SocketAddr; 2],
        changes: Vec<(&str, String)>,
    ) -> Self {
        let mut settings = include_str!("../../../config/nginx.conf").to_owned();
        let others = [
            ("service-1:8080", replicas[0].to_string()),
            ("service-2:8080", replicas[1].to_string()),
            ("/tmp/nginx", format!("{}/nginx", folder.display())),
        ];
        for (theirs, ours) in changes.into_iter().chain(others) {
            assert!(settings.contains(theirs), "no {theirs} in it");
            settings = settings.replace(theirs, &ours);
        }
        Self::with(folder, address, settings).await
    }

    /// Starts nginx with its settings, and waits until it listens.
    async fn with(folder: &Path, address: SocketAddr, settings: String) -> Self {
        let file = folder.join("nginx.conf");
        fs::write(&file, settings).expect("its settings");
        let child = Command::new("nginx")
            // Debian installs nginx outside the PATH of unprivileged users.
            .env("PATH", "/usr/sbin:/usr/local/sbin:/usr/bin")
            .args(["-e", "stderr", "-g", "daemon off;", "-c"])
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(fs::File::create(folder.join("nginx.log")).expect("a log"))
            .spawn();
        let child = child.expect("nginx is missing: run .ci/setup --all");
        let nginx = Self { child, address };
        let listens = async {
            while TcpStream::connect(address).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let listens = tokio::time::timeout(PATIENCE, listens).await;
        let log = || fs::read_to_string(folder.join("nginx.log")).unwrap_or_default();
        assert!(listens.is_ok(), "{}", log());
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGKILL would leave its workers running.
        if let Some(pid) = self.child.id() {
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM);
        }
    }
}

impl Deployment<Nginx> {
    /// Stops a replica with SIGTERM, starts it again at its address and waits until nginx sends it a request.
    async fn restart(&mut self, number: usize) {
        self.stop(number).await;
        let requests = |replica: &Service| replica.log().matches("pet_inventory::access").count();
        let before = requests(&self.replicas[number]);
        self.start_again(number).await;
        // Each caller stays at one replica: one of these reaches it.
        let is_used = async {
            for caller in 0.. {
                let request = self.anonymous(Method::GET, "/pet/1");
                request.header("api_key", caller).await.problem(401);
                if requests(&self.replicas[number]) > before {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let is_used = tokio::time::timeout(PATIENCE, is_used).await;
        is_used.expect("nginx comes back to it");
    }

    /// Returns nginx's worker processes.
    fn workers(&self) -> Vec<Pid> {
        let master = self.proxy.child.id().expect("it runs");
        let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children"));
        let children = children.expect("its children");
        let numbers = children.split_whitespace().map(str::parse);
        numbers
            .map(|pid| Pid::from_raw(pid.expect("a number")))
            .collect()
    }

    /// Returns the temporary files that the workers hold open; nginx has unlinked them.
    fn files_kept(&self) -> Vec<PathBuf> {
        let workers = self.workers().into_iter();
        let open =
            workers.flat_map(|worker| fs::read_dir(format!("/proc/{worker}/fd")).expect("it runs"));
        let files = open
            .flatten()
            .filter_map(|entry| fs::read_link(entry.path()).ok());
        let folder = self.folder.path().join("nginx-proxy");
        files.filter(|file| file.starts_with(&folder)).collect()
    }

    /// Returns the peak memory of the largest worker in KiB.
    fn memory(&self) -> u64 {
        let of = |worker: &Pid| {
            let status = fs::read_to_string(format!("/proc/{worker}/status")).expect("it runs");
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            number.expect("a number")
        };
        self.workers().iter().map(of).max().expect("a worker")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_passes_headers_urls_and_images() {
    let deployment = Deployment::<Nginx>::start(&[]).await;
    // The header `api_key` has an underscore, so nginx drops it by default.
    let added = deployment.pet("Rex").await;
    let id = added.id();
    let path = format!("/pet/{id}");
    let by_bearer = deployment.anonymous(Method::GET, &path);
    let first = by_bearer.bearer_auth(&deployment.key).is(200).await;
    let refused = deployment.anonymous(Method::GET, &path).await;
    refused.problem(401);

    // URLs in responses begin with the public URL.
    let location = added.header("location");
    assert_eq!(location, format!("{PUBLIC_URL}/api/v3/pet/{id}"));
    deployment.pet("Max").await;
    let page = deployment.request(Method::GET, "/pet/findByStatus?status=available&limit=1");
    let page = page.is(200).await;
    let next = page.header("link");
    assert!(
        next.starts_with(&format!("<{PUBLIC_URL}/api/v3/pet/")),
        "{next}"
    );

    // A valid X-Request-Id of the client is kept; otherwise nginx generates one.
    let with_id = deployment.request(Method::GET, &path);
    let with_id = with_id.header("x-request-id", "my-own.id_1");
    assert_eq!(with_id.await.header("x-request-id"), "my-own.id_1");
    assert_eq!(first.header("x-request-id").len(), 32);

    assert_conditions_and_images_pass(&deployment).await;
    deployment.upload(&path, 3 * LARGEST).await.problem(413);
    let large = deployment.request(Method::POST, "/pet");
    let large = large.json(&json!({"name": "x".repeat(2 << 20)}));
    large.await.problem(413);
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_keeps_a_caller_at_one_replica() {
    assert_callers_stay_at_one_replica::<Nginx>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_use_the_client_address_seen_by_nginx() {
    let responses = seven_requests_of_an_address::<Nginx>().await;
    let (refused, admitted) = responses.split_last().expect("seven");
    assert!(admitted.iter().all(|it| it.status == 404), "{admitted:?}");
    refused.problem(429);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_use_the_client_address_that_a_proxy_before_nginx_saw() {
    let deployment = Deployment::<Nginx>::start(&SIX_PER_ADDRESS).await;
    let folder = tempfile::tempdir().expect("a folder");
    let own = free_address();
    let replicas = deployment.replicas.each_ref().map(|it| it.address);
    let changes = vec![
        ("listen 8000;", format!("listen {own};")),
        (
            "# set_real_ip_from 10.0.3.7;",
            "set_real_ip_from 127.0.0.9;".into(),
        ),
        ("# real_ip_header", "real_ip_header".into()),
        ("# real_ip_recursive", "real_ip_recursive".into()),
    ];
    let nginx = Nginx::configured(folder.path(), own, replicas, changes).await;
    let url = format!("{}/api/v3/pet/1", nginx.origin());
    let [proxy, other] = ["127.0.0.9", "127.0.0.2"].map(|it| nginx.client_at(it));
    let send =
        |client: &Client, forwarded: &str| client.get(&url).header("x-forwarded-for", forwarded);
    for number in 0..6 {
        // The client's own header comes first. Other hosts than the proxy are not believed.
        send(&proxy, &format!("203.0.113.{number}, 192.0.2.1"))
            .is(404)
            .await;
        send(&other, &format!("192.0.2.{number}")).is(404).await;
    }
    send(&proxy, "192.0.2.1").response().await.problem(429);
    send(&other, "192.0.2.99").response().await.problem(429);
    send(&proxy, "192.0.2.2").is(404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_errors_are_problem_details() {
    let mut deployment = Deployment::<Nginx>::start(&[]).await;
    let broken: [(&[u8], u16); 3] = [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
    ];
    for (request, status) in broken {
        let response = RawConnection::exchange(deployment.address, request).await;
        response.problem(status);
    }
    for (long, status) in [
        (
            format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(20_000)),
            414,
        ),
        (
            format!(
                "GET / HTTP/1.1\r\nHost: a\r\nA: {}\r\n\r\n",
                "a".repeat(20_000)
            ),
            431,
        ),
    ] {
        RawConnection::exchange(deployment.address, long)
            .await
            .problem(status);
    }
    for number in [0, 1] {
        deployment.stop(number).await;
    }
    deployment.assert_unavailable().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_streams_a_large_response_without_buffering() {
    const PETS: usize = 20_000;
    let deployment = Deployment::<Nginx>::start(&[]).await;
    let insert = format!(
        "insert into pets (id, status, details)
         select id, 'sold', json_build_object('name', 'Rex', 'photoUrls', array[repeat('x', 2200)], 'tags', '[]'::json)
         from generate_series(1, {PETS}) as id"
    );
    deployment.database.run(&insert).await;
    let before = deployment.memory();
    let find = deployment.request(Method::GET, "/pet/findByStatus?status=sold");
    let mut find = find.send().await.expect("a response");
    let (mut length, mut pets) = (0, 0);
    while let Some(piece) = find.chunk().await.expect("all of it") {
        // A proxy that buffers would store the response during this pause.
        if length == 0 {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let kept = deployment.files_kept();
            assert!(kept.is_empty(), "nginx keeps {kept:?}");
        }
        length += piece.len();
        pets += piece
            .windows(6)
            .filter(|bytes| bytes == b"{\"id\":")
            .count();
    }
    assert!(length > 40 << 20, "{length} bytes are not many");
    // An object with its start split across two chunks is not counted.
    assert!((PETS * 9 / 10..=PETS).contains(&pets), "{pets}");
    let grown = deployment.memory() - before;
    assert!(grown < 8 << 10, "nginx took {grown} KiB more");
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_passes_each_event_of_a_stream_at_once() {
    assert_events_pass_at_once::<Nginx>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_restart_behind_nginx_fails_no_request() {
    let mut deployment = Deployment::<Nginx>::start(&[]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let (stop, key) = (stop.clone(), deployment.key.clone());
        let base = format!("http://{}/api/v3/pet", deployment.address);
        clients.spawn(async move {
            let (client, mut completed) = (client(), 0);
            let request = |method: Method, path: &str| {
                let url = format!("{base}{path}");
                client.request(method, url).header("api_key", &key)
            };
            while !stop.load(Ordering::Relaxed) {
                let add = request(Method::POST, "").json(&json!({"name": "Rex"}));
                let id = add.is(201).await.id();
                let change = json!({"id": id, "name": format!("{number}")});
                let path = format!("/{id}");
                request(Method::PUT, "").json(&change).is(200).await;
                request(Method::GET, &path).is(200).await;
                request(Method::DELETE, &path).is(200).await;
                completed += 4;
            }
            completed
        });
    }
    for number in [0, 1, 0, 1] {
        deployment.restart(number).await;
    }
    stop.store(true, Ordering::Relaxed);
    let completed: usize = clients.join_all().await.into_iter().sum();
    assert!(completed > 100, "only {completed} requests");
}

/// A message with two lengths (RFC 9112, section 6.1): by `Content-Length`, the second request is part of the body.
#[tokio::test(flavor = "multi_thread")]
async fn request_smuggled_behind_two_lengths_is_not_executed() {
    let deployment = Deployment::<Nginx>::start(&[]).await;
    let [first, _] = &deployment.replicas;
    let key = &deployment.key;
    let head = |fields: &str| {
        format!(
            "POST /api/v3/pet HTTP/1.1\r\nHost: a\r\napi_key: {key}\r\nContent-Type: application/json\r\n{fields}\r\n"
        )
    };
    let smuggled = head("Content-Length: 19\r\n") + "{\"name\":\"smuggled\"}";
    let body = format!("f\r\n{{\"name\":\"fine\"}}\r\n0\r\n\r\n{smuggled}");
    let (length, chunked) = (
        format!("Content-Length: {}\r\n", body.len()),
        "Transfer-Encoding: chunked\r\n",
    );
    for address in [deployment.address, first.address] {
        for fields in [format!("{length}{chunked}"), format!("{chunked}{length}")] {
            let mut raw = RawConnection::connect(address).await;
            raw.send(head(&fields) + &body).await;
            let response = raw.response().await;
            assert!([201, 400].contains(&response.status), "{response}");
            raw.closed().await;
        }
    }
    let count = "select count(*) from pets where details ->> 'name' = 'smuggled'";
    assert_eq!(deployment.database.number(count).await, 0);
}

/// Starts nginx as a shared cache, which stores what it may, by URL, in front of a service.
async fn cache(folder: &Path, service: SocketAddr) -> (Nginx, SocketAddr) {
    let own = free_address();
    let folder_name = folder.display();
    let settings = format!(
        "error_log stderr warn; pid {folder_name}/nginx.pid; events {{}}
        http {{
            access_log off;
            underscores_in_headers on;
            client_body_temp_path {folder_name}/body; proxy_temp_path {folder_name}/temp;
            fastcgi_temp_path {folder_name}/fastcgi; scgi_temp_path {folder_name}/scgi;
            uwsgi_temp_path {folder_name}/uwsgi;
            proxy_cache_path {folder_name}/cache keys_zone=shared:1m;
            server {{
                listen {own};
                location / {{
                    proxy_pass http://{service};
                    proxy_cache shared; proxy_cache_key $request_uri; proxy_cache_valid any 1h;
                    proxy_ignore_headers Vary;
                    add_header X-Cache $upstream_cache_status always;
                }}
            }}
        }}"
    );
    (Nginx::with(folder, own, settings).await, own)
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_cache_stores_no_response_to_a_credential() {
    let app = TestApp::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (_nginx, address) = cache(folder.path(), app.address).await;
    let id = app.pet("a").await;
    let get = |path: &str, key: &str| {
        let url = format!("http://{address}{path}");
        client().get(url).header("api_key", key)
    };
    for (path, status) in [
        (format!("/api/v3/pet/{id}"), 200),
        ("/api/v3/pet/9999".into(), 404),
        ("/api/v3/pet/findByStatus?status=available".into(), 200),
        (
            "/api/v3/pet/findByStatus?status=available&limit=1".into(),
            200,
        ),
        ("/api/v3/store/inventory".into(), 200),
        (format!("/api/v3/pet/{id}/images"), 200),
    ] {
        let first = get(&path, &app.key).is(status).await;
        assert_eq!(first.header("cache-control"), "private, no-cache", "{path}");
        let stolen = get(&path, "wrong").is(401).await;
        assert_eq!(stolen.header("x-cache"), "MISS", "{path}: {stolen}");
        get(&path, &app.key).is(status).await;
    }
    // The cache does store.
    for state in ["MISS", "HIT"] {
        let public = get("/api/v3/nothing", "").is(404).await;
        assert_eq!(public.header("x-cache"), state, "{public}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_speaks_http2_over_tls() {
    let deployment = Deployment::<Nginx>::start(&[]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let [certificate, key] = ["crt", "key"].map(|name| folder.path().join(name));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=localhost",
        ])
        .args(["-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args([
            OsStr::new("-out"),
            certificate.as_os_str(),
            OsStr::new("-keyout"),
            key.as_os_str(),
        ])
        .output()
        .await;
    let made = made.expect("openssl is missing: run .ci/setup --all");
    assert!(made.status.success(), "{made:?}");
    let own = free_address();
    let replicas = deployment.replicas.each_ref().map(|it| it.address);
    let changes = vec![
        ("        listen 8000;\n", String::new()),
        (
            "# listen 8443 ssl http2;",
            format!("listen {own} ssl http2;"),
        ),
        (
            "# ssl_certificate /etc/nginx/pets.example.com.crt;",
            format!("ssl_certificate {};", certificate.display()),
        ),
        (
            "# ssl_certificate_key /etc/nginx/pets.example.com.key;",
            format!("ssl_certificate_key {};", key.display()),
        ),
    ];
    let _nginx = Nginx::configured(folder.path(), own, replicas, changes).await;
    let root = Certificate::from_pem(&fs::read(certificate).expect("a certificate"));
    let client = client_builder()
        .no_proxy()
        .tls_certs_only([root.expect("a certificate")])
        .resolve("localhost", own);
    let client = client.build().expect("a client");
    let get = client.get(format!("https://localhost:{}/api/v3/pet/1", own.port()));
    let response = get.header("api_key", &deployment.key).send().await;
    let response = response.expect("a response");
    assert_eq!(
        (response.version(), response.status().as_u16()),
        (Version::HTTP_2, 404)
    );
}
