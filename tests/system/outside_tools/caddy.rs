//! `config/Caddyfile`, changed only in addresses and the issuer of its certificate, in Debian's Caddy in front of two
//! replicas.

use reqwest::{Certificate, Version};
use test_support::*;
use tokio::process::{Child, Command};

use crate::{affinity::callers_stay, event_sources::each_event_comes_at_once};

const HOST: &str = "pets.example.com";

/// Two replicas on one database behind Caddy, ended when dropped.
struct Deployment {
    _caddy: Child,
    address: SocketAddr,
    replicas: Vec<Service>,
    certificate: Certificate,
    client: Client,
    key: String,
    folder: tempfile::TempDir,
    _homes: [Home; 2],
    database: TestDatabase,
}

impl Deployment {
    async fn start(settings: &[(&str, &str)]) -> Self {
        let database = TestDatabase::migrated().await;
        let mut connection = database.connect().await;
        let key = make_key(&mut connection, "tester", Scopes::all(), None)
            .await
            .secret;
        let folder = tempfile::tempdir().expect("a folder");
        let (homes, mut replicas) = ([Home::new(), Home::new()], Vec::new());
        for home in &homes {
            let mut command = home.command(["serve"]);
            command
                .env("DATABASE_URL", database.url())
                .env("PET_INVENTORY__DATABASE__ACQUIRE_TIMEOUT", "10s")
                .env("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.1")
                .env(
                    "PET_INVENTORY__IMAGES__URL",
                    format!("file://{}/images", folder.path().display()),
                )
                .envs(settings.iter().copied());
            replicas.push(Service::start(home, command).await);
        }
        let address = free_address();
        let mut file = include_str!("../../../config/Caddyfile").to_owned();
        for (theirs, ours) in [
            (
                "admin off\n",
                "admin off\n\tskip_install_trust\n\tauto_https disable_redirects\n".to_owned(),
            ),
            (
                "\npets.example.com {\n",
                format!(
                    "\n{HOST}:{} {{\n\tbind 127.0.0.1\n\ttls internal\n",
                    address.port()
                ),
            ),
            ("service-1:8080", replicas[0].address.to_string()),
            ("service-2:8080", replicas[1].address.to_string()),
        ] {
            assert!(file.contains(theirs), "no {theirs} in it");
            file = file.replace(theirs, &ours);
        }
        fs::write(folder.path().join("Caddyfile"), file).expect("its settings");
        // At its start, Caddy 2.6 removes empty folders, even one that it has just created for a certificate.
        let kept = folder.path().join("caddy/certificates/local").join(HOST);
        fs::create_dir_all(&kept).expect("a folder");
        fs::write(kept.join("kept"), "").expect("a file");
        let caddy = Command::new("caddy")
            .args(["run", "--config", "Caddyfile"])
            .current_dir(folder.path())
            .envs(["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"].map(|name| (name, folder.path())))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.path().join("log")).expect("a log"))
            .kill_on_drop(true)
            .spawn()
            .expect("caddy is missing: run .ci/setup --all");
        let root = folder.path().join("caddy/pki/authorities/local/root.crt");
        let is_ready = async {
            while !fs::read_to_string(folder.path().join("log"))
                .is_ok_and(|log| log.contains("certificate obtained successfully"))
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let is_ready = tokio::time::timeout(PATIENCE, is_ready).await;
        let log = fs::read_to_string(folder.path().join("log")).expect("a log");
        assert!(is_ready.is_ok(), "{log}");
        let certificate = Certificate::from_pem(&fs::read(root).expect("a certificate"));
        let certificate = certificate.expect("a certificate");
        let client = client_at("127.0.0.1", &certificate, address);
        // Caddy serves a certificate a moment after it has obtained it.
        let live = format!("https://{HOST}:{}/livez", address.port());
        eventually(async || client.get(&live).send().await.is_ok()).await;
        Self {
            _caddy: caddy,
            address,
            replicas,
            client,
            certificate,
            key,
            folder,
            _homes: homes,
            database,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("https://{HOST}:{}/api/v3{path}", self.address.port())
    }

    fn request(&self, method: Method, path: &str) -> Call {
        let request = self.client.request(method, self.url(path));
        Call::from(request).header("api_key", &self.key)
    }
}

/// Returns a client with a local address that trusts Caddy's certificates only.
fn client_at(local: &str, certificate: &Certificate, address: SocketAddr) -> Client {
    let local: IpAddr = local.parse().expect("an address");
    let builder = client_builder().no_proxy().local_address(local);
    let builder = builder
        .tls_certs_only([certificate.clone()])
        .resolve(HOST, address);
    builder.build().expect("a client")
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_passes_requests_and_images_over_tls() {
    let deployment = Deployment::start(&[]).await;
    let log = fs::read_to_string(deployment.folder.path().join("log")).expect("a log");
    assert!(log.contains("admin endpoint disabled"), "{log}");
    let add = deployment
        .request(Method::POST, "/pet")
        .json(&json!({"name": "Rex"}));
    let id = add.is(201).await.id();
    let path = format!("/pet/{id}");
    let first = deployment
        .request(Method::GET, &path)
        .send()
        .await
        .expect("a response");
    assert_eq!(first.version(), Version::HTTP_2);
    let header = |name: &str| first.headers()[name].to_str().expect("text").to_owned();
    assert_eq!(header("strict-transport-security"), "max-age=31536000");
    let again = deployment
        .request(Method::GET, &path)
        .header("if-none-match", header("etag"));
    again.is(304).await;
    let change = deployment
        .request(Method::PUT, "/pet")
        .json(&json!({"id": id, "name": "Max"}));
    change.header("if-match", "\"0\"").await.problem(412);

    let upload = async |size: usize| {
        let upload = deployment.request(Method::POST, &format!("{path}/uploadImage"));
        upload.body(large_jpeg(size)).await
    };
    let largest = 10 << 20;
    let stored = upload(largest).await.is(200).json();
    let image = format!(
        "{path}/images/{}",
        stored["imageId"].as_str().expect("an id")
    );
    let image = deployment.client.get(deployment.url(&image));
    assert!(
        image.is(200).await.body == large_jpeg(largest),
        "other bytes"
    );
    upload(largest + 1).await.problem(413);
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_keeps_a_caller_at_one_replica() {
    let deployment = Deployment::start(&[]).await;
    let operations = [&deployment.replicas[0], &deployment.replicas[1]].map(|it| it.operations);
    let request = || Call::from(deployment.client.get(deployment.url("/pet/1")));
    callers_stay(operations, request).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_use_the_client_address_seen_by_caddy() {
    let deployment = Deployment::start(&[
        ("PET_INVENTORY__AUTH__ANONYMOUS_SCOPES", "read:pets"),
        ("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "6"),
    ])
    .await;
    let client_at = |local| client_at(local, &deployment.certificate, deployment.address);
    let (one, another) = (client_at("127.0.0.2"), client_at("127.0.0.3"));
    let url = deployment.url("/pet/1");
    let mut statuses = Vec::new();
    for number in 0..7 {
        // Caddy replaces the client's own X-Forwarded-For.
        let request = one
            .get(&url)
            .header("x-forwarded-for", format!("192.0.2.{number}"));
        statuses.push(request.response().await.status);
    }
    // One replica may hold a request that the other refuses.
    assert_eq!(statuses[0], 404, "{statuses:?}");
    assert!(statuses.contains(&429), "{statuses:?}");
    another.get(&url).is(404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_uses_the_other_replica_and_reports_that_there_is_none() {
    let mut deployment = Deployment::start(&[]).await;
    let stop = async |deployment: &mut Deployment, number: usize| {
        let replica = &mut deployment.replicas[number];
        replica.signal(Signal::SIGTERM);
        assert_eq!(replica.wait_for_exit().await, Some(0), "{}", replica.log());
    };
    let pet = deployment
        .request(Method::POST, "/pet")
        .json(&json!({"name": "Rex"}));
    let path = format!("/pet/{}", pet.is(201).await.id());
    stop(&mut deployment, 0).await;
    for _ in 0..20 {
        deployment.request(Method::GET, &path).is(200).await;
    }
    // Two health checks, after which it gets no requests.
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    for number in 0..20 {
        let add = deployment
            .request(Method::POST, "/pet")
            .json(&json!({"name": number.to_string()}));
        add.is(201).await;
    }
    stop(&mut deployment, 1).await;
    let unavailable = deployment.request(Method::GET, "/pet/1").await;
    unavailable.problem(503);
    assert_eq!(unavailable.header("retry-after"), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_passes_each_event_of_a_stream_at_once() {
    let deployment = Deployment::start(&[]).await;
    each_event_comes_at_once(|method, path| deployment.request(method, path)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_cancels_the_request_of_a_client_that_has_left() {
    let deployment = Deployment::start(&[]).await;
    let add = deployment
        .request(Method::POST, "/pet")
        .json(&json!({"name": "Rex"}));
    let path = format!("/pet/{}", add.is(201).await.id());
    let mut lock = deployment.database.connect().await;
    let statement = "begin; lock table pets in access exclusive mode";
    sqlx::raw_sql(statement)
        .execute(&mut lock)
        .await
        .expect("a lock");
    let request = deployment.request(Method::GET, &path);
    let left = request.timeout(Duration::from_millis(500)).send().await;
    assert!(left.expect_err("a lock").is_timeout());
    let is_cancelled = |replica: &Service| replica.log().contains(r#""status":499,"#);
    eventually(async || deployment.replicas.iter().any(is_cancelled)).await;
}
