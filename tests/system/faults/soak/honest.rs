//! Honest clients: callers on each plan, the owner of an account, and a probe. Every response is to be a success.

use std::{future::ready, sync::atomic::Ordering};

use test_support::*;
use tokio::time::interval;
use tokio_util::task::TaskTracker;

use crate::stage::*;

/// Username and password of an account.
pub const OWNER: &str = "ada";

/// Operation that takes about as long as hashing a password.
pub const LOGIN: &str = "login";

/// Number of clients on the plan Enterprise.
const CLIENTS: u8 = 15;

/// Number of pets that are read.
const PETS: usize = 50;

/// Latencies and failed requests, with their operations.
#[derive(Default)]
pub struct Results {
    pub latencies: BTreeMap<&'static str, Vec<Duration>>,
    pub failures: Vec<(&'static str, TimedResponse)>,
}

/// Honest clients, each with an address of its own: 127.0.1.1 and so on.
pub struct Honest {
    /// On the plan Enterprise.
    enterprise: Vec<Arc<Target>>,
    /// Four on the plan Pro, four on Free.
    limited: Vec<(Duration, Arc<Target>)>,
    owner: Arc<Target>,
    pets: Vec<i64>,
    image: String,
    results: Mutex<Results>,
    /// Pets with an acknowledged deletion.
    pub deleted: Mutex<Vec<i64>>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Honest {
    /// Adds the callers, the pets that they read with an image, and the account.
    pub async fn prepare(stage: &Stage) -> Arc<Self> {
        let caller = async |plan: &str, last: u8| {
            let name = format!("{plan}-{last}");
            let key = stage.cluster.make_key(&name).await;
            let set = format!("update callers set plan = '{plan}' where name = '{name}'");
            stage.cluster.run(&set).await;
            stage.target.of_client([127, 0, 1, last], &key.secret)
        };
        let mut clients = Vec::new();
        for last in 0..CLIENTS {
            clients.push(caller("enterprise", 100 + last).await);
        }
        let enterprise = &clients[0];
        let mut limited = Vec::new();
        for last in 0..4 {
            // Somewhat less than 600 and 60 requests per minute.
            let pro = caller("pro", 10 + last).await;
            limited.push((Duration::from_millis(120), pro));
            let free = caller("free", 20 + last).await;
            limited.push((Duration::from_millis(1_200), free));
        }
        let mut pets = Vec::new();
        for _ in 0..PETS {
            let pet = json!({"name": "Rex", "tags": [{"name": "friendly"}]});
            let added = enterprise.request(Method::POST, "/pet").json(&pet);
            pets.push(added.is(201).await.id());
        }
        let path = format!("/pet/{}/uploadImage", pets[0]);
        let upload = enterprise.request(Method::POST, &path).body(png(200, 100));
        let image = upload.is(200).await.json();
        let image = image["imageId"].as_str().expect("an id");
        let account = json!({"username": OWNER, "password": PASSWORD});
        let sign_up = enterprise.anonymous(Method::POST, "/user").json(&account);
        sign_up.is(201).await;
        Arc::new(Self {
            owner: stage.target.of_client([127, 0, 1, 30], ""),
            image: format!("/pet/{}/images/{image}", pets[0]),
            enterprise: clients,
            limited,
            pets,
            results: Mutex::default(),
            deleted: Mutex::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// Returns a client on the plan Enterprise.
    pub fn enterprise(&self, number: usize) -> &Arc<Target> {
        &self.enterprise[number % self.enterprise.len()]
    }

    /// Builds a request of the mix, with the name of its operation.
    fn request(&self, target: &Target, number: usize) -> (&'static str, Call) {
        let get = |path: &str| target.request(Method::GET, path);
        let pet = self.pets[number / 16 % PETS];
        match number % 16 {
            0 if number.is_multiple_of(160) => {
                ("long find", get("/pet/findByTags?tags=friendly&limit=200"))
            }
            0..8 => ("GET pet", get(&format!("/pet/{pet}"))),
            8 => (
                "find by tags",
                get("/pet/findByTags?tags=friendly&limit=20"),
            ),
            9 => (
                "find by status",
                get("/pet/findByStatus?status=available&limit=20"),
            ),
            10 => ("inventory", get("/store/inventory")),
            11 | 12 => ("image", target.anonymous(Method::GET, &self.image)),
            13 => {
                let path = format!("{}?width=64", self.image);
                ("rendering", target.anonymous(Method::GET, &path))
            }
            14 => {
                let change = json!({"name": format!("Rex {number}")});
                let path = format!("/pet/{pet}");
                (
                    "PATCH pet",
                    target.request(Method::PATCH, &path).json(&change),
                )
            }
            _ => {
                let post = target
                    .request(Method::POST, "/pet")
                    .json(&json!({"name": "new"}));
                ("POST pet", post.header("idempotency-key", number))
            }
        }
    }

    /// Returns how many requests of the mix per second the machine completes for 16 clients.
    pub async fn capacity(&self, during: Duration) -> u32 {
        let (started, next) = (Instant::now(), AtomicUsize::new(0));
        let client = async || {
            while started.elapsed() < during {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let response =
                    TimedResponse::of(self.request(self.enterprise(number), number).1).await;
                assert!(response.is_success(), "{response:?}");
            }
        };
        join_all((0..16).map(|_| client())).await;
        let milliseconds = usize::try_from(started.elapsed().as_millis()).expect("a short time");
        u32::try_from(next.into_inner() * 1_000 / milliseconds).expect("a number")
    }

    /// Starts all clients: on the plan Enterprise `rate` requests of the mix per second, whether responses come or not.
    pub fn start(self: &Arc<Self>, stage: &Stage, rate: u32) {
        let this = Arc::clone(self);
        self.repeat(Duration::from_secs(1) / rate, move |number| {
            let (of_request, after_capacity) = (Arc::clone(&this), 10_000_000 + number);
            this.tasks.spawn(async move {
                let client = of_request.enterprise(number);
                let (what, request) = of_request.request(client, after_capacity);
                of_request.record(what, request).await;
            });
            ready(())
        });
        for (period, target) in &self.limited {
            let (this, target) = (Arc::clone(self), Arc::clone(target));
            self.repeat(*period, move |number| {
                let (this, target) = (Arc::clone(&this), Arc::clone(&target));
                async move {
                    let (what, request) = this.request(&target, number);
                    this.record(what, request).await;
                }
            });
        }
        let this = Arc::clone(self);
        self.repeat(Duration::from_millis(200), move |_| {
            Arc::clone(&this).delete()
        });
        let this = Arc::clone(self);
        self.repeat(Duration::from_secs(4), move |_| Arc::clone(&this).log_in());
        let (this, client) = (Arc::clone(self), client());
        let urls = [stage.service.operations, stage.target.address];
        let urls = urls.map(|address| format!("http://{address}/readyz"));
        self.repeat(Duration::from_millis(500), move |number| {
            let (this, probe) = (Arc::clone(&this), client.get(&urls[number % 2]).into());
            async move { drop(this.record("readyz", probe).await) }
        });
    }

    /// Calls `work` with the number of the call, every `period`, until the clients are stopped.
    fn repeat<F: Future<Output = ()> + Send + 'static>(
        &self,
        period: Duration,
        work: impl Fn(usize) -> F + Send + 'static,
    ) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let mut ticks = interval(period);
            for number in 0.. {
                ticks.tick().await;
                if stop.is_cancelled() {
                    return;
                }
                work(number).await;
            }
        });
    }

    /// Adds a pet and deletes it.
    async fn delete(self: Arc<Self>) {
        let client = self.enterprise(0);
        let pet = json!({"name": "short-lived"});
        let added = client.request(Method::POST, "/pet").json(&pet);
        let added = self.record("POST pet", added).await;
        if let Some(id) = added.body()["id"].as_i64() {
            let path = format!("/pet/{id}");
            let delete = client.request(Method::DELETE, &path);
            if self.record("DELETE pet", delete).await.is_success() {
                self.deleted.lock().expect("never poisoned").push(id);
            }
        }
    }

    /// Logs the owner of the account in, and reads the account.
    async fn log_in(self: Arc<Self>) {
        let pair = json!({"username": OWNER, "password": PASSWORD});
        let log_in = self
            .owner
            .anonymous(Method::POST, "/user/login")
            .json(&pair);
        let response = self.record(LOGIN, log_in).await;
        if let Some(token) = response.body().as_str() {
            let user = self.owner.anonymous(Method::GET, &format!("/user/{OWNER}"));
            self.record("GET user", user.bearer_auth(token)).await;
        }
    }

    /// Stops all clients.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Returns the results since the last call.
    pub fn take_results(&self) -> Results {
        std::mem::take(&mut self.results.lock().expect("never poisoned"))
    }

    async fn record(&self, what: &'static str, request: Call) -> TimedResponse {
        let response = TimedResponse::of(request).await;
        let mut results = self.results.lock().expect("never poisoned");
        let latencies = results.latencies.entry(what).or_default();
        latencies.push(response.latency);
        if !response.is_success() {
            results.failures.push((what, response.clone()));
        }
        response
    }
}
