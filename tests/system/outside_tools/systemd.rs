//! Socket activation by systemd's own program.

use nix::sys::signal::kill;
use test_support::*;
use tokio::process::Command;

#[tokio::test(flavor = "multi_thread")]
async fn first_connection_starts_the_service_on_the_socket_of_systemd() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let (address, serve) = (free_address(), home.command(["serve"]));
    let mut systemd = Command::new("systemd-socket-activate")
        .args(["--listen", &address.to_string()])
        .arg(format!("--setenv=DATABASE_URL={}", database.url()))
        .arg("--setenv=PET_INVENTORY__OPERATIONS__LISTEN=127.0.0.1:0")
        .arg(serve.as_std().get_program())
        .arg("serve")
        .current_dir(home.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("systemd-socket-activate is missing: run .ci/setup --all");
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
