//! HAProxy with the lines of the operator's guide keeps each caller at one replica, by its credential.

use test_support::*;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
};

use crate::proxies::{Proxy, assert_callers_stay_at_one_replica};

struct Haproxy {
    _child: Child,
    address: SocketAddr,
}

impl Proxy for Haproxy {
    async fn start(folder: &Path, address: SocketAddr, replicas: [SocketAddr; 2]) -> Self {
        let guide = include_str!("../../../config/README.md");
        let (_, rest) = guide.split_once("```haproxy\n").expect("the lines");
        let (lines, _) = rest.split_once("```").expect("their end");
        let [first, second] = replicas;
        let settings = format!(
            "defaults
  mode http
  timeout connect 1s
  timeout client 10s
  timeout server 10s
listen pets
  bind {address}
{lines}  server one {first}
  server two {second}
"
        );
        let file = folder.join("haproxy.cfg");
        fs::write(&file, settings).expect("its settings");
        let child = Command::new("haproxy")
            .env("PATH", "/usr/sbin:/usr/local/sbin:/usr/bin")
            .args(["-db", "-f"])
            .arg(&file)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("haproxy is missing: run .ci/setup --all");
        eventually(async || TcpStream::connect(address).await.is_ok()).await;
        Self {
            _child: child,
            address,
        }
    }

    fn origin(&self) -> String {
        format!("http://{}", self.address)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_keeps_a_caller_at_one_replica() {
    assert_callers_stay_at_one_replica::<Haproxy>().await;
}
