//! Socket activation by systemd's own program.

use nix::sys::signal::kill;
use test_support::{
    postgres::{start_postgres, url_at},
    *,
};
use tokio::process::{Child, Command};

/// Time for which PostgreSQL is away: longer than all timeouts of requests and of the pool.
const AWAY: Duration = Duration::from_secs(30);

/// Starts systemd's program, which starts the service with the first connection.
fn start_on_first_connection(home: &Home, database: &str) -> (SocketAddr, Child) {
    let (address, serve) = (free_address(), home.command(["serve"]));
    let systemd = Command::new("systemd-socket-activate")
        .args(["--listen", &address.to_string()])
        .arg(format!("--setenv=DATABASE_URL={database}"))
        .arg("--setenv=PET_INVENTORY__OPERATIONS__LISTEN=127.0.0.1:0")
        .arg(serve.as_std().get_program())
        .arg("serve")
        .current_dir(home.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("systemd-socket-activate is missing: run .ci/setup --all");
    (address, systemd)
}

#[tokio::test(flavor = "multi_thread")]
async fn first_connection_starts_the_service_on_the_socket_of_systemd() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let (address, mut systemd) = start_on_first_connection(&home, &database.url());
    let connects = async {
        while tokio::net::TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(PATIENCE / 1_000).await;
        }
    };
    tokio::time::timeout(PATIENCE, connects)
        .await
        .expect("in time");
    // The socket queues the request until the service is ready.
    let ready = client().get(format!("http://{address}/readyz"));
    ready.is(200).await;
    let pid = systemd.id().expect("it runs").cast_signed();
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("it runs");
    let status = tokio::time::timeout(PATIENCE, systemd.wait()).await;
    assert!(status.expect("in time").expect("a status").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn service_goes_on_after_postgresql_was_away_at_its_start_and_later() {
    let (home, folder) = (Home::new(), tempfile::tempdir().expect("a folder"));
    let socket = folder.path().join("socket");
    // Each start has another socket.
    let start = async || {
        let postgres = start_postgres(&folder.path().join("data")).await;
        let options = postgres.connect_options();
        let _ = fs::remove_file(&socket);
        std::os::unix::fs::symlink(options.get_socket().expect("a socket"), &socket)
            .expect("a link");
        (postgres, url_at(&options, &socket))
    };
    let (postgres, database) = start().await;
    postgres.stop().await.expect("stopped");
    let (address, _systemd) = start_on_first_connection(&home, &database);
    let ready = format!("http://{address}/readyz");
    let is = async |status: u16| {
        let response = client().get(&ready).send().await;
        response.is_ok_and(|response| response.status() == status)
    };
    // Its first connection waits in the socket.
    let (_, (postgres, _)) = tokio::join!(is(200), async {
        tokio::time::sleep(AWAY).await;
        start().await
    });
    eventually(async || is(200).await).await;
    postgres.stop().await.expect("stopped");
    eventually(async || is(503).await).await;
    tokio::time::sleep(AWAY).await;
    let (postgres, _) = start().await;
    eventually(async || is(200).await).await;
    postgres.stop().await.expect("stopped");
}
