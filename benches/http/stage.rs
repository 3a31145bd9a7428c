//! Servers on one database, and the measurement of rows.
//!
//! Invariant: the variants of a row run in turns, so that all see the same load from other users of the machine.

use std::path::Path;

use crate::{
    Options,
    data::{Database, PETS, Postgres},
    load::{Load, Numbers, Template},
    pgbench::{self, Script},
    processes,
    servers::{Kind, Server},
    table::{self, Round, ServiceRounds, median},
};

/// The running service, what it is compared with, and their database.
pub struct Stage<'a> {
    pub options: &'a Options,
    pub postgres: &'a Postgres,
    pub database: &'a Database,
    /// Number of pets between rows.
    pub pets: u32,
    /// Keys of Enterprise callers.
    pub keys: Vec<String>,
    pub service: Server,
    /// Earlier build of the service.
    pub before: Option<Server>,
    others: Vec<(Kind, Server)>,
}

/// How to start the servers of a stage.
#[derive(Default)]
pub struct Setup<'a> {
    /// Environment of the service.
    pub settings: &'a [(&'a str, &'a str)],
    /// Configuration file of the service.
    pub config: &'a str,
    /// Address of the metrics; a free port if empty.
    pub operations: &'a str,
    /// Variants to compare with.
    pub others: &'a [Kind],
    /// TCP port of a proxy to PostgreSQL.
    pub proxy: Option<u16>,
}

impl<'a> Stage<'a> {
    /// Starts the servers on a database with `pets` pets and 8 callers, or with these keys of callers.
    pub async fn start(
        options: &'a Options,
        postgres: &'a Postgres,
        (database, pets): (&'a Database, u32),
        keys: Vec<String>,
        setup: Setup<'_>,
    ) -> Self {
        let Setup { config, proxy, .. } = setup;
        let folder = postgres.folder();
        let mut settings = setup.settings.to_vec();
        // Each database has its own image store.
        let images = ["images", "images_before"];
        let [images, images_before] =
            images.map(|name| format!("file://{}", folder.join(name).display()));
        settings.push(("PET_INVENTORY__IMAGES__URL", &images_before));
        let before = match (&options.before, database.url_before(proxy)) {
            (Some(program), Some(url)) => {
                Some(Server::service(program, &url, folder, &settings, config).await)
            }
            _ => None,
        };
        settings.push(("PET_INVENTORY__IMAGES__URL", &images));
        if !setup.operations.is_empty() {
            settings.push(("PET_INVENTORY__OPERATIONS__LISTEN", setup.operations));
        }
        let url = database.url(proxy);
        let service = Server::service(&options.service, &url, folder, &settings, config).await;
        let mut others = Vec::new();
        for kind in setup.others {
            others.push((*kind, Server::other(*kind, &url, folder, &keys).await));
        }
        Self {
            options,
            postgres,
            database,
            pets,
            keys,
            service,
            before,
            others,
        }
    }

    pub fn folder(&self) -> &Path {
        self.postgres.folder()
    }

    /// Returns the addresses of the service and of an earlier build.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        let servers = [Some(&self.service), self.before.as_ref()];
        servers.into_iter().flatten().map(|server| &*server.address)
    }

    /// Returns another variant, which the setup of the stage has named.
    pub fn other(&self, kind: Kind) -> &Server {
        let other = self.others.iter().find(|(known, _)| *known == kind);
        other.map_or_else(|| panic!("{kind:?} is not running"), |(_, server)| server)
    }

    /// Returns a load of GET requests.
    pub fn get(&self, name: &str, path: &str, keys: &[String]) -> Load {
        Load::new(self.folder(), name, &Template::get(path, keys, self.pets))
    }

    /// Returns a pgbench script on the service's database.
    pub fn script(&self, name: &str, numbers: Numbers, statements: &str) -> Script {
        let database = (self.postgres.socket(), self.database.name());
        Script::new(self.folder(), database, name, numbers, statements)
    }

    /// Runs a load once and measures the CPU time and the memory that it takes.
    pub async fn round(
        &self,
        server: &Server,
        load: &Load,
        connections: u32,
        (seconds, first): (u32, u32),
    ) -> Round {
        let postmaster = self.postgres.postmaster();
        let times = || {
            (
                processes::cpu(server.pid),
                processes::postgres_cpu(postmaster),
            )
        };
        let before = times();
        let run = load.run(&server.address, connections, seconds, first).await;
        let after = times();
        let each = 1e6 / run.requests.max(1.0);
        Round {
            run,
            server: (after.0 - before.0) * each,
            postgres: (after.1 - before.1) * each,
            memory: processes::memory(server.pid).0,
        }
    }

    /// Runs a load once on the earlier build, if there is one, and then on the service.
    pub async fn service_round(&self, load: &Load, connections: u32, rounds: &mut ServiceRounds) {
        let row = Row::new(load, connections);
        self.prepared_round(&row, rounds).await;
    }

    async fn prepared_round(&self, row: &Row<'_>, rounds: &mut ServiceRounds) {
        if let Some(before) = &self.before {
            let load = row.load_before.unwrap_or(row.load);
            rounds.before.push(self.round_of(row, before, load).await);
        }
        let round = self.round_of(row, &self.service, row.load).await;
        rounds.service.push(round);
    }

    /// Prepares the rows that a load needs, and runs it once.
    async fn round_of(&self, row: &Row<'_>, server: &Server, load: &Load) -> Round {
        self.prepare(row).await;
        let time = (self.options.seconds(), self.pets + 1);
        self.round(server, load, row.connections, time).await
    }

    async fn prepare(&self, row: &Row<'_>) {
        for statement in row.prepare {
            let insert = PETS.replace(
                "(array['available', 'pending', 'sold'])[1 + i % 3]",
                "{status}",
            );
            let statement = statement
                .replace(
                    "{available pets}",
                    &insert.replace("{status}", "'available'"),
                )
                .replace("{pending pets}", &insert.replace("{status}", "'pending'"))
                .replace("{first}", &(self.pets + 1).to_string())
                .replace("{last}", &(self.pets + self.prepared(row)).to_string());
            self.database.run(&statement).await;
        }
    }

    /// Returns the number of prepared rows: more than a run uses.
    fn prepared(&self, row: &Row<'_>) -> u32 {
        let rate = if row.connections == 1 { 6_000 } else { 25_000 };
        rate * pgbench::duration(self.options.seconds(), row.connections)
    }

    /// Measures a row on the service, on an earlier build and on opponents. Prints the lines and stores the ratios as
    /// `{name}@{connections}/{opponent}`.
    pub async fn compare(&self, name: &str, row: &Row<'_>, opponents: &[Opponent<'_>]) {
        let mut service = ServiceRounds::default();
        let mut others: Vec<Vec<Round>> = opponents.iter().map(|_| Vec::new()).collect();
        for _ in 0..self.options.rounds() {
            for (opponent, rounds) in opponents.iter().zip(&mut others) {
                rounds.push(self.opponent_round(row, opponent).await);
            }
            self.prepared_round(row, &mut service).await;
        }
        let cell = format!("{name}@{}", row.connections);
        let mut title = cell.clone();
        let mut ratios = Vec::new();
        for (opponent, rounds) in opponents.iter().zip(&others) {
            let ratio = service.rate() / table::line(&title, opponent.name, rounds, "");
            title.clear();
            table::record(format!("{cell}/{}", opponent.name), ratio);
            ratios.push(format!("{ratio:.2} {}", opponent.name));
        }
        if self.before.is_some() {
            table::record(format!("{cell}/before"), service.of_before());
        }
        service.lines(&title, &ratios.join(", "));
    }

    async fn opponent_round(&self, row: &Row<'_>, opponent: &Opponent<'_>) -> Round {
        let (seconds, first) = (self.options.seconds(), self.pets + 1);
        let run = match opponent.work {
            Work::Http(server, load) => return self.round_of(row, server, load).await,
            Work::Address(address, load) => load.run(address, row.connections, seconds, 1).await,
            Work::Pgbench(script) => {
                self.prepare(row).await;
                let run = script.run(row.connections, seconds, first).await;
                let is_enough = run.requests < f64::from(self.prepared(row));
                assert!(is_enough || row.prepare.is_empty(), "too few prepared rows");
                run
            }
        };
        Round {
            run,
            ..Round::default()
        }
    }
}

/// Load of a row.
pub struct Row<'a> {
    pub load: &'a Load,
    /// Load of the earlier build, if it differs.
    pub load_before: Option<&'a Load>,
    pub connections: u32,
    /// Statements before each run. `{first}` and `{last}` are replaced by the range of numbers that the run may use.
    pub prepare: &'a [&'a str],
}

impl<'a> Row<'a> {
    pub fn new(load: &'a Load, connections: u32) -> Self {
        Self {
            load,
            load_before: None,
            connections,
            prepare: &[],
        }
    }
}

/// What a row of the service is compared with.
pub struct Opponent<'a> {
    pub name: &'static str,
    pub work: Work<'a>,
}

pub enum Work<'a> {
    Http(&'a Server, &'a Load),
    /// A server whose CPU time is not measured.
    Address(&'a str, &'a Load),
    Pgbench(&'a Script),
}

/// Load of the service, compared with another load of the service.
pub struct Variant<'a> {
    pub name: String,
    pub stage: &'a Stage<'a>,
    pub load: Load,
    pub connections: u32,
}

/// Measures several loads of the service in turns. Prints the lines and stores the ratios to the first one as
/// `{row}: {variant}`: of the rates or, with `metric` "p50", of the medians of the latency.
pub async fn relate(row: &str, metric: &str, variants: &[Variant<'_>]) {
    let mut all: Vec<ServiceRounds> = variants.iter().map(|_| ServiceRounds::default()).collect();
    // Looks up each credential once.
    for Variant { stage, load, .. } in variants {
        let warm_up = (1, 1);
        stage.round(&stage.service, load, 16, warm_up).await;
        if let Some(before) = &stage.before {
            stage.round(before, load, 16, warm_up).await;
        }
    }
    for _ in 0..variants[0].stage.options.rounds() {
        for (variant, rounds) in variants.iter().zip(&mut all) {
            let Variant { stage, load, .. } = variant;
            stage.service_round(load, variant.connections, rounds).await;
        }
    }
    let value = |rounds: &ServiceRounds| {
        median(&rounds.service, |round| match metric {
            "p50" => round.run.p50,
            _ => round.run.rate,
        })
    };
    let base = value(&all[0]);
    for (place, (variant, rounds)) in variants.iter().zip(&all).enumerate() {
        let (title, ratio) = match place {
            0 => (row, String::new()),
            _ => {
                let ratio = value(rounds) / base;
                table::record(format!("{row}: {}", variant.name), ratio);
                ("", format!("{metric} {ratio:.2} of {}", variants[0].name))
            }
        };
        rounds.named_lines(title, &variant.name, &ratio);
    }
}
