//! What the fields of a message's head hold. A field holds the same wherever it stands, so that handlers only
//! name it, and say what it means there; its bounds are here.

use utoipa::openapi::{
    Components, HeaderBuilder, Object, ObjectBuilder, Ref, RefOr, Response, Schema, SchemaFormat,
    Type,
    path::{Parameter, ParameterIn},
};

/// Fields that mean the same in every answer, with what they mean; the others are described where they stand.
const COMMON: [(&str, &str); 7] = [
    (
        "X-Request-Id",
        "The request's own id, or the one it was given.",
    ),
    (
        "Idempotent-Replayed",
        "`true` on an answer that was given before.",
    ),
    (
        "RateLimit-Policy",
        "The caller's limits, unless its plan has none: `\"minute\";q=60;w=60, \"day\";q=1000;w=86400`.",
    ),
    (
        "RateLimit",
        "What is left of them, and the seconds until it is more: `\"minute\";r=59;t=60, \"day\";r=999;t=3600`.",
    ),
    ("X-RateLimit-Limit", "The limit with less left."),
    ("X-RateLimit-Remaining", "What is left of it."),
    ("X-RateLimit-Reset", "Seconds until it is more."),
];
/// Those of [`COMMON`] that tell a caller how its limits stand.
const LIMITS: [&str; 5] = [
    "RateLimit-Policy",
    "RateLimit",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
];

/// Adds the common fields to the document's components.
pub fn add_components(components: &mut Components) {
    for (name, description) in COMMON {
        let header = HeaderBuilder::new()
            .schema(Some(schema(name)))
            .description(Some(description))
            .build();
        components.headers.insert(name.to_owned(), header.into());
    }
}

/// Says that an answer may have a field of [`COMMON`].
pub fn add_common(response: &mut Response, name: &str) {
    let header = Ref::new(format!("#/components/headers/{name}"));
    response.headers.insert(name.to_owned(), RefOr::Ref(header));
}

/// Says that an answer may tell how the caller's limits stand.
pub fn add_limits(response: &mut Response) {
    for name in LIMITS {
        add_common(response, name);
    }
}

/// Says that an answer may have a field.
pub fn add(response: &mut Response, name: &str, description: &str) {
    let header = HeaderBuilder::new().description(Some(description)).build();
    response.headers.insert(name.to_owned(), header.into());
}

/// Gives the fields of an answer their bounds.
pub fn bound(response: &mut Response) {
    for (name, header) in &mut response.headers {
        if let RefOr::T(header) = header {
            header.schema = Some(schema(name));
        }
    }
}

/// Gives a parameter its bounds, if it is a field of the head.
pub fn bound_parameter(parameter: &mut Parameter) {
    if parameter.parameter_in == ParameterIn::Header {
        parameter.schema = Some(schema(&parameter.name));
    }
}

/// What a field holds.
fn schema(name: &str) -> RefOr<Schema> {
    let schema = match name {
        "Accept-Ranges" => one("bytes"),
        "Content-Disposition" => one("inline"),
        "Content-Range" => text(r"^bytes (\d+-\d+|\*)/\d+$", 64),
        "Content-Security-Policy" => one("default-src 'none'; sandbox"),
        "Cross-Origin-Resource-Policy" => one("cross-origin"),
        "ETag" => text(r#"^"[0-9A-Za-z-]+"$"#, 66),
        // Bare or a quoted string (RFC 8941 §3.3.3).
        "Idempotency-Key" => text(r#"^([!#-~]([ -~]{0,253}[!-~])?|"[ -~]{1,255}")$"#, 257),
        "Idempotent-Replayed" => one("true"),
        // `*`, or entity tags (RFC 9110 §8.8.3) with commas between.
        "If-Match" => condition("entity-tags"),
        // Where these cannot be read they are as good as absent (RFC 9110 §13.1, §14.2).
        "If-None-Match" => condition("entity-tags"),
        "If-Range" => condition("entity-tag"),
        "Range" => condition("byte-ranges"),
        "Link" => text(r#"^<[!-~]+>; rel="next"$"#, MAX_URL),
        "Location" => text("^[!-~]+$", MAX_URL),
        "RateLimit" => text(r#"^"(minute|day)";r=\d+;t=\d+(, "day";r=\d+;t=\d+)?$"#, 128),
        "RateLimit-Policy" => text(r#"^"(minute|day)";q=\d+;w=\d+(, "day";q=\d+;w=\d+)?$"#, 128),
        // A day is the longest that anything is refused for.
        "Retry-After" => number(1, 86_400),
        "X-Content-Type-Options" => one("nosniff"),
        "X-Expires-After" => text(r"^[0-9-]+T[0-9:.]+Z$", 40),
        // An hour of the largest minute.
        "X-Rate-Limit" => number(0, i64::from(u32::MAX) * 60),
        "X-RateLimit-Limit" | "X-RateLimit-Remaining" => number(0, i64::from(u32::MAX)),
        "X-RateLimit-Reset" => number(0, 86_400),
        "X-Request-Id" => text("^[A-Za-z0-9._-]+$", 64),
        // Words of ours: challenges, media types, directives for caches.
        _ => text("^[ -~]+$", 512),
    };
    schema.build().into()
}

/// They repeat what the client asked for, which is no longer than a request's target may be, and before it the
/// operator's own URL.
const MAX_URL: usize = 16 << 10;

fn text(pattern: &str, max_length: usize) -> ObjectBuilder {
    Object::builder()
        .schema_type(Type::String)
        .pattern(Some(pattern))
        .max_length(Some(max_length))
}

/// No pattern: what is not of its format is for the operation to refuse, or to overlook.
fn condition(format: &str) -> ObjectBuilder {
    Object::builder()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::Custom(format.to_owned())))
        .max_length(Some(4_096))
}

fn one(word: &str) -> ObjectBuilder {
    Object::builder()
        .schema_type(Type::String)
        .enum_values(Some([word]))
}

fn number(minimum: i64, maximum: i64) -> ObjectBuilder {
    Object::builder()
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(
            utoipa::openapi::KnownFormat::Int64,
        )))
        .minimum(Some(minimum))
        .maximum(Some(maximum))
}
