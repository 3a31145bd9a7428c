//! `webhooks`: creates, lists, enables, disables, rotates, tests and deletes webhooks, and shows their deliveries and attempts.

use std::time::Duration;

use clap::Subcommand;
use serde_json::json;

use super::{
    output::{Error, print, table},
    session::{with_connection, with_database},
};
use crate::{
    auth::secret::generate_webhook_secret,
    config::Config,
    db::{self, Connection, deliveries::DeliveryRecord, webhooks::WebhookRecord},
    domain::{
        change::{Initiator, Kind, Position},
        clock::rfc3339,
        id::WebhookId,
        webhook::{Attempt, MAX_OVERLAP, MAX_WEBHOOKS, NewWebhook, WebhookChange, WebhookUrl},
    },
    webhooks,
};

#[derive(Debug, Subcommand)]
pub enum Webhooks {
    /// Send the changes that are made from now on to a URL
    ///
    /// Each change is a POST request, signed as Standard Webhooks has it (https://www.standardwebhooks.com). It is repeated until
    /// the response has status 2xx: with growing delay for a day. With --json: {"id":…,"url":…,"kinds":[…],"secret":…}
    Create {
        /// URL of the receiver: https or, if webhooks.allow_private is set, http
        url: String,
        /// Only changes of one kind, can be repeated: pet, image, order, user, caller, key, client, session, webhook, import,
        /// restore
        #[arg(long = "kind", value_name = "KIND")]
        kinds: Vec<Kind>,
    },
    /// List all webhooks
    ///
    /// With --json, an array of {"id":…,"url":…,"kinds":[…],"enabled":…,"createdAt":…,"waiting":…,"parked":…,"lagSeconds":…}
    List,
    /// Deliver again, from the change on at which it was disabled
    ///
    /// Changes past changes.retention are not delivered. With --json: {"id":…,"enabled":true}
    Enable {
        /// Id of the webhook, as listed by: pet-inventory webhooks list
        id: WebhookId,
    },
    /// Deliver nothing until it is enabled
    ///
    /// Up to 15 s later, requests of a page that is being sent still begin. With --json: {"id":…,"enabled":false}
    Disable {
        /// Id of the webhook
        id: WebhookId,
    },
    /// Delete a webhook with its deliveries, permanently
    ///
    /// With --json: {"id":…,"deleted":true}
    Delete {
        /// Id of the webhook
        id: WebhookId,
    },
    /// List the deliveries of a webhook that have failed, wait behind one that has, or were given up
    ///
    /// With --json, an array of {"position":…,"type":…,"resource":…,"attempts":…,"createdAt":…,"nextAt":…,"parkedAt":…,
    /// "lastError":…}
    Deliveries {
        /// Id of the webhook
        id: WebhookId,
    },
    /// Send deliveries again at once, also ones that were given up
    ///
    /// The receiver may have got later changes of the same resource meanwhile. With --json: {"id":…,"positions":[…]}, or
    /// {"id":…,"deliveries":…} with --all
    Retry {
        /// Id of the webhook
        id: WebhookId,
        /// Positions of the deliveries, as listed by: pet-inventory webhooks deliveries
        #[arg(required_unless_present = "all", value_name = "POSITION")]
        positions: Vec<Position>,
        /// All that were given up
        #[arg(long, conflicts_with = "positions")]
        all: bool,
    },
    /// List the last 20 requests to the receiver of a webhook, the newest first
    ///
    /// With --json, an array of {"at":…,"position":…,"status":…,"error":…,"durationSeconds":…,"response":…}; tests have no position
    Attempts {
        /// Id of the webhook
        id: WebhookId,
    },
    /// Send a request of the type test from this machine, once
    ///
    /// Prints the outcome, and fails unless the response has status 2xx. With --json: the attempt, as listed by:
    /// pet-inventory webhooks attempts
    Test {
        /// Id of the webhook
        id: WebhookId,
    },
    /// Make a new secret, and sign with both until the old one ends
    ///
    /// A second rotation ends the oldest secret at once. With --json: {"id":…,"secret":…}
    Rotate {
        /// Id of the webhook
        id: WebhookId,
        /// Time for which requests are signed with the old secret, too, such as 12h: at most 7d
        #[arg(long, default_value = "24h", value_name = "DURATION", value_parser = parse_overlap)]
        overlap: Duration,
    },
}

fn parse_overlap(text: &str) -> Result<Duration, String> {
    let overlap = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if overlap > MAX_OVERLAP {
        return Err("must be at most 7d".to_owned());
    }
    Ok(overlap)
}

impl Webhooks {
    pub async fn run(self, config: &Config, json: bool) -> Result<(), Error> {
        match self {
            Self::Create { url, kinds } => create(config, &url, kinds, json).await,
            Self::List => {
                let webhooks = with_connection(config, async |connection| {
                    Ok(db::webhooks::list(connection, None, usize::MAX).await?)
                });
                let webhooks = webhooks.await?;
                print(
                    json,
                    table(&HEADING, webhooks.iter().map(to_row)),
                    &json!(webhooks),
                )
            }
            Self::Enable { id } => set_enabled(config, id, true, json).await,
            Self::Disable { id } => set_enabled(config, id, false, json).await,
            Self::Delete { id } => {
                change(config, async |transaction, initiator| {
                    let deleted = db::webhooks::delete(transaction, id, initiator).await?;
                    deleted.ok_or_else(|| unknown(id))
                })
                .await?;
                let text = format_args!("webhook {id} and its deliveries are deleted");
                print(json, text, &json!({"id": id.get(), "deleted": true}))
            }
            Self::Deliveries { id } => {
                let deliveries = with_connection(config, async |connection| {
                    let webhook = db::webhooks::find(connection, id).await?;
                    webhook.ok_or_else(|| unknown(id))?;
                    Ok(db::deliveries::list(connection, id, None, usize::MAX).await?)
                });
                let deliveries = deliveries.await?;
                let rows = deliveries.iter().map(delivery_to_row);
                print(json, table(&DELIVERIES_HEADING, rows), &json!(deliveries))
            }
            Self::Retry { id, all: true, .. } => retry_all(config, id, json).await,
            Self::Retry { id, positions, .. } => retry(config, id, &positions, json).await,
            Self::Attempts { id } => {
                let attempts = with_connection(config, async |connection| {
                    let webhook = db::webhooks::find(connection, id).await?;
                    webhook.ok_or_else(|| unknown(id))?;
                    Ok(db::deliveries::attempts(connection, id).await?)
                });
                let attempts = attempts.await?;
                let rows = attempts.iter().map(attempt_to_row);
                print(json, table(&ATTEMPTS_HEADING, rows), &json!(attempts))
            }
            Self::Test { id } => test(config, id, json).await,
            Self::Rotate { id, overlap } => {
                let secret = generate_webhook_secret()?;
                change(config, async |transaction, initiator| {
                    let rotated =
                        db::webhooks::rotate(transaction, id, &secret, overlap, initiator).await?;
                    rotated.ok_or_else(|| unknown(id))
                })
                .await?;
                let (secret, overlap) = (secret.expose(), humantime::format_duration(overlap));
                let text = format!(
                    "Secret {secret}\n\nThis is the only time the secret is shown. Requests of webhook {id} are signed with the old \
                     one, too, for {overlap}."
                );
                print(json, text, &json!({"id": id.get(), "secret": secret}))
            }
        }
    }
}

/// Sends a test, and fails unless it is accepted.
async fn test(config: &Config, id: WebhookId, json: bool) -> Result<(), Error> {
    let sender = webhooks::Sender::new(&config.webhooks)?;
    let attempt = with_database(config, async |database| {
        Ok::<_, Error>(webhooks::test(database.clone(), sender, id).await?)
    });
    let attempt = attempt.await?.ok_or_else(|| {
        format!("webhook {id} does not exist, is disabled, or has a test in progress; see: pet-inventory webhooks list")
    })?;
    if let Some(error) = &attempt.error {
        if json {
            print(json, "", &json!(attempt))?;
        }
        let next = format!("see: pet-inventory webhooks attempts {id}");
        return Err(format!("the test was not accepted: {error}; {next}").into());
    }
    let (status, seconds) = (attempt.status.unwrap_or_default(), attempt.duration_seconds);
    let text = format!("the test was accepted with status {status} after {seconds} s");
    print(json, text, &json!(attempt))
}

async fn create(config: &Config, url: &str, kinds: Vec<Kind>, json: bool) -> Result<(), Error> {
    let url = WebhookUrl::new(url, config.webhooks.allow_private);
    let new = NewWebhook {
        url: url.map_err(|reason| format!("the URL {reason}"))?,
        secret: generate_webhook_secret()?,
        kinds,
    };
    let id = change(config, async |transaction, initiator| {
        let id = db::webhooks::insert(transaction, &new, initiator).await?;
        id.ok_or_else(|| {
            format!(
                "there are {MAX_WEBHOOKS} webhooks; delete one with: pet-inventory webhooks delete"
            )
            .into()
        })
    });
    let (id, secret) = (id.await?, new.secret.expose());
    let kinds: Vec<_> = new.kinds.iter().map(|kind| kind.as_str()).collect();
    let text = format!(
        "Webhook id {id}\nURL        {}\nKinds      {}\nSecret     {secret}\n\nThis is the only time the secret is shown. \
         With it, the receiver checks the signature of each request (Standard Webhooks). To send one: \
         pet-inventory webhooks test {id}",
        new.url.as_str(),
        kinds_or_all(&kinds),
    );
    let value = json!({"id": id.get(), "url": new.url.as_str(), "kinds": kinds, "secret": secret});
    print(json, text, &value)
}

async fn set_enabled(
    config: &Config,
    id: WebhookId,
    is_enabled: bool,
    json: bool,
) -> Result<(), Error> {
    let new = WebhookChange {
        is_enabled: Some(is_enabled),
        ..WebhookChange::default()
    };
    change(config, async |transaction, initiator| {
        let changed = db::webhooks::change(transaction, id, &new, initiator).await?;
        changed.ok_or_else(|| unknown(id))
    })
    .await?;
    let state = if is_enabled { "enabled" } else { "disabled" };
    let value = json!({"id": id.get(), "enabled": is_enabled});
    print(json, format_args!("webhook {id} is {state}"), &value)
}

async fn retry(
    config: &Config,
    id: WebhookId,
    positions: &[Position],
    json: bool,
) -> Result<(), Error> {
    change(config, async |transaction, initiator| {
        for &position in positions {
            let found = db::webhooks::send_again(transaction, id, position, initiator).await?;
            found.ok_or_else(|| {
                format!(
                    "webhook {id} has no delivery {position} whose change is still recorded; see: pet-inventory webhooks \
                     deliveries {id}"
                )
            })?;
        }
        enabled(transaction, id).await
    })
    .await?;
    let value: Vec<_> = positions.iter().map(|position| position.0).collect();
    let text = format_args!("{} deliveries of webhook {id} are due now", value.len());
    print(json, text, &json!({"id": id.get(), "positions": value}))
}

async fn retry_all(config: &Config, id: WebhookId, json: bool) -> Result<(), Error> {
    let mut deliveries = 0;
    loop {
        let part = change(config, async |transaction, initiator| {
            let part = db::webhooks::send_parked_again(transaction, id, initiator).await?;
            enabled(transaction, id).await?;
            Ok(part)
        });
        let part = part.await?;
        if part == 0 {
            break;
        }
        deliveries += part;
    }
    let text = format_args!("{deliveries} deliveries of webhook {id} are due now");
    let value = json!({"id": id.get(), "deliveries": deliveries});
    print(json, text, &value)
}

/// Fails unless a webhook is enabled.
async fn enabled(connection: &mut Connection, id: WebhookId) -> Result<(), Error> {
    let webhook = db::webhooks::find(connection, id).await?;
    if webhook.ok_or_else(|| unknown(id))?.enabled {
        return Ok(());
    }
    Err(
        format!("webhook {id} is disabled; enable it first: pet-inventory webhooks enable {id}")
            .into(),
    )
}

/// Does `work` in a transaction, in the name of the operator.
async fn change<T>(
    config: &Config,
    work: impl AsyncFn(&mut Connection, &Initiator) -> Result<T, Error> + Clone,
) -> Result<T, Error> {
    with_database(config, async |database| {
        // A new webhook begins behind the changes before it.
        database.run(db::changes::publish_all).await?;
        let initiator = Initiator::operator();
        database
            .transact(async |transaction: &mut Connection| work(transaction, &initiator).await)
            .await
    })
    .await
}

fn unknown(id: WebhookId) -> Error {
    format!("no webhook {id}; see: pet-inventory webhooks list").into()
}

fn kinds_or_all(kinds: &[impl AsRef<str>]) -> String {
    let names: Vec<_> = kinds.iter().map(AsRef::as_ref).collect();
    if names.is_empty() {
        "all".to_owned()
    } else {
        names.join(", ")
    }
}

const HEADING: [&str; 8] = [
    "ID", "URL", "KINDS", "ENABLED", "WAITING", "PARKED", "LAG", "CREATED",
];

fn to_row(webhook: &WebhookRecord) -> Vec<String> {
    vec![
        webhook.id.to_string(),
        webhook.url.clone(),
        kinds_or_all(&webhook.kinds),
        if webhook.enabled { "yes" } else { "no" }.to_owned(),
        webhook.waiting.to_string(),
        webhook.parked.to_string(),
        format!("{:.1} s", webhook.lag_seconds),
        rfc3339(webhook.created_at),
    ]
}

const DELIVERIES_HEADING: [&str; 6] = [
    "POSITION",
    "TYPE",
    "RESOURCE",
    "ATTEMPTS",
    "NEXT",
    "LAST ERROR",
];

fn delivery_to_row(delivery: &DeliveryRecord) -> Vec<String> {
    vec![
        delivery.position.to_string(),
        delivery.message_type.clone(),
        delivery.resource.clone(),
        delivery.attempts.to_string(),
        (delivery.next_at).map_or_else(|| "parked".to_owned(), rfc3339),
        delivery
            .last_error
            .clone()
            .unwrap_or_else(|| "-".to_owned()),
    ]
}

const ATTEMPTS_HEADING: [&str; 6] = ["TIME", "POSITION", "STATUS", "SECONDS", "ERROR", "RESPONSE"];

fn attempt_to_row(attempt: &Attempt) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let position = attempt.position.map(|position| position.to_string());
    vec![
        rfc3339(attempt.at),
        position.unwrap_or_else(|| "test".to_owned()),
        or_dash(attempt.status.map(|status| status.to_string())),
        attempt.duration_seconds.to_string(),
        or_dash(attempt.error.clone()),
        or_dash(
            attempt
                .response
                .as_ref()
                .map(|text| text.chars().take(40).collect()),
        ),
    ]
}
