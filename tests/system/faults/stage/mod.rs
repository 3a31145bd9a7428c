//! Test stage: the real program on a PostgreSQL that the test may damage, and its clients.

mod cluster;
mod load;
mod proxy;
mod row;

use test_support::*;

pub use self::{
    cluster::{Cluster, chown_to_postgres, owner, program, url_at},
    load::*,
    proxy::Proxy,
    row::{Row, percentile, short_or_full},
};

/// The destination of requests, shared by successive processes of the service.
pub struct Target {
    pub address: SocketAddr,
    /// API key with all scopes.
    pub key: String,
    client: Client,
}

impl Target {
    /// Creates a destination with a client of its own.
    pub fn new(address: SocketAddr, key: &str) -> Arc<Self> {
        Arc::new(Self {
            address,
            key: key.to_owned(),
            client: client(),
        })
    }

    /// Returns the same destination for another client, with a loopback address and a key of its own.
    pub fn of_client(&self, client: [u8; 4], key: &str) -> Arc<Self> {
        let builder = client_builder().no_proxy();
        let client = builder.local_address(Some(IpAddr::from(client))).build();
        Arc::new(Self {
            address: self.address,
            key: key.to_owned(),
            client: client.expect("a client"),
        })
    }

    /// Returns the same client and key for another replica.
    pub fn at(&self, address: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            address,
            key: self.key.clone(),
            client: self.client.clone(),
        })
    }

    /// Builds a request to a path of the API.
    pub fn request(&self, method: Method, path: &str) -> Call {
        self.anonymous(method, path).header("api_key", &self.key)
    }

    /// Builds a request to a path of the API without a credential.
    pub fn anonymous(&self, method: Method, path: &str) -> Call {
        self.bare(method, &format!("/api/v3{path}"))
    }

    /// Builds a request to any path without a credential.
    pub fn bare(&self, method: Method, path: &str) -> Call {
        let url = format!("http://{}{path}", self.address);
        self.client.request(method, url).into()
    }
}

/// The program and its PostgreSQL.
pub struct Stage {
    /// Declared first, so that it is dropped before its PostgreSQL.
    pub service: Service,
    pub cluster: Cluster,
    pub target: Arc<Target>,
    /// Working directory of the service.
    pub home: Home,
    settings: Vec<(String, String)>,
}

impl Stage {
    /// Starts a stage with settings (`SECTION__KEY`) over the defaults.
    pub async fn start(settings: &[(&str, &str)]) -> Self {
        let cluster = Cluster::start().await;
        let url = cluster.url();
        Self::on(cluster, &url, settings).await
    }

    /// Starts a stage that reaches its PostgreSQL by `url`.
    pub async fn on(cluster: Cluster, url: &str, settings: &[(&str, &str)]) -> Self {
        let (home, address) = (Home::new(), free_address());
        let named =
            |(name, value): &(&str, &str)| (format!("PET_INVENTORY__{name}"), (*value).to_owned());
        // All clients share one address here, and some send wrong credentials.
        let budget = ("LIMITS__FAILED_AUTHENTICATION_PER_MINUTE", "1000000");
        let mut settings: Vec<_> = [&[budget], settings].concat().iter().map(named).collect();
        settings.push(("PET_INVENTORY__SERVER__LISTEN".into(), address.to_string()));
        settings.push(("DATABASE_URL".into(), url.to_owned()));
        let service = serve(&home, &settings).await;
        let key = cluster.make_key("tester").await;
        Self {
            service,
            cluster,
            target: Target::new(address, &key.secret),
            home,
            settings,
        }
    }

    /// Starts another process at the same address.
    pub async fn serve(&self) -> Service {
        serve(&self.home, &self.settings).await
    }

    /// Starts another replica at an address of its own.
    pub async fn serve_beside(&self) -> Service {
        let mut settings = self.settings.clone();
        let listen = "PET_INVENTORY__SERVER__LISTEN".to_owned();
        settings.push((listen, "127.0.0.1:0".to_owned()));
        serve(&self.home, &settings).await
    }

    /// Returns the sum of a metric's samples with labels that contain `labels`.
    pub async fn metric(&self, name: &str, labels: &str) -> f64 {
        metric(&self.service, name, labels).await
    }

    /// Builds a request to the operations listener, which stays open until the process ends.
    pub fn operations(&self, path: &str) -> Call {
        let url = format!("http://{}{path}", self.service.operations);
        self.target.client.get(url).into()
    }

    /// Returns the log lines without the access lines.
    pub fn log_lines(&self) -> Vec<String> {
        let log = self.service.log();
        let lines = log
            .lines()
            .filter(|line| !line.contains("pet_inventory::access"));
        lines.map(str::to_owned).collect()
    }

    /// Returns the resident memory of the service in bytes.
    pub fn memory(&self) -> u64 {
        memory(&self.service)
    }

    /// Returns the largest resident memory of the service so far in bytes.
    pub fn peak_memory(&self) -> u64 {
        status(&self.service, "VmHWM:")
    }

    /// Runs `work`; returns by how many bytes the resident memory of the service grew at its peak.
    pub async fn memory_growth(&self, work: impl Future<Output = ()>) -> u64 {
        self.idle().await;
        // Resets the peak.
        fs::write(format!("/proc/{}/clear_refs", self.service.pid()), "5").expect("a reset");
        let before = self.memory();
        work.await;
        self.peak_memory().saturating_sub(before)
    }

    /// Returns the CPU time that the service has used.
    pub fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.service.pid()));
        let stat = stat.expect("its state");
        // The name of the program is in parentheses; user and system time are fields 14 and 15, in units of 10 ms.
        let fields = stat.rsplit_once(") ").expect("a name").1.split(' ');
        let ticks = fields.skip(11).take(2);
        let ticks = ticks.map(|ticks| ticks.parse::<u64>().expect("a number"));
        Duration::from_millis(10 * ticks.sum::<u64>())
    }

    /// Waits until the service has handled all that it received: until it uses almost no CPU time for 0.2 s.
    pub async fn idle(&self) {
        loop {
            let before = self.cpu_time();
            tokio::time::sleep(Duration::from_millis(200)).await;
            if self.cpu_time().saturating_sub(before) <= Duration::from_millis(10) {
                return;
            }
        }
    }
}

/// Returns the sum of a metric's samples with labels that contain `labels`.
pub async fn metric(service: &Service, name: &str, labels: &str) -> f64 {
    let text = service.metrics().await;
    let lines = text
        .lines()
        .filter(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        })
        .filter(|line| line.contains(labels));
    lines
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}

/// Returns the resident memory of a process in bytes.
pub fn memory(service: &Service) -> u64 {
    status(service, "VmRSS:")
}

/// Returns a field of the status of a process in bytes.
fn status(service: &Service, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", service.pid())).expect("its status");
    let kilobytes = status.lines().find_map(|line| {
        line.strip_prefix(field)?
            .trim()
            .strip_suffix(" kB")?
            .parse::<u64>()
            .ok()
    });
    kilobytes.expect("its memory") << 10
}

pub async fn serve(home: &Home, settings: &[(String, String)]) -> Service {
    let mut command = home.command(["serve"]);
    command.envs(settings.iter().map(|(name, value)| (name, value)));
    Service::start(home, command).await
}

/// Repeats a request until its response has the given status; returns the time that took.
pub async fn until(status: u16, request: impl Fn() -> Call) -> Duration {
    let started = Instant::now();
    loop {
        let response = TimedResponse::of(request()).await;
        if response.status == Some(status) {
            return started.elapsed();
        }
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "no {status}: {response:?}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
