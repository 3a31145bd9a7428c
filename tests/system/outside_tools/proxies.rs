//! Proxies in front of two replicas, with their files in `config`, changed only in addresses, folders and certificates: what each of
//! them must do. `nginx`, `caddy` and `haproxy` start them, and have what only one of them does.

use test_support::*;

pub const PUBLIC_URL: &str = "https://pets.example.com";
/// Maximum size of an image in bytes.
pub const LARGEST: usize = 10 << 20;

/// Proxy, ended when dropped.
pub trait Proxy: Sized {
    /// Starts the proxy, and waits until it listens.
    async fn start(folder: &Path, address: SocketAddr, replicas: [SocketAddr; 2]) -> Self;

    /// Returns the part of its URLs before the path.
    fn origin(&self) -> String;

    /// Returns a client of it with this local address.
    fn client_at(&self, local: &str) -> Client {
        let local: IpAddr = local.parse().expect("an address");
        let builder = client_builder().no_proxy().local_address(local);
        builder.build().expect("a client")
    }
}

/// Two replicas on one database behind a proxy, ended when dropped.
pub struct Deployment<P> {
    pub proxy: P,
    pub address: SocketAddr,
    pub replicas: [Service; 2],
    homes: [Home; 2],
    settings: Vec<(&'static str, String)>,
    pub key: String,
    client: Client,
    pub database: TestDatabase,
    pub folder: tempfile::TempDir,
}

impl<P: Proxy> Deployment<P> {
    pub async fn start(settings: &[(&'static str, &str)]) -> Self {
        let database = TestDatabase::migrated().await;
        let mut connection = database.connect().await;
        let key = make_key(&mut connection, "tester", Scopes::all(), None).await;
        let folder = tempfile::tempdir().expect("a folder");
        let images = folder.path().join("images");
        fs::create_dir(&images).expect("a folder");
        let mut all = vec![
            ("DATABASE_URL", database.url()),
            ("PET_INVENTORY__DATABASE__MAX_CONNECTIONS", "5".into()),
            // The machine may be busy with a build.
            ("PET_INVENTORY__DATABASE__ACQUIRE_TIMEOUT", "10s".into()),
            ("PET_INVENTORY__SERVER__PUBLIC_URL", PUBLIC_URL.into()),
            ("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.1".into()),
            (
                "PET_INVENTORY__IMAGES__URL",
                format!("file://{}", images.display()),
            ),
        ];
        let own = settings
            .iter()
            .map(|(name, value)| (*name, (*value).into()));
        all.extend(own);
        let homes = [Home::new(), Home::new()];
        let replicas = [
            replica(&homes[0], &all, None).await,
            replica(&homes[1], &all, None).await,
        ];
        let address = free_address();
        let addresses = replicas.each_ref().map(|it| it.address);
        let proxy = P::start(folder.path(), address, addresses).await;
        Self {
            client: proxy.client_at("127.0.0.1"),
            proxy,
            address,
            replicas,
            homes,
            settings: all,
            key: key.secret,
            database,
            folder,
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}/api/v3{path}", self.proxy.origin())
    }

    pub fn anonymous(&self, method: Method, path: &str) -> Call {
        self.client.request(method, self.url(path)).into()
    }

    pub fn request(&self, method: Method, path: &str) -> Call {
        self.anonymous(method, path).header("api_key", &self.key)
    }

    pub async fn pet(&self, name: &str) -> Response {
        let request = self.request(Method::POST, "/pet");
        request.json(&json!({ "name": name })).is(201).await
    }

    /// Uploads an image of this size for the pet at a path.
    pub async fn upload(&self, pet: &str, size: usize) -> Response {
        let upload = self.request(Method::POST, &format!("{pet}/uploadImage"));
        upload.body(large_jpeg(size)).await
    }

    /// Stops a replica with SIGTERM.
    pub async fn stop(&mut self, number: usize) {
        let replica = &mut self.replicas[number];
        replica.signal(Signal::SIGTERM);
        assert_eq!(replica.wait_for_exit().await, Some(0), "{}", replica.log());
    }

    /// Starts a stopped replica again at its address.
    pub async fn start_again(&mut self, number: usize) {
        let address = Some(self.replicas[number].address);
        self.replicas[number] = replica(&self.homes[number], &self.settings, address).await;
    }

    /// Checks that a request gets 503 when no replica is left.
    pub async fn assert_unavailable(&self) {
        let unavailable = self.request(Method::GET, "/pet/1").await;
        unavailable.problem(503);
        assert_eq!(unavailable.header("retry-after"), "1");
    }
}

async fn replica(
    home: &Home,
    settings: &[(&'static str, String)],
    address: Option<SocketAddr>,
) -> Service {
    let mut command = home.command(["serve"]);
    command.envs(settings.iter().map(|(name, value)| (name, value)));
    if let Some(address) = address {
        command.env("PET_INVENTORY__SERVER__LISTEN", address.to_string());
    }
    Service::start(home, command).await
}

/// Checks that conditional requests pass, and images of the maximum size. The service refuses larger ones, not the proxy.
pub async fn assert_conditions_and_images_pass<P: Proxy>(deployment: &Deployment<P>) {
    let id = deployment.pet("Rex").await.id();
    let path = format!("/pet/{id}");
    let first = deployment.request(Method::GET, &path).is(200).await;
    let again = deployment.request(Method::GET, &path);
    again.header("if-none-match", first.etag()).is(304).await;
    let change = deployment.request(Method::PUT, "/pet");
    let change = change.json(&json!({"id": id, "name": "Max"}));
    change.header("if-match", "\"0\"").await.problem(412);

    let stored = deployment.upload(&path, LARGEST).await.is(200).json();
    let url = stored["url"].as_str().expect("a URL");
    let image = url.strip_prefix(&format!("{PUBLIC_URL}/api/v3"));
    let image = deployment.anonymous(Method::GET, image.expect("a public URL"));
    let is_same = image.is(200).await.body == large_jpeg(LARGEST);
    assert!(is_same, "other bytes");
    deployment.upload(&path, LARGEST + 1).await.problem(413);
}

/// Checks that each of several callers reaches one replica, and that both replicas get callers.
pub async fn assert_callers_stay_at_one_replica<P: Proxy>() {
    const REQUESTS: usize = 5;
    let deployment = Deployment::<P>::start(&[]).await;
    let [first, second] = &deployment.replicas;
    let mut reached = [false; 2];
    for caller in 0..24 {
        // The credentials are unknown to the service, which a proxy cannot know.
        let header = if caller % 2 == 0 {
            ("api_key", format!("caller-{caller}"))
        } else {
            ("authorization", format!("Bearer caller-{caller}"))
        };
        let before = [served(first).await, served(second).await];
        for _ in 0..REQUESTS {
            let request = deployment.anonymous(Method::GET, "/pet/1");
            request.header(header.0, &header.1).await.problem(401);
        }
        let mut counts = [0; 2];
        // A request is counted a moment after its response.
        eventually(async || {
            let after = [served(first).await, served(second).await];
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
async fn served(replica: &Service) -> usize {
    let metrics = replica.metrics().await;
    let counts = metrics.lines().filter(|line| {
        line.starts_with("http_server_request_duration_seconds_count{")
            && line.contains("http_response_status_code=\"401\"")
    });
    let counts = counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok());
    counts.sum()
}

/// Settings that admit six requests per minute from each address.
pub const SIX_PER_ADDRESS: [(&str, &str); 2] = [
    ("PET_INVENTORY__AUTH__ANONYMOUS_SCOPES", "read:pets"),
    ("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "6"),
];

/// Returns the responses to seven requests of one client, which pretends to have other addresses, and checks that another client
/// is admitted.
pub async fn seven_requests_of_an_address<P: Proxy>() -> Vec<Response> {
    let deployment = Deployment::<P>::start(&SIX_PER_ADDRESS).await;
    let [one, another] = ["127.0.0.2", "127.0.0.3"].map(|it| deployment.proxy.client_at(it));
    let url = deployment.url("/pet/1");
    let mut responses = Vec::new();
    for number in 0..7 {
        // The proxy replaces the client's own X-Forwarded-For.
        let made_up = format!("192.0.2.{number}");
        let request = one.get(&url).header("x-forwarded-for", made_up);
        responses.push(request.response().await);
    }
    another.get(&url).is(404).await;
    responses
}

/// Checks that each change comes before the next one is made, also in a compressed stream.
pub async fn assert_events_pass_at_once<P: Proxy>() {
    let deployment = Deployment::<P>::start(&[]).await;
    let open = deployment.request(Method::GET, "/changes?kind=pet");
    let mut events = Events::open(open.header("accept-encoding", "gzip")).await;
    events.id().await;
    for name in ["Rex", "Max", "Ace"] {
        let id = deployment.pet(name).await.id().to_string();
        assert_eq!(events.change().await["resource"], *id);
    }
}
