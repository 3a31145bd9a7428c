//! Names of the environment variables that set the keys of the configuration.

use std::{borrow::Cow, iter, process};

/// Prefix of all variables but the established ones.
pub(super) const PREFIX: &str = "PET_INVENTORY";
/// Variable that replaces the port of [`LISTEN`].
pub(super) const PORT: &str = "PORT";
/// Key with the address of the API.
pub(super) const LISTEN: &str = "server.listen";

/// Unit of the durations of OpenTelemetry.
const MILLISECONDS: &str = "ms";
/// Keys that established variables also set, and the units that their values lack. Of several variables of a key, the first
/// counts.
#[rustfmt::skip]
pub(super) const ALIASES: [(&str, &str, &str); 15] = [
    ("database.url", "DATABASE_URL", ""),
    ("telemetry.log", "RUST_LOG", ""),
    ("telemetry.otlp_disabled", "OTEL_SDK_DISABLED", ""),
    ("telemetry.otlp_endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT", ""),
    ("telemetry.otlp_traces_endpoint", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""),
    ("telemetry.otlp_headers", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", ""),
    ("telemetry.otlp_headers", "OTEL_EXPORTER_OTLP_HEADERS", ""),
    ("telemetry.otlp_timeout", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", MILLISECONDS),
    ("telemetry.otlp_timeout", "OTEL_EXPORTER_OTLP_TIMEOUT", MILLISECONDS),
    ("telemetry.otlp_sampler", "OTEL_TRACES_SAMPLER", ""),
    ("telemetry.otlp_sampling", "OTEL_TRACES_SAMPLER_ARG", ""),
    ("telemetry.otlp_delay", "OTEL_BSP_SCHEDULE_DELAY", MILLISECONDS),
    ("telemetry.otlp_max_queue", "OTEL_BSP_MAX_QUEUE_SIZE", ""),
    ("telemetry.otlp_max_batch", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", ""),
    ("telemetry.service_name", "OTEL_SERVICE_NAME", ""),
];

/// Variables that OpenTelemetry's SDK reads itself.
const READ_BY_SDK: [&str; 4] = [
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
];

/// Returns the name of the variable that sets `key`.
pub(super) fn variable(key: &str) -> String {
    format!("{PREFIX}__{}", key.replace('.', "__").to_uppercase())
}

/// Returns the names that can set `key`, in order of precedence.
pub(super) fn names(key: &str) -> impl Iterator<Item = Cow<'static, str>> {
    let port = (key == LISTEN).then_some(Cow::from(PORT));
    let aliases = ALIASES.iter().filter(move |(it, ..)| *it == key);
    port.into_iter()
        .chain(iter::once(variable(key).into()))
        .chain(aliases.map(|(_, alias, _)| Cow::from(*alias)))
}

/// Returns the names of the sockets that a service manager has passed to this process (`sd_listen_fds_with_names(3)`); a
/// socket without a name has an empty one.
pub(super) fn sockets<'v>(text: &impl Fn(&str) -> Option<&'v str>) -> Vec<String> {
    let is_ours = text("LISTEN_PID").is_some_and(|id| id == process::id().to_string());
    let count = text("LISTEN_FDS").filter(|_| is_ours);
    let count: u16 = count.and_then(|it| it.parse().ok()).unwrap_or_default();
    let names = text("LISTEN_FDNAMES").unwrap_or_default().split(':');
    let names = names.chain(iter::repeat("")).map(str::to_owned);
    names.take(count.into()).collect()
}

/// Returns true for a variable of OpenTelemetry that has no effect here, or a value that has none.
pub(super) fn is_ignored(name: &str, value: &str) -> bool {
    let is_known =
        ALIASES.iter().any(|(_, alias, _)| *alias == name) || READ_BY_SDK.contains(&name);
    let is_default = matches!(
        (name, &*value.to_ascii_lowercase()),
        ("OTEL_METRICS_EXPORTER" | "OTEL_LOGS_EXPORTER", "none")
            | ("OTEL_TRACES_EXPORTER", "otlp")
            | (
                "OTEL_EXPORTER_OTLP_PROTOCOL" | "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
                "http/protobuf"
            )
            // Read by the exporter itself.
            | (
                "OTEL_EXPORTER_OTLP_COMPRESSION" | "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
                "gzip" | "none"
            )
    );
    name.starts_with("OTEL_") && !is_known && !is_default
}
