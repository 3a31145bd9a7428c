//! What a row needs: the real program on a PostgreSQL that the row may mistreat, and clients.

mod cluster;
pub mod load;
mod proxy;
mod row;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use pet_inventory::domain::caller::Scopes;
use reqwest::{Client, Method, RequestBuilder};

pub use self::{
    cluster::{Cluster, free_address, give_away, program, url_at},
    proxy::Proxy,
    row::{Row, bound, full, percentile, pick},
};
use crate::support::{Home, Service, make_key};

/// Where requests go, from one process of the service to the next.
pub struct Target {
    /// Where the API listens.
    pub address: SocketAddr,
    /// A key that may do everything.
    pub key: String,
    client: Client,
}

impl Target {
    /// A request to a path of the API.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.anonymous(method, path).header("api_key", &self.key)
    }

    /// The same without a credential.
    pub fn anonymous(&self, method: Method, path: &str) -> RequestBuilder {
        self.bare(method, &format!("/api/v3{path}"))
    }

    /// A request to any path.
    pub fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("http://{}{path}", self.address);
        self.client.request(method, url)
    }
}

/// The program on a PostgreSQL, both real.
pub struct Stage {
    /// Dropped first.
    pub service: Service,
    /// Its PostgreSQL.
    pub cluster: Cluster,
    /// Where requests go.
    pub target: Arc<Target>,
    /// What it works in.
    pub home: Home,
    settings: Vec<(String, String)>,
}

impl Stage {
    /// With settings over the defaults, as `SECTION__KEY`.
    pub async fn start(settings: &[(&str, &str)]) -> Self {
        let cluster = Cluster::start().await;
        let url = cluster.url();
        Self::on(cluster, &url, settings).await
    }

    /// The same, on a PostgreSQL that it reaches by this URL.
    pub async fn on(cluster: Cluster, url: &str, settings: &[(&str, &str)]) -> Self {
        let (home, address) = (Home::new(), free_address());
        let named =
            |(name, value): &(&str, &str)| (format!("PET_INVENTORY__{name}"), (*value).to_owned());
        let mut settings: Vec<_> = settings.iter().map(named).collect();
        settings.push(("PET_INVENTORY__SERVER__LISTEN".into(), address.to_string()));
        settings.push(("DATABASE_URL".into(), url.to_owned()));
        // All clients have one address here, and some of them wrong credentials.
        let budget = "PET_INVENTORY__LIMITS__WRONG_CREDENTIALS_PER_MINUTE";
        settings.push((budget.into(), "1000000".into()));
        let service = serve(&home, &settings).await;
        let key = make_key(&mut cluster.connect().await, "tester", Scopes::all(), None).await;
        let target = Target {
            address,
            key: key.secret,
            client: crate::support::client(),
        };
        Self {
            service,
            cluster,
            target: Arc::new(target),
            home,
            settings,
        }
    }

    /// Another process of the same service.
    pub async fn serve(&self) -> Service {
        serve(&self.home, &self.settings).await
    }

    /// Another replica, at an address of its own.
    pub async fn serve_beside(&self) -> Service {
        let mut settings = self.settings.clone();
        let listen = "PET_INVENTORY__SERVER__LISTEN".to_owned();
        settings.push((listen, "127.0.0.1:0".to_owned()));
        serve(&self.home, &settings).await
    }

    /// A metric, summed over its labels that contain these words.
    pub async fn metric(&self, name: &str, labels: &str) -> f64 {
        let url = format!("http://{}/metrics", self.service.operations);
        let text = self.target.client.get(url).send().await.expect("metrics");
        let text = text.text().await.expect("text");
        let lines = text
            .lines()
            .filter(|line| line.starts_with(name) && line.contains(labels));
        lines
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    }

    /// `/readyz` or the like, by the listener that stays to the end.
    pub fn operations(&self, path: &str) -> RequestBuilder {
        self.target
            .client
            .get(format!("http://{}{path}", self.service.operations))
    }

    /// The lines that it logged but for those of which every request has one.
    pub fn log_lines(&self) -> Vec<String> {
        let log = self.service.log();
        let told = log
            .lines()
            .filter(|line| !line.contains("pet_inventory::access"));
        told.map(str::to_owned).collect()
    }

    /// Bytes of memory that the process has.
    pub fn memory(&self) -> u64 {
        memory(&self.service)
    }
}

/// Bytes of memory that a process has.
pub fn memory(service: &Service) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", service.pid())).expect("its status");
    let kilobytes = status.lines().find_map(|line| {
        line.strip_prefix("VmRSS:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<u64>()
            .ok()
    });
    kilobytes.expect("its memory") << 10
}

/// A process of the service.
pub async fn serve(home: &Home, settings: &[(String, String)]) -> Service {
    let mut command = home.command(["serve"]);
    command.envs(settings.iter().map(|(name, value)| (name, value)));
    Service::start(home, command).await
}

/// Asks until the answer is of that status; gives how long it took.
pub async fn until(status: u16, request: impl Fn() -> RequestBuilder) -> Duration {
    let begun = Instant::now();
    loop {
        let answered = load::Answered::to(request()).await;
        if answered.status == Some(status) {
            return begun.elapsed();
        }
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "no {status}: {answered:?}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
