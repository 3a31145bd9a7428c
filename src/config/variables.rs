//! Names of the environment variables that set the keys of the configuration.

/// Prefix of all variables but the aliases.
pub(super) const PREFIX: &str = "PET_INVENTORY";
/// Keys that can also be set by an established variable.
pub(super) const ALIASES: [(&str, &str); 4] = [
    ("database.url", "DATABASE_URL"),
    ("telemetry.otlp_endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ("telemetry.otlp_headers", "OTEL_EXPORTER_OTLP_HEADERS"),
    ("telemetry.service_name", "OTEL_SERVICE_NAME"),
];

/// Returns the name of the variable that sets `key`.
pub(super) fn variable(key: &str) -> String {
    format!("{PREFIX}__{}", key.replace('.', "__").to_uppercase())
}
