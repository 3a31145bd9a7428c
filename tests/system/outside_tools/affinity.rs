//! Proxies keep each caller at one replica, by its credential; HAProxy with the lines of the operator's guide.

use test_support::*;
use tokio::{net::TcpStream, process::Command};

/// Checks that each of several callers reaches one replica, and that both replicas get callers. `request` makes a request
/// through the proxy.
pub async fn callers_stay(replicas: [SocketAddr; 2], request: impl Fn() -> Call) {
    const REQUESTS: usize = 5;
    let mut reached = [false; 2];
    for caller in 0..24 {
        // The credentials are unknown to the service, which a proxy cannot know.
        let header = if caller % 2 == 0 {
            ("api_key", format!("caller-{caller}"))
        } else {
            ("authorization", format!("Bearer caller-{caller}"))
        };
        let before = [served(replicas[0]).await, served(replicas[1]).await];
        for _ in 0..REQUESTS {
            request().header(header.0, &header.1).await.problem(401);
        }
        let mut counts = [0; 2];
        // A request is counted a moment after its response.
        eventually(async || {
            let after = [served(replicas[0]).await, served(replicas[1]).await];
            counts = [after[0] - before[0], after[1] - before[1]];
            counts.iter().sum::<usize>() == REQUESTS
        })
        .await;
        assert!(counts.contains(&REQUESTS), "{header:?}: {counts:?}");
        reached[usize::from(counts[0] == 0)] = true;
    }
    assert_eq!(reached, [true; 2]);
}

/// Returns the number of requests with a 401 that a replica has served.
async fn served(operations: SocketAddr) -> usize {
    let metrics = client().get(format!("http://{operations}/metrics"));
    let metrics = metrics.is(200).await.text();
    let counts = metrics.lines().filter(|line| {
        line.starts_with("http_server_request_duration_seconds_count{")
            && line.contains("http_response_status_code=\"401\"")
    });
    let counts = counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok());
    counts.sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_keeps_a_caller_at_one_replica() {
    let guide = include_str!("../../../config/README.md");
    let (_, rest) = guide.split_once("```haproxy\n").expect("the lines");
    let (lines, _) = rest.split_once("```").expect("their end");
    let database = TestDatabase::migrated().await;
    let homes = [Home::new(), Home::new()];
    let serve = async |home: &Home| {
        let mut command = home.command(["serve"]);
        let images = format!("file://{}", home.path().display());
        command
            .env("DATABASE_URL", database.url())
            .env("PET_INVENTORY__IMAGES__URL", images);
        Service::start(home, command).await
    };
    let (first, second) = (serve(&homes[0]).await, serve(&homes[1]).await);
    let address = free_address();
    let settings = format!(
        "defaults
  mode http
  timeout connect 1s
  timeout client 10s
  timeout server 10s
listen pets
  bind {address}
{lines}  server one {}
  server two {}
",
        first.address, second.address
    );
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("haproxy.cfg");
    fs::write(&file, settings).expect("its settings");
    let _haproxy = Command::new("haproxy")
        .env("PATH", "/usr/sbin:/usr/local/sbin:/usr/bin")
        .args(["-db", "-f"])
        .arg(&file)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("haproxy is missing: run .ci/setup --all");
    eventually(async || TcpStream::connect(address).await.is_ok()).await;
    let url = format!("http://{address}/api/v3/pet/1");
    let client = client();
    let request = || Call::from(client.get(&url));
    callers_stay([first.operations, second.operations], request).await;
}
