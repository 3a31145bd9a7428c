//! The composition root: builds all parts in order, and runs them until shutdown.
//!
//! Building and running are separate, so that the addresses are known before the first request: tests bind port 0.

mod error;
mod gauges;
mod keys;
mod listen;

use std::{num::NonZeroUsize, sync::Arc, thread::available_parallelism};

use bytesize::ByteSize;
use secrecy::ExposeSecret;
use tokio::runtime::Handle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::listen::Inherited;
pub use self::{error::Error, keys::DEMO_KEYS};
use crate::{
    api::{
        self, HttpApi,
        idempotency::StoredBytes,
        layers::access_log,
        operations::Operations,
        state::{AppState, Links, Parts, Readiness, TokenLifetime},
    },
    auth::{Authenticator, jwks::Issuers, password::Passwords},
    blob_store::{BlobStore, OrphanedBlobs},
    config::{self, Config, DemoKeys, Pooler},
    db::{self, Database, DatabaseUrl},
    domain::{address::ListenAddress, clock::Clock},
    embedded_postgres::{Durability, EmbeddedPostgres, SearchPath},
    feed::Feed,
    images::renderings::Renderer,
    limits::{
        failed_authentication::FailedAuthenticationLimit,
        logins::Logins,
        open_files::OpenFiles,
        requests::RateLimits,
        resources::{BodyLimits, ConcurrencyLimits, Uploads},
    },
    maintenance::{self, Maintained, orphaned_blobs},
    server::{self, Admission, Hooks, Limits, Listener, RequestBody, Shutdown, Workers},
    telemetry::{self, Metrics},
    webhooks,
};

/// The service: built and bound, not yet serving.
pub struct App {
    api: (Listener, ListenAddress, Workers<HttpApi<RequestBody>>),
    operations: (Listener, ListenAddress, HttpApi<RequestBody>),
    limits: Limits,
    admission: Admission,
    max_operations: usize,
    state: AppState,
    metrics: Metrics,
    embedded_postgres: Option<EmbeddedPostgres>,
}

impl App {
    /// Builds all parts: starts the embedded PostgreSQL or waits for the configured one, migrates the schema, binds both
    /// listeners.
    pub async fn build(config: Config) -> Result<Self, Error> {
        Self::build_with(config, Clock::system(), api::operations()).await
    }

    /// Like [`App::build`], with the clock of the limits and of the credential cache, and with operations on the API's
    /// paths: `benches/http` measures the layers around operations that cost nothing.
    #[doc(hidden)]
    pub async fn build_with(
        config: Config,
        clock: Clock,
        operations: Operations,
    ) -> Result<Self, Error> {
        // First, so that no child process inherits them.
        let inherited = Inherited::take(&config.environment.sockets)?;
        inherited.check(&config)?;
        let files = OpenFiles::divide(&config)?;
        // Before the first metric is looked up.
        let metrics = telemetry::metrics()?;
        let (database, embedded_postgres) = open_database(&config).await?;
        let blobs = BlobStore::new(&config)?;
        if orphaned_blobs::is_lost(&database, &blobs).await? {
            return Err(Error::ImagesLost);
        }

        let (api, private) = inherited.listen(&config)?;
        let mut admitted = Vec::new();
        if let Some(key) = &config.environment.bootstrap_api_key {
            admitted.push(Box::pin(keys::bootstrap(&database, key.expose_secret())).await?);
        }
        let demo_keys = embedded_postgres.is_some() && has_demo_keys(&config, &api.1);
        if demo_keys {
            admitted.extend(Box::pin(keys::store_demo_keys(&database)).await?);
        }

        let limits = RateLimits::new(&config, database.clone(), clock.clone());
        let issuers =
            Issuers::new(config.auth.issuers, clock.clone()).map_err(Error::HttpClient)?;
        let links = Links::new(config.server.public_url.as_ref());
        let document = api::document(&links);
        let hashes_at_once = hashes_at_once(&config.users);
        let server = &config.server;
        let state = AppState::new(Parts {
            demo_keys: if demo_keys { &DEMO_KEYS } else { &[] },
            authenticator: Authenticator::new(database.clone(), admitted, issuers, clock.clone()),
            limits: Arc::new(limits),
            plans: config.plans,
            failed_authentication: FailedAuthenticationLimit::new(
                config.limits.failed_authentication_per_minute,
                clock.clone(),
            ),
            passwords: Passwords::new(hashes_at_once),
            logins: Logins::new(config.users.logins_per_minute, clock),
            sign_up: config.users.sign_up,
            session_lifetime: config.users.session_lifetime,
            max_sessions: config.users.max_sessions,
            trusted_proxies: config.limits.trusted_proxies.into(),
            cors_origins: config.server.cors_origins.clone(),
            concurrency: ConcurrencyLimits::new(server, &config.changes, files, hashes_at_once),
            anonymous_scopes: config.auth.anonymous_scopes,
            anonymous_plan: config.auth.anonymous_plan,
            access_details: config.telemetry.access_details,
            body_limits: BodyLimits::new(server.max_body_size.as_u64(), server.body_timeout),
            stored_bytes: StoredBytes::new(config.limits.idempotency_bytes_per_day.as_u64()),
            change_retention: config.changes.retention,
            allow_private_webhooks: config.webhooks.allow_private,
            webhook_sender: webhooks::Sender::new(&config.webhooks).map_err(Error::Webhooks)?,
            feed: Feed::default(),
            blobs,
            uploads: Uploads::new(&config.images, server.body_timeout),
            renderer: Renderer::new(config.images.rendering_memory.as_u64()),
            orphaned_blobs: OrphanedBlobs::default(),
            links,
            key_lifetime: config.auth.api_key_lifetime,
            token_lifetime: TokenLifetime(config.auth.access_token_lifetime),
            request_timeout: server.request_timeout,
            readiness: Readiness::default(),
            cancelled_requests: TaskTracker::new(),
            database,
        });
        let constants = api::constants(&document, &state);
        let constants = constants.map_err(|error| Error::Api(error.to_string()))?;
        let routers: Vec<_> = (0..files.workers)
            .map(|_| api::router(&operations, constants.clone(), state.for_worker()))
            .map(api::http_service)
            .collect();
        let hooks = Hooks {
            on_start: access_log::enable_batches,
            on_park: access_log::write_batch,
        };
        let workers = Workers::start(routers, hooks).map_err(Error::Workers)?;
        let render = gauges::render(metrics.clone(), state.clone());
        let operations_router = api::operations_router(state.clone(), render);
        Ok(Self {
            api: (api.0, api.1, workers),
            operations: (private.0, private.1, api::http_service(operations_router)),
            limits: connection_limits(&config.server),
            admission: Admission {
                max_connections: files.connections,
                max_per_address: config.server.max_connections_per_address,
                exempt: state.trusted_proxies.clone(),
            },
            max_operations: files.operations,
            state,
            metrics,
            embedded_postgres,
        })
    }

    /// Address of the API.
    pub const fn local_addr(&self) -> &ListenAddress {
        &self.api.1
    }

    /// Address of metrics and health.
    pub const fn operations_addr(&self) -> &ListenAddress {
        &self.operations.1
    }

    /// Runtimes of the workers of the API.
    pub fn runtimes(&self) -> Vec<Handle> {
        self.api.2.runtimes()
    }

    /// True if [`DEMO_KEYS`] are valid.
    pub fn has_demo_keys(&self) -> bool {
        !self.state.demo_keys.is_empty()
    }

    /// Serves until `shutdown`: readiness fails first, then no connection is accepted, then requests in progress complete or
    /// are cut off, then all else stops.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), Error> {
        let state = self.state;
        let database = state.database.clone();
        let limits = Arc::clone(&state.limits);
        let authenticator = state.authenticator.clone();
        let cancelled_requests = state.cancelled_requests.clone();
        let mut tasks = maintenance::start(Maintained {
            database: database.clone(),
            limits: Arc::clone(&state.limits),
            failed_authentication: state.failed_authentication.clone(),
            logins: state.logins.clone(),
            feed: state.feed.clone(),
            change_retention: state.change_retention,
            authenticator: state.authenticator.clone(),
            blobs: state.blobs.clone(),
            orphaned_blobs: state.orphaned_blobs.clone(),
        });
        tasks.spawn(state.authenticator.clone().follow_changes());
        tasks.spawn(telemetry::maintain_metrics(self.metrics));
        tasks.spawn(webhooks::report(database.clone(), state.feed.clone()));
        let end_of_deliveries = CancellationToken::new();
        let (feed, sender) = (state.feed.clone(), state.webhook_sender.clone());
        let deliveries =
            webhooks::deliver(database.clone(), feed, sender, end_of_deliveries.clone());
        let deliveries = tokio::spawn(deliveries);
        let serving = shutdown.separate();
        let (stopping, stop) = (shutdown.clone(), serving.clone());
        tokio::spawn(async move {
            stopping.graceful().await;
            // First, so that load balancers stop sending requests before connections are refused.
            state.readiness.stop();
            state.feed.end();
            end_of_deliveries.cancel();
            stop.begin();
        });

        // The operations listener reports health until the end.
        let last = shutdown.separate();
        let (listener, _, service) = self.operations;
        let (connections, until) = (self.limits, last.clone());
        let admission = Admission {
            max_connections: self.max_operations,
            ..self.admission.clone()
        };
        let operations = tokio::spawn(async move {
            let worker = Workers::current(service);
            server::serve(
                listener,
                &worker,
                connections,
                admission,
                "operations",
                until,
            )
            .await;
        });
        let (listener, _, workers) = self.api;
        server::serve(
            listener,
            &workers,
            connections,
            self.admission,
            "api",
            serving,
        )
        .await;
        cancelled_requests.close();
        tokio::select! {
            () = cancelled_requests.wait() => {}
            () = shutdown.forced() => {}
        }
        last.force();
        let _ = operations.await;
        drop(tasks);
        // What is not stored in time is sent again after the lease.
        let _ = tokio::time::timeout(db::QUERY_TIMEOUT, deliveries).await;
        let _ = tokio::time::timeout(db::QUERY_TIMEOUT, limits.limiter.close()).await;
        let _ = tokio::time::timeout(db::QUERY_TIMEOUT, authenticator.write_key_uses()).await;
        let _ = tokio::time::timeout(db::QUERY_TIMEOUT, limits.usage.write(&database)).await;

        // A statement that does not end must not block the stop: PostgreSQL rolls back what is not committed.
        let _ = tokio::time::timeout(db::QUERY_TIMEOUT, database.close()).await;
        if let Some(postgres) = self.embedded_postgres {
            postgres.stop().await?;
        }
        Ok(())
    }
}

/// These keys are public, so by default they are valid on this machine only.
fn has_demo_keys(config: &Config, listen: &ListenAddress) -> bool {
    match config.local_postgres.demo_keys {
        DemoKeys::Loopback => listen.is_loopback(),
        DemoKeys::Always => true,
        DemoKeys::Never => false,
    }
}

/// Directories in which PostgreSQL's programs are searched for.
pub fn search_path(config: &Config) -> SearchPath {
    SearchPath {
        bin_dir: config.environment.postgres_bin_dir.clone(),
        path: config.environment.path.clone(),
    }
}

/// Waits until `database.url` accepts connections, or starts the embedded PostgreSQL, and brings the schema up to date. Logs an error
/// if `database.pooler` lacks a pooler, which may fail all requests.
async fn open_database(config: &Config) -> Result<(Database, Option<EmbeddedPostgres>), Error> {
    let pooler = config.database.pooler;
    let (options, embedded) = match &config.database.url {
        Some(url) => {
            let url = DatabaseUrl::parse(url, config.database.password.as_ref())?;
            for warning in url.warnings {
                tracing::warn!("{warning}");
            }
            (url.options, None)
        }
        None => {
            let directory = &config.local_postgres.directory;
            let search = search_path(config);
            let embedded = EmbeddedPostgres::start(directory, &search, Durability::Durable);
            let embedded = Box::pin(embedded).await?;
            (embedded.connect_options(), Some(embedded))
        }
    };
    let database = Database::new(options.clone(), &config.database);
    if embedded.is_none() {
        Box::pin(database.wait_until_available()).await?;
        if pooler == Pooler::None
            && let Some(correction) = database.check_pooler().await?
        {
            tracing::error!("{correction}; until then, requests may fail");
        }
    }
    Box::pin(db::migrations::apply(&options, pooler)).await?;
    Ok((database, embedded))
}

fn connection_limits(server: &config::Server) -> Limits {
    Limits {
        header_timeout: server.header_timeout,
        idle_timeout: server.idle_timeout,
        max_header_size: bytes(server.max_header_size),
    }
}

fn bytes(size: ByteSize) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}

/// Half of the cores by default, so that a flood of logins leaves the others to other requests.
fn hashes_at_once(users: &config::Users) -> usize {
    users.hashes_at_once.map_or_else(
        || available_parallelism().map_or(1, |cores| cores.get() / 2),
        NonZeroUsize::get,
    )
}
