//! Measures the rows of the HTTP benchmark.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    time::Instant,
};

use crate::{
    Options, callers,
    data::{Database, Postgres},
    images,
    load::{Load, RequestTemplate, pgbench},
    processes,
    servers::{Kind, Server},
    table::{self, Round, ServiceRounds, median},
};

/// The running service, its comparison variants and their database.
pub struct Bench<'a> {
    pub options: &'a Options,
    postgres: &'a Postgres,
    pub database: &'a Database,
    pub service: Server,
    /// Earlier build of the service.
    pub before: Option<Server>,
    naive: Server,
    fixed: Server,
    /// Keys of unlimited callers.
    pub keys: Vec<String>,
    /// Key of a caller on plan Free.
    limited: Vec<String>,
    /// Address of the service's metrics.
    pub operations: String,
}

const JSON: &str = r#"["content-type"] = "application/json""#;
const NEW_PET: &str = r#"{"name":"Rex","category":{"id":1,"name":"Dogs"},"photoUrls":["https://example.com/rex.jpg"],"tags":[{"id":1,"name":"friendly"},{"id":2,"name":"young"}],"status":"available"}"#;

impl Bench<'_> {
    pub fn folder(&self) -> &Path {
        self.postgres.folder()
    }

    pub fn get(&self, name: &str, path: &str, keys: &[String], headers: &str) -> Load {
        let template = RequestTemplate {
            method: "GET",
            path,
            pets: self.database.pets,
            keys,
            headers,
            body: "",
        };
        Load::new(self.folder(), name, &template)
    }

    fn post(&self) -> Load {
        let template = RequestTemplate {
            method: "POST",
            path: "/api/v3/pet",
            pets: 1,
            keys: &self.keys,
            headers: JSON,
            body: NEW_PET,
        };
        Load::new(self.folder(), "post", &template)
    }

    /// Runs a load once and measures the CPU time and the memory that it takes.
    pub async fn round(
        &self,
        server: &Server,
        load: &Load,
        connections: u32,
        seconds: u32,
    ) -> Round {
        measure(self.postgres, server, load, connections, seconds).await
    }

    /// Runs a load once on the earlier build, if there is one, and then on the service.
    pub async fn service_round(&self, load: &Load, connections: u32, rounds: &mut ServiceRounds) {
        let servers = (self.before.as_ref(), &self.service);
        measure_service(self, servers, load, connections, rounds).await;
    }
}

async fn measure_service(
    bench: &Bench<'_>,
    (before, service): (Option<&Server>, &Server),
    load: &Load,
    connections: u32,
    rounds: &mut ServiceRounds,
) {
    let seconds = bench.options.seconds();
    if let Some(before) = before {
        let round = bench.round(before, load, connections, seconds).await;
        rounds.before.push(round);
    }
    let round = bench.round(service, load, connections, seconds).await;
    rounds.service.push(round);
}

async fn measure(
    postgres: &Postgres,
    server: &Server,
    load: &Load,
    connections: u32,
    seconds: u32,
) -> Round {
    let postmaster = postgres.postmaster();
    let before = (
        processes::cpu(server.pid),
        processes::postgres_cpu(postmaster),
    );
    let run = load.run(&server.address, connections, seconds).await;
    let after = (
        processes::cpu(server.pid),
        processes::postgres_cpu(postmaster),
    );
    let each = 1e6 / run.requests.max(1.0);
    Round {
        run,
        server: (after.0 - before.0) * each,
        postgres: (after.1 - before.1) * each,
        memory: processes::memory(server.pid).0,
    }
}

/// Measures and prints all selected rows.
pub async fn all(options: &Options) {
    let postgres = Postgres::start().await;
    println!(
        "{} pets, {} rounds of {} s, medians",
        options.pets,
        options.rounds(),
        options.seconds()
    );
    let database = postgres.database("bench", options.pets).await;
    let keys = database.callers("bench", "enterprise", 8).await;
    let limited = database.callers("limited", "free", 1).await;
    let folder = postgres.folder();
    let images = format!("file://{}", folder.join("images").display());
    let operations = free_address();
    let settings = [
        ("PET_INVENTORY__IMAGES__URL", images.as_str()),
        // So high that a wrong key always gets 401, never 429.
        (
            "PET_INVENTORY__LIMITS__FAILED_AUTHENTICATION_PER_MINUTE",
            "4000000000",
        ),
        // Admits all requests of a Pro caller.
        ("PET_INVENTORY__PLANS__PRO__PER_MINUTE", "1000000000"),
        ("PET_INVENTORY__PLANS__PRO__PER_DAY", "4000000000"),
        ("PET_INVENTORY__OPERATIONS__LISTEN", &operations),
    ];
    let before = match &options.before {
        Some(program) => {
            Some(Server::service(program, &database.url, folder, &settings[..4]).await)
        }
        None => None,
    };
    let bench = Bench {
        before,
        operations: operations.clone(),
        service: Server::service(&options.service, &database.url, folder, &settings).await,
        naive: Server::other(Kind::Naive, &database.url, folder, &keys).await,
        fixed: Server::other(Kind::Static, &database.url, folder, &keys).await,
        options,
        postgres: &postgres,
        database: &database,
        keys,
        limited,
    };
    table::header();
    if options.wants("get") {
        gets(&bench).await;
    }
    if options.wants("limited") {
        callers::limited(&bench).await;
    }
    if options.wants("occasional") {
        callers::occasional(&bench).await;
    }
    if options.wants("refuse") {
        refusals(&bench).await;
    }
    if options.wants("post") {
        posts(&bench).await;
    }
    if options.wants("status") {
        whole_find(&bench).await;
    }
    if options.wants("tags") {
        tags(&bench).await;
    }
    // Last: the disk stays busy with the uploads for a while.
    if options.wants("images") {
        images::rows(&bench).await;
    }
}

/// Returns a free address of this machine. The port is not reserved.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}

async fn gets(bench: &Bench<'_>) {
    let load = bench.get("get", "/api/v3/pet/{n}", &bench.keys, "");
    let script = bench.folder().join("get.sql");
    let select =
        "select id, version, status, name, category, photo_urls, tags from pets where id = :id;";
    std::fs::write(
        &script,
        format!("\\set id random(1, {})\n{select}\n", bench.database.pets),
    )
    .expect("written");
    for server in [&bench.naive, &bench.fixed, &bench.service] {
        bench.round(server, &load, 64, 1).await;
    }
    for connections in [1, 16, 64, 256] {
        let (mut naive, mut fixed, mut plain) = (vec![], vec![], vec![]);
        let mut service = ServiceRounds::default();
        let seconds = bench.options.seconds();
        for _ in 0..bench.options.rounds() {
            naive.push(bench.round(&bench.naive, &load, connections, seconds).await);
            fixed.push(bench.round(&bench.fixed, &load, connections, seconds).await);
            bench.service_round(&load, connections, &mut service).await;
            if connections == 64 {
                let run = pgbench(&bench.postgres.socket(), "bench", &script, 64, seconds).await;
                plain.push(Round {
                    run,
                    ..Round::default()
                });
            }
        }
        let row = format!("GET /pet/{{id}}, {connections} connections");
        let of_naive = table::line(&row, "naive", &naive, "");
        let of_fixed = table::line("", "static", &fixed, "");
        let rate = service.rate();
        let mut ratio = format!(
            "{:.2} naive, {:.2} static",
            rate / of_naive,
            rate / of_fixed
        );
        if !plain.is_empty() {
            let of_plain = table::line("", "pgbench", &plain, "");
            ratio = format!("{ratio}, {:.2} pgbench", rate / of_plain);
        }
        service.lines("", &ratio);
    }
}

async fn posts(bench: &Bench<'_>) {
    let load = bench.post();
    for connections in [1, 64, 256] {
        let (mut naive, mut service) = (vec![], ServiceRounds::default());
        let seconds = bench.options.seconds();
        for _ in 0..bench.options.rounds() {
            naive.push(bench.round(&bench.naive, &load, connections, seconds).await);
            bench.service_round(&load, connections, &mut service).await;
        }
        let refused: f64 = service.service.iter().map(|round| round.run.refused).sum();
        assert!(refused < 1.0, "{refused} POSTs were refused");
        let row = format!("POST /pet, {connections} connections");
        let of_naive = table::line(&row, "naive", &naive, "");
        service.lines("", &format!("{:.2} naive", service.rate() / of_naive));
    }
    bench.database.clean().await;
}

/// Returns an HTTP client. reqwest requires a TLS provider, although no request here uses TLS.
pub fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]);
    client.build().expect("a client")
}

/// Measures responses that need no database: 429, 401 and 304.
async fn refusals(bench: &Bench<'_>) {
    let fixed = bench.get("static", "/api/v3/pet/{n}", &bench.keys, "");
    let client = client();
    let url = format!("http://{}/api/v3/pet/1", bench.service.address);
    let response = client
        .get(url)
        .header("api_key", &bench.keys[0])
        .send()
        .await;
    let response = response.expect("a response");
    let etag = response.headers()["etag"].to_str().expect("text");
    let etag = format!("[\"if-none-match\"] = '{etag}'");
    let mut unknown = bench.keys[0].clone();
    unknown.replace_range(
        5..6,
        if unknown.as_bytes()[5] == b'x' {
            "y"
        } else {
            "x"
        },
    );
    let loads = [
        (
            "429, over the limit",
            bench.get("429", "/api/v3/pet/1", &bench.limited, ""),
        ),
        (
            "401, a wrong key",
            bench.get("401", "/api/v3/pet/1", &[unknown], ""),
        ),
        (
            "304, If-None-Match",
            bench.get("304", "/api/v3/pet/1", &bench.keys, &etag),
        ),
    ];
    for (row, load) in loads {
        let (mut of_fixed, mut service) = (vec![], ServiceRounds::default());
        let seconds = bench.options.seconds();
        bench.round(&bench.service, &load, 64, 1).await;
        for _ in 0..bench.options.rounds() {
            of_fixed.push(bench.round(&bench.fixed, &fixed, 64, seconds).await);
            bench.service_round(&load, 64, &mut service).await;
        }
        let of_fixed = table::line(row, "static", &of_fixed, "");
        service.lines("", &format!("{:.2} static", service.rate() / of_fixed));
    }
}

/// Measures a find of all pets in one response.
async fn whole_find(bench: &Bench<'_>) {
    let rows = f64::from(bench.database.pets);
    let (mut copies, mut finds, mut before) = (vec![], vec![], vec![]);
    for _ in 0..bench.options.rounds().max(3) {
        copies.push(rows / copy(bench).await);
        finds.push(find_all(&bench.service, &bench.keys[0]));
        before.extend(
            bench
                .before
                .iter()
                .map(|server| find_all(server, &bench.keys[0])),
        );
    }
    let median = |values: &[Find], of: fn(&Find) -> f64| {
        let mut values: Vec<f64> = values.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    copies.sort_by(f64::total_cmp);
    let (by_psql, seconds) = (
        copies[copies.len() / 2],
        median(&finds, |find| find.seconds),
    );
    println!(
        "findByStatus, all {rows:.0}: {:.0} rows/s; psql \\copy {by_psql:.0} rows/s; ratio {:.2}; \
         first byte {:.1} ms; RSS +{:.1} MB",
        rows / seconds,
        rows / seconds / by_psql,
        median(&finds, |find| find.first_byte),
        median(&finds, |find| find.growth),
    );
    if !before.is_empty() {
        let of_before = median(&before, |find| find.seconds) / seconds;
        println!("service {of_before:.2} of before");
    }
}

/// Result of one find of all pets.
struct Find {
    seconds: f64,
    /// Milliseconds until the first byte.
    first_byte: f64,
    /// Growth of the server's peak memory in MB.
    growth: f64,
}

/// Finds all pets with a minimal client that discards what it reads, as psql does by writing to `/dev/null`.
fn find_all(server: &Server, key: &str) -> Find {
    /// Number of bytes kept from the end of the response.
    const KEPT: usize = 32;
    let request = format!(
        "GET /api/v3/pet/findByStatus?status=available,pending,sold HTTP/1.1\r\nHost: a\r\n\
         Connection: close\r\napi_key: {key}\r\n\r\n"
    );
    processes::forget_peak(server.pid);
    let memory = processes::memory(server.pid).0;
    let begun = Instant::now();
    let mut stream = TcpStream::connect(&server.address).expect("a connection");
    stream.write_all(request.as_bytes()).expect("sent");
    let (mut piece, mut end) = (vec![0; 256 << 10], Vec::new());
    let mut first_byte = 0.0;
    loop {
        let length = stream.read(&mut piece).expect("a whole response");
        if length == 0 {
            break;
        }
        if end.is_empty() {
            first_byte = begun.elapsed().as_secs_f64() * 1e3;
            assert!(piece.starts_with(b"HTTP/1.1 200"), "not found");
        }
        end.extend_from_slice(&piece[length.saturating_sub(KEPT)..length]);
        end.drain(..end.len().saturating_sub(KEPT));
    }
    assert!(end.ends_with(b"]\r\n0\r\n\r\n"), "cut off in the middle");
    Find {
        seconds: begun.elapsed().as_secs_f64(),
        first_byte,
        growth: processes::memory(server.pid).1 - memory,
    }
}

/// Returns the seconds that psql takes for the same columns.
async fn copy(bench: &Bench<'_>) -> f64 {
    let columns = "id, status, name, category, photo_urls, tags";
    let begun = Instant::now();
    let status = tokio::process::Command::new("psql")
        .args(["-q", "-U", "postgres", "-p", "5432", "-d", "bench", "-h"])
        .arg(bench.postgres.socket())
        .arg("-c")
        .arg(format!(
            "\\copy (select {columns} from pets order by id) to '/dev/null'"
        ))
        .status()
        .await
        .expect("psql");
    assert!(status.success());
    begun.elapsed().as_secs_f64()
}

/// Measures a find with 20 matches among 1,000,000 pets.
async fn tags(bench: &Bench<'_>) {
    let many = if bench.options.quick {
        bench.options.pets
    } else {
        1_000_000
    };
    let database = bench.postgres.database("many", many).await;
    let keys = database.callers("bench", "enterprise", 8).await;
    let folder = bench.folder();
    let server = Server::service(&bench.options.service, &database.url, folder, &[]).await;
    let before = match &bench.options.before {
        Some(program) => Some(Server::service(program, &database.url, folder, &[]).await),
        None => None,
    };
    let load = |name: &str, path: &str, last: u32| {
        let template = RequestTemplate {
            method: "GET",
            path,
            pets: last,
            keys: &keys,
            headers: "",
            body: "",
        };
        Load::new(folder, name, &template)
    };
    let get = load("many", "/api/v3/pet/{n}", many);
    let find = load(
        "tags",
        "/api/v3/pet/findByTags?tags=litter-{n}",
        many / 20 - 1,
    );
    for connections in [1, 16] {
        let (mut gets, mut finds) = (ServiceRounds::default(), ServiceRounds::default());
        bench.round(&server, &find, connections, 1).await;
        for _ in 0..bench.options.rounds() {
            for (load, rounds) in [(&get, &mut gets), (&find, &mut finds)] {
                let servers = (before.as_ref(), &server);
                measure_service(bench, servers, load, connections, rounds).await;
            }
        }
        let p50 = |rounds: &ServiceRounds| median(&rounds.service, |round| round.run.p50);
        let ratio = format!("p50 {:.2} of GET", p50(&finds) / p50(&gets));
        gets.lines(
            &format!("GET of {many} pets, {connections} connections"),
            "",
        );
        finds.lines("findByTags, 20 matches", &ratio);
    }
}

/// Measures GET and POST with more pets, then with more callers.
///
/// GET of the naive variant shows how much of a loss is PostgreSQL's: its memory does not hold all pets of the largest
/// size.
pub async fn growth(options: &Options) {
    struct Size {
        name: String,
        callers: usize,
        service: Server,
        naive: Option<Server>,
        get: Load,
        post: Load,
        gets: Vec<Round>,
        posts: Vec<Round>,
        of_naive: Vec<Round>,
    }
    let postgres = Postgres::start().await;
    let folder = postgres.folder();
    table::header();
    let sizes = [
        (1_000, 10),
        (100_000, 10),
        (1_000_000, 10),
        (100_000, 1_000),
        (100_000, 100_000),
    ];
    let mut all = Vec::new();
    for (pets, callers) in sizes {
        let database = postgres.database(&format!("d{pets}_{callers}"), pets).await;
        let keys = database.callers("bench", "enterprise", callers).await;
        let load = |kind: &str, method, path, headers, body| {
            let template = RequestTemplate {
                method,
                path,
                pets,
                keys: &keys,
                headers,
                body,
            };
            Load::new(folder, &format!("{kind}_{pets}_{callers}"), &template)
        };
        let naive = match callers {
            10 => Some(Server::other(Kind::Naive, &database.url, folder, &keys).await),
            _ => None,
        };
        all.push(Size {
            name: format!("{pets} pets, {callers} callers"),
            callers,
            service: Server::service(&options.service, &database.url, folder, &[]).await,
            naive,
            get: load("get", "GET", "/api/v3/pet/{n}", "", ""),
            post: load("post", "POST", "/api/v3/pet", JSON, NEW_PET),
            gets: vec![],
            posts: vec![],
            of_naive: vec![],
        });
    }
    // In turns, so that all sizes see the same load from other users of the machine.
    let seconds = options.seconds();
    for round in 0..=options.rounds() {
        for size in &mut all {
            if let Some(naive) = &size.naive {
                let one = measure(&postgres, naive, &size.get, 64, seconds).await;
                size.of_naive.push(one);
            }
            let get = measure(&postgres, &size.service, &size.get, 64, seconds).await;
            let post = measure(&postgres, &size.service, &size.post, 64, seconds).await;
            size.gets.push(get);
            size.posts.push(post);
            // The first round is a warm-up: it looks up each key once.
            if round == 0 {
                let all_keys = seconds + (size.callers / 5_000) as u32;
                measure(&postgres, &size.service, &size.get, 64, all_keys).await;
                for rounds in [&mut size.of_naive, &mut size.gets, &mut size.posts] {
                    rounds.clear();
                }
            }
        }
    }
    let (mut first_naive, mut first_get, mut first_post) = (None, None, None);
    let line = |row: &str, variant, rounds: &[Round], first: &mut Option<f64>| {
        let rate = median(rounds, |round| round.run.rate);
        let ratio = rate / *first.get_or_insert(rate);
        table::line(row, variant, rounds, &format!("{ratio:.2} of the first"));
    };
    for size in &all {
        let (get, post) = (
            format!("GET, {}", size.name),
            format!("POST, {}", size.name),
        );
        if size.naive.is_some() {
            line(&get, "naive", &size.of_naive, &mut first_naive);
        }
        line(&get, "service", &size.gets, &mut first_get);
        line(&post, "service", &size.posts, &mut first_post);
    }
}

/// Measures GET with and without 10,000 idle connections.
pub async fn idle(options: &Options) {
    const IDLE: usize = 10_000;
    let postgres = Postgres::start().await;
    let database = postgres.database("bench", options.pets).await;
    let keys = database.callers("bench", "enterprise", 8).await;
    let settings = [("PET_INVENTORY__SERVER__MAX_CONNECTIONS", "20000")];
    let server = Server::service(
        &options.service,
        &database.url,
        postgres.folder(),
        &settings,
    )
    .await;
    let template = RequestTemplate {
        method: "GET",
        path: "/api/v3/pet/{n}",
        pets: options.pets,
        keys: &keys,
        headers: "",
        body: "",
    };
    let load = Load::new(postgres.folder(), "get", &template);
    let seconds = options.seconds();
    let rounds = async || {
        let mut rounds = vec![];
        for _ in 0..options.rounds() {
            rounds.push(measure(&postgres, &server, &load, 64, seconds).await);
        }
        rounds
    };
    measure(&postgres, &server, &load, 64, 1).await;
    table::header();
    let alone = rounds().await;
    table::line("GET, 64 connections", "service", &alone, "");
    let connections = idle_connections(&server.address, &keys[0], IDLE).await;
    let beside = rounds().await;
    let p99 = |rounds: &[Round]| median(rounds, |round| round.run.p99);
    let ratio = format!("p99 {:.2} of alone", p99(&beside) / p99(&alone));
    table::line(
        &format!("beside {IDLE} idle ones"),
        "service",
        &beside,
        &ratio,
    );
    drop(connections);
}

/// Opens connections that send one request each and then stay idle.
async fn idle_connections(address: &str, key: &str, count: usize) -> Vec<tokio::net::TcpStream> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let files = nix::sys::resource::Resource::RLIMIT_NOFILE;
    let (_, most) = nix::sys::resource::getrlimit(files).expect("a limit");
    nix::sys::resource::setrlimit(files, most, most).expect("more files");
    let request = format!("GET /api/v3/limits HTTP/1.1\r\nHost: a\r\napi_key: {key}\r\n\r\n");
    let mut connections = Vec::new();
    for _ in 0..count {
        let mut stream = tokio::net::TcpStream::connect(address)
            .await
            .expect("a connection");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut response = [0; 4096];
        let length = stream.read(&mut response).await.expect("a response");
        assert!(
            response.starts_with(b"HTTP/1.1 200"),
            "{:?}",
            String::from_utf8_lossy(&response[..length])
        );
        connections.push(stream);
    }
    connections
}
