//! Unix sockets, sockets of a service manager (systemd socket activation), and its notifications.

use std::{
    net::TcpListener,
    os::{
        fd::OwnedFd,
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram, UnixListener},
        },
    },
};

use pet_inventory::server::Listener;
use socket2::{Domain, Socket, Type};
use test_support::*;
use tokio::{process::Command, task::JoinHandle};

/// Service that listens on a Unix socket.
struct App {
    socket: PathBuf,
    key: String,
    client: Client,
    shutdown: Shutdown,
    running: JoinHandle<()>,
    _database: TestDatabase,
    _folder: tempfile::TempDir,
}

impl App {
    async fn start(settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("api.sock");
        let database = TestDatabase::migrated().await;
        let listen = listen(&socket);
        let listen = ("PET_INVENTORY__SERVER__LISTEN", listen.as_str());
        let app = build(&database.url(), &[&[listen], settings].concat()).await;
        let key = make_key(&mut database.connect().await, "tester", Scopes::all(), None).await;
        let shutdown = Shutdown::default();
        let stop = shutdown.clone();
        Self {
            client: client_of(&socket),
            key: key.secret,
            running: tokio::spawn(async move { app.run(stop).await.expect("a clean stop") }),
            socket,
            shutdown,
            _database: database,
            _folder: folder,
        }
    }

    fn anonymous(&self, path: &str) -> Call {
        get(&self.client, path)
    }
}

fn listen(socket: &Path) -> String {
    format!("unix:{}", socket.display())
}

fn client_of(socket: &Path) -> Client {
    let builder = client_builder().no_proxy().unix_socket(socket);
    builder.build().expect("a client")
}

fn get(client: &Client, path: &str) -> Call {
    let url = format!("http://localhost{path}");
    client.request(Method::GET, url).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn unix_socket_serves_requests_until_shutdown() {
    let mut app = App::start(&[]).await;
    let mode = fs::metadata(&app.socket).expect("a socket").permissions();
    assert_eq!(mode.mode() & 0o777, 0o660);
    let limits = app.anonymous("/api/v3/limits").header("api_key", &app.key);
    let again = limits.clone();
    let response = limits.is(200).await;
    assert_eq!(response.json()["plan"], "enterprise");
    app.anonymous("/livez").is(200).await;

    app.shutdown.begin();
    let stopped = tokio::time::timeout(PATIENCE, &mut app.running).await;
    stopped.expect("in time").expect("no panic");
    assert!(again.send().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn peer_of_a_unix_socket_is_a_trusted_proxy() {
    let app = App::start(&[
        ("PET_INVENTORY__AUTH__ANONYMOUS_SCOPES", "read:pets"),
        ("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "2"),
        ("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "10.0.0.1"),
        ("PET_INVENTORY__SERVER__MAX_CONNECTIONS_PER_ADDRESS", "1"),
    ])
    .await;
    let status = async |forwarded: &str| {
        let request = app.anonymous("/api/v3/pet/1");
        let request = request.header("x-forwarded-for", forwarded);
        request.await.status
    };
    // Clients can invent what is left of the last address that is not a proxy's.
    assert_eq!(status("192.0.2.1").await, 404);
    assert_eq!(status("192.0.2.9, 192.0.2.1").await, 404);
    assert_eq!(status("192.0.2.1, 10.0.0.1").await, 429);
    assert_eq!(status("192.0.2.9").await, 404);
    // The maximum per address does not apply to the socket.
    let many = (0..5).map(|_| client_of(&app.socket));
    let responses = many.map(|client| async move { get(&client, "/livez").await });
    for response in join_all(responses).await {
        response.is(200);
    }
}

/// Returns the command that serves on a socket and an existing database.
fn serve(home: &Home, database: &TestDatabase, listen: &str) -> Command {
    let mut command = home.command(["serve", "--listen", listen]);
    command.env("DATABASE_URL", database.url());
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_socket_of_an_ended_process_is_replaced() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let socket = home.path().join("api.sock");
    let listen = listen(&socket);
    // Closing the listener leaves the file.
    drop(UnixListener::bind(&socket).expect("a socket"));
    let mut service = Notified::start(&home, serve(&home, &database, &listen)).await;
    get(&client_of(&socket), "/livez").is(200).await;
    let check = ["healthcheck", "--listen", &listen];
    let other = ("PET_INVENTORY__SERVER__LISTEN", "127.0.0.1:1");
    let check = home.run_with(&check, &[other]).await;
    assert_eq!(check.is(0).stdout, "ok\n");

    let second = Output::of(serve(&home, &database, &listen)).await.is(1);
    for words in ["server.listen", &listen, "in use"] {
        assert!(second.stderr.contains(words), "{second:?}");
    }
    get(&client_of(&socket), "/livez").is(200).await;
    service.stop().await;

    let file = home.path().join("file");
    fs::write(&file, "kept").expect("written");
    let refused = serve(&home, &database, &format!("unix:{}", file.display()));
    Output::of(refused).await.is(1);
    assert_eq!(fs::read_to_string(&file).expect("a file"), "kept");
    let missing = serve(&home, &database, "unix:/no/such/folder/api.sock");
    let missing = Output::of(missing).await.is(1);
    assert!(missing.stderr.contains("/no/such/folder"), "{missing:?}");
    // Every user could replace the socket, and collect keys.
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).expect("the mode");
    let open = serve(&home, &database, &format!("{listen}2"));
    let open = Output::of(open).await.is(1);
    assert!(open.stderr.contains("chmod o-w"), "{open:?}");
}

/// Process that a service manager has started, as far as the process can tell.
struct Notified {
    child: tokio::process::Child,
    socket: tokio::net::UnixDatagram,
}

impl Notified {
    /// Starts the process and waits until it is ready.
    async fn start(home: &Home, mut command: Command) -> Self {
        let path = home.path().join("notify.sock");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        // As systemd's, which PostgreSQL's user can reach.
        for (path, mode) in [(home.path(), 0o755), (&path, 0o777)] {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(path, mode).expect("the mode");
        }
        command.env("NOTIFY_SOCKET", &path);
        let this = Self {
            socket: tokio::net::UnixDatagram::from_std(socket).expect("a runtime"),
            child: command.spawn().expect("the program"),
        };
        assert_eq!(this.next().await, "READY=1\n");
        this
    }

    async fn next(&self) -> String {
        let mut buffer = [0; 256];
        let received = tokio::time::timeout(PATIENCE, self.socket.recv(&mut buffer)).await;
        let length = received.expect("in time").expect("a notification");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().expect("it runs").cast_signed())
    }

    /// Stops it, and checks its notification and its exit code.
    async fn stop(&mut self) {
        nix::sys::signal::kill(self.pid(), Signal::SIGTERM).expect("it runs");
        assert_eq!(self.next().await, "STOPPING=1\n");
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        assert!(status.expect("in time").expect("a status").success());
    }
}

/// The embedded PostgreSQL can notify a service manager, too: it must not do so.
#[tokio::test(flavor = "multi_thread")]
async fn service_manager_is_notified_once_the_service_is_ready_and_when_it_stops() {
    let home = Home::new();
    let socket = home.path().join("api.sock");
    let command = home.command(["serve", "--listen", &listen(&socket)]);
    let mut service = Notified::start(&home, command).await;
    get(&client_of(&socket), "/readyz").is(200).await;
    service.stop().await;
    home.wait_until_unused().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watchdog_is_notified_twice_in_each_period() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let mut command = serve(&home, &database, "127.0.0.1:0");
    command.env("WATCHDOG_USEC", "400000");
    let service = Notified::start(&home, command).await;
    let started = Instant::now();
    for _ in 0..15 {
        assert_eq!(service.next().await, "WATCHDOG=1\n");
    }
    // Some may have come before this test looked.
    let elapsed = started.elapsed();
    assert!(elapsed > Duration::from_secs(2), "{elapsed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_service_manager_does_not_stop_the_service() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let mut command = serve(&home, &database, "127.0.0.1:0");
    command.env("NOTIFY_SOCKET", home.path().join("nowhere.sock"));
    let service = Service::start(&home, command).await;
    eventually(async || service.log().contains("service manager")).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_at_the_end_of_a_link_is_not_replaced_nor_is_the_link() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("api.sock");
    drop(UnixListener::bind(&path).expect("a socket"));
    let link = folder.path().join("link.sock");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    let address = listen(&link).parse().expect("an address");
    Listener::bind(&address, false).expect_err("a link");
    assert!(fs::symlink_metadata(&link).is_ok_and(|it| it.is_symlink()));
    assert!(path.exists());
}

/// Returns the command that serves on passed sockets. They take the places of stdin and stderr until the shell moves them;
/// stderr is stdout then.
fn activated(
    home: &Home,
    database: &TestDatabase,
    sockets: [OwnedFd; 2],
    (count, names): (u8, &str),
) -> Command {
    const MOVE: &str = r#"exec 3<&0 4<&2 </dev/null 2>&1; LISTEN_PID=$$ exec "$0" "$@""#;
    let [first, second] = sockets.map(Stdio::from);
    let mut command = home.in_shell(MOVE, ["serve"]);
    command
        .env("DATABASE_URL", database.url())
        .env("LISTEN_FDS", count.to_string())
        .env("LISTEN_FDNAMES", names)
        .stdin(first)
        .stderr(second);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn passed_sockets_are_served_in_place_of_the_configured_ones() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = tcp.local_addr().expect("an address");
    let path = home.path().join("private.sock");
    let unix = UnixListener::bind(&path).expect("a socket");
    // A connection that waits before the process runs.
    let early = tokio::spawn(async move {
        let request = client().get(format!("http://{address}/livez"));
        request.is(200).await;
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    // systemd does not keep the order of the units.
    let (sockets, names) = ([unix.into(), tcp.into()], "operations:api");
    let command = activated(&home, &database, sockets, (2, names));
    let mut service = Notified::start(&home, command).await;
    early.await.expect("served");
    let key = make_key(&mut database.connect().await, "tester", Scopes::all(), None).await;
    let url = format!("http://{address}/api/v3/pet/1");
    let pet = client().get(url).header("api_key", key.secret);
    pet.response().await.problem(404);
    let metrics = get(&client_of(&path), "/metrics").is(200).await;
    assert!(metrics.text().contains("http_server"), "{metrics}");
    service.stop().await;
    // The file belongs to the service manager.
    assert!(path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn other_than_one_or_two_named_stream_sockets_are_refused() {
    let (database, folder) = (TestDatabase::migrated().await, Home::new());
    let tcp = || OwnedFd::from(TcpListener::bind("127.0.0.1:0").expect("a port"));
    let datagrams = || OwnedFd::from(UnixDatagram::unbound().expect("a socket"));
    let silent = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        socket.bind(&any.into()).expect("a port");
        OwnedFd::from(socket)
    };
    let unix = |mode: u32| {
        let path = folder.path().join(format!("{mode:o}.sock"));
        let socket = UnixListener::bind(&path).expect("a socket");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        OwnedFd::from(socket)
    };
    let abstract_socket = || {
        let address = SocketAddr::from_abstract_name(folder.path().as_os_str().as_bytes());
        let address = address.expect("an address");
        OwnedFd::from(UnixListener::bind_addr(&address).expect("a socket"))
    };
    let names = "LISTEN_FDNAMES";
    for (sockets, passed, words) in [
        ([tcp(), tcp()], (3, "api:operations:more"), "LISTEN_FDS"),
        ([datagrams(), tcp()], (1, "api"), "LISTEN_FDS"),
        ([silent(), tcp()], (1, "api"), "does not accept connections"),
        ([tcp(), tcp()], (2, ""), names),
        ([tcp(), tcp()], (1, "metrics.socket"), names),
        ([tcp(), tcp()], (2, "api:api"), names),
        ([tcp(), tcp()], (2, "api.socket:operations"), names),
        ([unix(0o666), tcp()], (1, "api"), "SocketMode=0660"),
        ([tcp(), unix(0o662)], (2, "api:operations"), "SocketGroup="),
        ([abstract_socket(), tcp()], (1, "api"), "abstract"),
    ] {
        let home = Home::new();
        let mut command = activated(&home, &database, sockets, passed);
        let child = command.spawn().expect("the program");
        let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
        let output = output.expect("in time").expect("an exit code");
        let log = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{passed:?}: {log}");
        assert!(log.contains(words), "{passed:?}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_for_another_process_are_ignored() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    for pid in [None, Some("1")] {
        let mut command = serve(&home, &database, "127.0.0.1:0");
        // stdin, stdout and stderr are no sockets.
        command
            .env("LISTEN_FDS", "1")
            .env("LISTEN_FDS_FIRST_FD", "0");
        command.envs(pid.map(|pid| ("LISTEN_PID", pid)));
        Service::start(&home, command).await.stop().await;
    }
}

/// The embedded PostgreSQL starts after the service has taken the sockets.
#[tokio::test(flavor = "multi_thread")]
async fn embedded_postgres_does_not_inherit_the_sockets() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = tcp.local_addr().expect("an address");
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut command = activated(&home, &database, [tcp.into(), other.into()], (1, ""));
    command.env_remove("DATABASE_URL");
    let mut service = Notified::start(&home, command).await;
    let live = client().get(format!("http://{address}/livez"));
    live.is(200).await;
    let sockets = |pid: i32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .flatten();
        let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
        targets.collect::<BTreeSet<_>>()
    };
    let inode = fs::read_to_string("/proc/net/tcp").expect("a table");
    let port = format!(":{:04X} 00000000:0000 0A", address.port());
    let inode = inode
        .lines()
        .find(|line| line.contains(&port))
        .expect("the socket");
    let inode = inode.split_whitespace().nth(9).expect("an inode");
    let socket = PathBuf::from(format!("socket:[{inode}]"));
    assert!(sockets(service.pid().as_raw()).contains(&socket));
    let processes = process::processes_using(home.path());
    assert!(processes.len() > 1, "{processes:?}");
    for (pid, name) in processes {
        let is_service = pid == service.pid().as_raw();
        assert_eq!(sockets(pid).contains(&socket), is_service, "{name}");
    }
    service.stop().await;
    home.wait_until_unused().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_with_json_prints_urls_and_sockets() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let (api, private) = (
        home.path().join("api.sock"),
        home.path().join("private.sock"),
    );
    let mut command = serve(&home, &database, &listen(&api));
    command.arg("--json");
    command.env("PET_INVENTORY__OPERATIONS__LISTEN", listen(&private));
    command.env("PET_INVENTORY__SERVER__CORS_ORIGINS", "*");
    command.env("PET_INVENTORY__AUTH__ANONYMOUS_SCOPES", "read:pets");
    let mut service = Notified::start(&home, command).await;
    nix::sys::signal::kill(service.pid(), Signal::SIGTERM).expect("it runs");
    let child = &mut service.child;
    let (mut stdout, mut stderr) = (String::new(), String::new());
    let (output, log) = (child.stdout.as_mut(), child.stderr.as_mut());
    output
        .expect("piped")
        .read_to_string(&mut stdout)
        .await
        .expect("text");
    log.expect("piped")
        .read_to_string(&mut stderr)
        .await
        .expect("text");
    let started: Value = serde_json::from_str(&stdout).expect("JSON");
    let expected = [
        ("api", "http://localhost/api/v3"),
        ("docs", "http://localhost/docs"),
        ("socket", api.to_str().expect("text")),
        ("metrics", "http://localhost/metrics"),
        ("operationsSocket", private.to_str().expect("text")),
    ];
    for (member, value) in expected {
        assert_eq!(started[member], value, "{stdout}");
    }
    assert_eq!(
        stderr.matches("server.cors_origins is *").count(),
        1,
        "{stderr}"
    );
}
