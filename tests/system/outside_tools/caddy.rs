//! `config/Caddyfile`, changed only in addresses and the issuer of its certificate, in Debian's Caddy in front of two
//! replicas.

use reqwest::{Certificate, Version};
use test_support::*;
use tokio::process::{Child, Command};

use crate::proxies::{
    Deployment, Proxy, SIX_PER_ADDRESS, assert_callers_stay_at_one_replica,
    assert_conditions_and_images_pass, assert_events_pass_at_once, seven_requests_of_an_address,
};

const HOST: &str = "pets.example.com";

struct Caddy {
    _child: Child,
    address: SocketAddr,
    certificate: Certificate,
}

impl Proxy for Caddy {
    async fn start(folder: &Path, address: SocketAddr, replicas: [SocketAddr; 2]) -> Self {
        Self::configured(folder, address, replicas, vec![]).await
    }

    fn origin(&self) -> String {
        format!("https://{HOST}:{}", self.address.port())
    }

    /// Returns a client that trusts Caddy's certificates only.
    fn client_at(&self, local: &str) -> Client {
        let local: IpAddr = local.parse().expect("an address");
        let builder = client_builder().no_proxy().local_address(local);
        let builder = builder
            .tls_certs_only([self.certificate.clone()])
            .resolve(HOST, self.address);
        builder.build().expect("a client")
    }
}

impl Caddy {
    /// Starts Caddy with changed settings of `config/Caddyfile`.
    async fn configured(
        folder: &Path,
        address: SocketAddr,
        replicas: [SocketAddr; 2],
        changes: Vec<(&str, String)>,
    ) -> Self {
        let mut file = include_str!("../../../config/Caddyfile").to_owned();
        let others = [
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
            ("service-1:8080", replicas[0].to_string()),
            ("service-2:8080", replicas[1].to_string()),
        ];
        for (theirs, ours) in changes.into_iter().chain(others) {
            assert!(file.contains(theirs), "no {theirs} in it");
            file = file.replace(theirs, &ours);
        }
        fs::write(folder.join("Caddyfile"), file).expect("its settings");
        // At its start, Caddy 2.6 removes empty folders, even one that it has just created for a certificate.
        let kept = folder.join("caddy/certificates/local").join(HOST);
        fs::create_dir_all(&kept).expect("a folder");
        fs::write(kept.join("kept"), "").expect("a file");
        let child = Command::new("caddy")
            .args(["run", "--config", "Caddyfile"])
            .current_dir(folder)
            .envs(["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"].map(|name| (name, folder)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.join("log")).expect("a log"))
            .kill_on_drop(true)
            .spawn()
            .expect("caddy is missing: run .ci/setup --all");
        let root = folder.join("caddy/pki/authorities/local/root.crt");
        let is_ready = async {
            while !fs::read_to_string(folder.join("log"))
                .is_ok_and(|log| log.contains("certificate obtained successfully"))
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let is_ready = tokio::time::timeout(PATIENCE, is_ready).await;
        let log = fs::read_to_string(folder.join("log")).expect("a log");
        assert!(is_ready.is_ok(), "{log}");
        let certificate = Certificate::from_pem(&fs::read(root).expect("a certificate"));
        let caddy = Self {
            _child: child,
            address,
            certificate: certificate.expect("a certificate"),
        };
        // Caddy serves a certificate a moment after it has obtained it.
        let client = caddy.client_at("127.0.0.1");
        let live = format!("{}/livez", caddy.origin());
        eventually(async || client.get(&live).send().await.is_ok()).await;
        caddy
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_passes_requests_and_images_over_tls() {
    let deployment = Deployment::<Caddy>::start(&[]).await;
    let log = fs::read_to_string(deployment.folder.path().join("log")).expect("a log");
    assert!(log.contains("admin endpoint disabled"), "{log}");
    let path = format!("/pet/{}", deployment.pet("Max").await.id());
    let request = deployment.request(Method::GET, &path);
    let response = request.send().await.expect("a response");
    assert_eq!(
        (response.version(), response.status().as_u16()),
        (Version::HTTP_2, 200)
    );
    let policy = &response.headers()["strict-transport-security"];
    assert_eq!(policy, "max-age=31536000");
    assert_conditions_and_images_pass(&deployment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_keeps_a_caller_at_one_replica() {
    assert_callers_stay_at_one_replica::<Caddy>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_use_the_client_address_seen_by_caddy() {
    let responses = seven_requests_of_an_address::<Caddy>().await;
    let statuses: Vec<_> = responses.iter().map(|response| response.status).collect();
    // One replica may hold a request that the other refuses.
    assert_eq!(statuses[0], 404, "{statuses:?}");
    assert!(statuses.contains(&429), "{statuses:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_use_the_client_address_that_a_proxy_before_caddy_saw() {
    let trusted = (
        "PET_INVENTORY__LIMITS__TRUSTED_PROXIES",
        "127.0.0.1,127.0.0.9",
    );
    let [scopes, limit] = SIX_PER_ADDRESS;
    let deployment = Deployment::<Caddy>::start(&[scopes, limit, trusted]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let replicas = deployment.replicas.each_ref().map(|it| it.address);
    let changes = vec![(
        "# trusted_proxies 10.0.3.7",
        "trusted_proxies 127.0.0.9".into(),
    )];
    let caddy = Caddy::configured(folder.path(), free_address(), replicas, changes).await;
    let url = format!("{}/api/v3/pet/1", caddy.origin());
    let [proxy, other] = ["127.0.0.9", "127.0.0.2"].map(|it| caddy.client_at(it));
    // Each of two replicas may admit some. Other hosts than the proxy are not believed.
    for (client, is_believed) in [(&proxy, true), (&other, false)] {
        let send = async |forwarded: String| {
            let request = client.get(&url).header("x-forwarded-for", forwarded);
            request.response().await.status
        };
        let mut statuses = BTreeSet::new();
        for number in 0..20 {
            statuses.insert(send(format!("203.0.113.{number}, 192.0.2.1")).await);
        }
        assert_eq!(statuses, BTreeSet::from([404, 429]));
        let another = send("192.0.2.2".to_owned()).await;
        assert_eq!(another, if is_believed { 404 } else { 429 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_uses_the_other_replica_and_reports_that_there_is_none() {
    let mut deployment = Deployment::<Caddy>::start(&[]).await;
    let path = format!("/pet/{}", deployment.pet("Rex").await.id());
    deployment.stop(0).await;
    for _ in 0..20 {
        deployment.request(Method::GET, &path).is(200).await;
    }
    // Two health checks, after which it gets no requests.
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    for number in 0..20 {
        deployment.pet(&number.to_string()).await;
    }
    deployment.stop(1).await;
    deployment.assert_unavailable().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_passes_each_event_of_a_stream_at_once() {
    assert_events_pass_at_once::<Caddy>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_cancels_the_request_of_a_client_that_has_left() {
    let deployment = Deployment::<Caddy>::start(&[]).await;
    let path = format!("/pet/{}", deployment.pet("Rex").await.id());
    let _lock = deployment.database.lock("pets").await;
    let request = deployment.request(Method::GET, &path);
    let left = request.timeout(Duration::from_millis(500)).send().await;
    assert!(left.expect_err("a lock").is_timeout());
    let is_cancelled = |replica: &Service| replica.log().contains(r#""status":499,"#);
    eventually(async || deployment.replicas.iter().any(is_cancelled)).await;
}
