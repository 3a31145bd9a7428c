//! Each alert of `config/alerts.yaml` becomes true by its fault: a real Prometheus scrapes real services.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
};

use test_support::{
    issuer::now,
    postgres::{TestDatabase, start_postgres, url},
    process::free_address,
    signer::Signer,
    *,
};
use tokio::net::TcpStream;

use super::prometheus::{ALERTS, Prometheus, within};

/// Time in which an alert becomes true, without the time for which it must stay so.
const SOON: Duration = Duration::from_mins(1);

/// Alerts that have become true.
struct Board {
    prometheus: Prometheus,
    seen: BTreeSet<String>,
}

impl Board {
    /// Repeats a fault until an alert is true: Prometheus sees an increase only between two scrapes.
    async fn expect(&mut self, alert: &str, mut fault: impl AsyncFnMut()) {
        let query = format!("max_over_time(ALERTS{{alertname=\"PetInventory{alert}\"}}[5m])");
        let is_true = async || {
            fault().await;
            !self.prometheus.values(&query).await.is_empty()
        };
        within(SOON, alert, is_true).await;
        self.seen.insert(format!("PetInventory{alert}"));
    }
}

/// Returns a client address that no other request has.
fn address() -> String {
    let number = next();
    format!("198.18.{}.{}", number / 256, number % 256)
}

/// Returns a number that is used only once.
fn next() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Service on a database of its own, in which every key is allowed everything.
struct Shop {
    database: TestDatabase,
    home: Home,
    key: String,
}

impl Shop {
    async fn new() -> Self {
        let database = TestDatabase::migrated().await;
        let mut connection = database.connect().await;
        let key = make_key(&mut connection, "tester", Scopes::all(), None).await;
        Self {
            home: Home::on(database.url()),
            database,
            key: key.secret,
        }
    }

    fn images(&self) -> PathBuf {
        self.home.path().join("images")
    }

    async fn serve(&self, variables: &[(&str, &str)]) -> Service {
        let images = format!("file://{}", self.images().display());
        let variables = [&[("PET_INVENTORY__IMAGES__URL", &*images)], variables].concat();
        self.home.serve_with(&variables).await
    }

    async fn pet(&self, service: &Service) -> i64 {
        let pet = service.request(Method::POST, "/pet", &self.key);
        pet.json(&json!({"name": "Rex"})).is(201).await.id()
    }

    /// Uploads an image that no other has. Returns its path, or `None` if it was not stored.
    async fn upload(&self, service: &Service, pet: i64) -> Option<String> {
        let side = u32::try_from(next()).expect("a side");
        let path = format!("/pet/{pet}/uploadImage");
        let upload = service.request(Method::POST, &path, &self.key);
        let response = upload.body(png(side, 10)).await;
        (response.status == 200).then(|| response.image_path())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_alert_becomes_true_by_its_fault() {
    let home = Home::new();
    let mut board = Board {
        prometheus: Prometheus::start(&home),
        seen: BTreeSet::new(),
    };
    locks_and_load(&mut board).await;
    database_out_of_reach(&mut board).await;
    images(&mut board).await;
    webhooks(&mut board).await;
    surroundings(&mut board).await;
    restarts_and_the_end(&mut board).await;

    let file = fs::read_to_string(ALERTS).expect("the alerts");
    let all = file
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let all: BTreeSet<_> = all.map(str::to_owned).collect();
    assert_eq!(board.seen, all);
}

/// Locks, too many requests, and guessed secrets.
async fn locks_and_load(board: &mut Board) {
    let shop = Shop::new().await;
    let service = shop
        .serve(&[
            ("PET_INVENTORY__SERVER__WORKERS", "1"),
            ("PET_INVENTORY__SERVER__MAX_REQUESTS", "16"),
            ("PET_INVENTORY__DATABASE__MAX_CONNECTIONS", "4"),
            ("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.1"),
            ("PET_INVENTORY__USERS__LOGINS_PER_MINUTE", "1"),
        ])
        .await;
    board.prometheus.scrape(&[service.operations]);
    let pet = shop.pet(&service).await;

    let clock = shop.database.lock("changes_clock").await;
    shop.pet(&service).await;
    board.expect("ChangesLate", async || {}).await;
    drop(clock);

    let images = shop.database.lock("images").await;
    let path = format!("/pet/{pet}/images");
    let crowd = async || {
        let requests = (0..32).map(|_| service.request(Method::GET, &path, &shop.key));
        send_all(requests).await;
    };
    for alert in ["Overloaded", "Errors", "Slow"] {
        board.expect(alert, crowd).await;
    }
    let crowds = async {
        loop {
            crowd().await;
        }
    };
    tokio::select! {
        () = board.expect("DatabasePoolExhausted", async || {}) => {}
        () = crowds => {}
    }
    drop(images);

    let guess = async || {
        let address = address();
        for _ in 0..11 {
            let guesses = (0..10).map(|_| {
                let get = service.request(Method::GET, "/pet/1", "wrong");
                get.header("x-forwarded-for", &address)
            });
            send_all(guesses).await;
        }
    };
    board.expect("CredentialsGuessed", guess).await;
    let user = json!({"username": "ada", "password": "wrong password"});
    // After the first attempt, the limit of the account and the address refuses the others.
    let log_in = async || {
        let address = address();
        for _ in 0..9 {
            let attempts = (0..10).map(|_| {
                let login = service.request(Method::POST, "/user/login", &shop.key);
                login.header("x-forwarded-for", &address).json(&user)
            });
            send_all(attempts).await;
        }
    };
    board.expect("LoginsGuessed", log_in).await;
    service.stop().await;
}

async fn database_out_of_reach(board: &mut Board) {
    let folder = tempfile::tempdir().expect("a folder");
    let postgres = start_postgres(&folder.path().join("data")).await;
    let service = Home::on(url(&postgres.connect_options())).serve().await;
    board.prometheus.scrape(&[service.operations]);
    postgres.stop().await.expect("stopped");
    board.expect("DatabaseOutOfReach", async || {}).await;
}

/// An image store that takes nothing, and one of another database.
async fn images(board: &mut Board) {
    let shop = Shop::new().await;
    let service = shop.serve(&[]).await;
    board.prometheus.scrape(&[service.operations]);
    let pet = shop.pet(&service).await;
    let mut stored = Vec::new();
    for _ in 0..40 {
        stored.extend(shop.upload(&service, pet).await);
    }
    assert_eq!(stored.len(), 40);
    let away = shop.home.path().join("away");
    fs::rename(shop.images(), &away).expect("moved");
    fs::write(shop.images(), "in the way").expect("a file");
    let upload = async || {
        shop.upload(&service, pet).await;
    };
    board.expect("ImagesNotStored", upload).await;
    let mut stored = stored.into_iter();
    let mut delete = async || {
        let image = stored.next().expect("another image");
        service
            .request(Method::DELETE, &image, &shop.key)
            .is(200)
            .await;
    };
    board.expect("ImagesNotSwept", &mut delete).await;
    fs::remove_file(shop.images()).expect("removed");
    fs::rename(&away, shop.images()).expect("moved");
    let lost = shop.upload(&service, pet).await.expect("stored");
    for folder in fs::read_dir(shop.images()).expect("a folder") {
        // The marker is none.
        let _ = fs::remove_dir_all(folder.expect("an entry").path());
    }
    let get = async || {
        service.request(Method::GET, &lost, &shop.key).is(404).await;
    };
    board.expect("ImagesLost", get).await;
    fs::write(shop.images().join(MARKER), "another").expect("a marker");
    board.expect("ImageStoreConflict", delete).await;
    service.stop().await;
}

/// A receiver that is down for minutes, then for a day.
async fn webhooks(board: &mut Board) {
    let shop = Shop::new().await;
    let service = shop
        .serve(&[("PET_INVENTORY__WEBHOOKS__ALLOW_PRIVATE", "true")])
        .await;
    board.prometheus.scrape(&[service.operations]);
    let webhook = service.request(Method::POST, "/admin/webhooks", &shop.key);
    let down = json!({"url": format!("http://{}", free_address())});
    webhook.json(&down).is(201).await;
    let retries = "select count(*) from webhook_retries";
    eventually(async || shop.database.number(retries).await > 0).await;
    // Positions are microseconds.
    let older = "with moved as (
                     update changes set position = position - 600000000
                     where position in (select position from webhook_retries)
                 )
                 update webhook_retries set position = position - 600000000";
    shop.database.run(older).await;
    board.expect("WebhookLate", async || {}).await;
    shop.pet(&service).await;
    eventually(async || shop.database.number(retries).await > 1).await;
    let older =
        "update webhook_retries set created_at = now() - interval '25 hours', next_at = now()";
    board
        .expect("WebhookParked", async || shop.database.run(older).await)
        .await;
    service.stop().await;
}

/// A full disk behind stderr, backups that have stopped, a collector and an issuer that are down, and few open files.
async fn surroundings(board: &mut Board) {
    let shop = Shop::new().await;
    let down = format!("http://{}", free_address());
    let issuer = format!(
        "[[auth.issuers]]\nissuer = \"{down}\"\naudience = \"pets.test\"\nalgorithms = [\"RS256\"]\n\
         jwks_url = \"{down}/keys\"\n"
    );
    shop.home.write("issuer.toml", &issuer);
    shop.home.run(&["backup", "a.tar"]).await.is(0);
    let older = "update last_backup set at = at - interval '49 hours'";
    shop.database.run(older).await;
    let script = "ulimit -n 128; exec \"$0\" \"$@\"";
    let mut command = shop
        .home
        .in_shell(script, ["serve", "--config", "issuer.toml"]);
    command.env("PET_INVENTORY__TELEMETRY__OTLP_ENDPOINT", &down);
    let full = fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("/dev/full");
    let service = Service::start_with_log(&shop.home, command, full.into()).await;
    board.prometheus.scrape(&[service.operations]);
    let get = async || {
        service
            .request(Method::GET, "/pet/1", &shop.key)
            .is(404)
            .await;
    };
    for alert in ["LogLinesDropped", "TracesNotSent"] {
        board.expect(alert, get).await;
    }
    // Keys are fetched for a token, once within 30 s.
    let claims = json!({
        "iss": down, "aud": "pets.test", "sub": "ada", "iat": now(), "exp": now() + 600,
        "scope": "read:pets",
    });
    let token = Signer::rsa().token(&claims);
    let get = async || {
        let url = format!("http://{}/api/v3/pet/1", service.address);
        let get = client().get(url).bearer_auth(&token).send().await;
        assert_eq!(get.expect("a response").status(), 503);
    };
    board.expect("IssuerSilent", get).await;
    let mut clients = Vec::new();
    let connect = async || clients.extend(TcpStream::connect(service.address).await);
    board.expect("ConnectionsRunOut", connect).await;
    board.expect("BackupOld", async || {}).await;
    drop(clients);
    service.stop().await;
}

async fn restarts_and_the_end(board: &mut Board) {
    let shop = Shop::new().await;
    let operations: SocketAddr = free_address();
    board.prometheus.scrape(&[operations]);
    let listen = operations.to_string();
    let listen = [("PET_INVENTORY__OPERATIONS__LISTEN", &*listen)];
    let restart = async || {
        let service = shop.serve(&listen).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        service.stop().await;
    };
    board.expect("Restarting", restart).await;
    board.expect("Down", async || {}).await;
    board.prometheus.scrape(&[]);
    board.expect("Gone", async || {}).await;
}
