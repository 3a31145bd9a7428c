//! Header fields. A field has the same schema everywhere, and handlers only name the fields of [`COMMON`].

use utoipa::openapi::{
    Components, Header, HeaderBuilder, Object, ObjectBuilder, Ref, RefOr, Response, Schema,
    SchemaFormat, Type,
    path::{Parameter, ParameterIn},
};

/// Fields with the same description in every response. Handlers describe the others.
const COMMON: [(&str, &str); 18] = [
    (
        "X-Request-Id",
        "Request id: the client's value if it is valid, else a generated one.",
    ),
    (
        "Idempotent-Replayed",
        "`true` if the response is a replay of a stored one.",
    ),
    (
        "RateLimit-Policy",
        "Limits of the caller's plan; absent if unlimited. Example: `\"minute\";q=60;w=60, \"day\";q=1000;w=86400`.",
    ),
    (
        "RateLimit",
        "Remaining requests (`r`) of each limit, and the seconds until more are available (`t`). Example: `\"minute\";r=59;t=60, \"day\";r=999;t=3600`.",
    ),
    (
        "X-RateLimit-Limit",
        "The limit with fewer remaining requests.",
    ),
    ("X-RateLimit-Remaining", "Remaining requests of that limit."),
    (
        "X-RateLimit-Reset",
        "Seconds until more requests are available.",
    ),
    (
        "ETag",
        "Entity tag, for the conditional requests of RFC 9110 §13.",
    ),
    ("Location", "URL of the new resource."),
    (
        "Link",
        "URL of the next page: `<…>; rel=\"next\"` (RFC 8288). Only with `limit`, while more matches remain.",
    ),
    ("Accept-Ranges", "`bytes`."),
    (
        "Content-Range",
        "The returned range, or `*` if there is none, and the size in bytes.",
    ),
    ("Content-Disposition", "`inline`."),
    (
        "Content-Security-Policy",
        "`default-src 'none'; sandbox`: disables active content.",
    ),
    (
        "Cross-Origin-Resource-Policy",
        "`cross-origin`: pages of any origin can show the image.",
    ),
    ("X-Content-Type-Options", "`nosniff`."),
    (
        "X-Rate-Limit",
        "Requests per hour that the account's plan allows; absent if unlimited.",
    ),
    ("X-Expires-After", "Expiry time of the session (RFC 3339)."),
];
/// Those of [`COMMON`] that report the state of the caller's limits.
const LIMITS: [&str; 5] = [
    "RateLimit-Policy",
    "RateLimit",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
];

pub fn add_components(components: &mut Components) {
    for (name, description) in COMMON {
        let header = HeaderBuilder::new()
            .schema(Some(schema(name)))
            .description(Some(description))
            .build();
        components.headers.insert(name.to_owned(), header.into());
    }
}

/// Adds a field of [`COMMON`] to a response.
pub fn add_common(response: &mut Response, name: &str) {
    response.headers.insert(name.to_owned(), reference(name));
}

fn reference(name: &str) -> RefOr<Header> {
    RefOr::Ref(Ref::new(format!("#/components/headers/{name}")))
}

/// Adds the fields of [`LIMITS`] to a response.
pub fn add_limits(response: &mut Response) {
    for name in LIMITS {
        add_common(response, name);
    }
}

pub fn add(response: &mut Response, name: &str, description: &str) {
    let header = HeaderBuilder::new().description(Some(description)).build();
    response.headers.insert(name.to_owned(), header.into());
}

/// Replaces the fields without a description by references to those of [`COMMON`], and sets the schemas of the others.
pub fn complete(response: &mut Response) {
    for (name, header) in &mut response.headers {
        match header {
            RefOr::T(described) if described.description.is_some() => {
                described.schema = Some(schema(name));
            }
            _ => *header = reference(name),
        }
    }
}

/// Sets the schema of a header parameter.
pub fn complete_parameter(parameter: &mut Parameter) {
    if parameter.parameter_in == ParameterIn::Header {
        parameter.schema = Some(schema(&parameter.name));
    }
}

pub fn schema(name: &str) -> RefOr<Schema> {
    let schema = match name {
        "Accept-Ranges" => one("bytes"),
        "Content-Disposition" => one("inline"),
        "Content-Range" => text(r"^bytes (\d+-\d+|\*)/\d+$", 64),
        "Content-Security-Policy" => one("default-src 'none'; sandbox"),
        "Cross-Origin-Resource-Policy" => one("cross-origin"),
        "ETag" => text(r#"^"[0-9A-Za-z-]+"$"#, 66),
        // Bare, or a quoted string (RFC 8941 §3.3.3).
        "Idempotency-Key" => text(r#"^([!#-~]([ -~]{0,253}[!-~])?|"[ -~]{1,255}")$"#, 257),
        "Idempotent-Replayed" => one("true"),
        // `*`, or entity tags (RFC 9110 §8.8.3) separated by commas.
        "If-Match" => condition("entity-tags"),
        // Malformed values of these are ignored (RFC 9110 §13.1, §14.2).
        "If-None-Match" => condition("entity-tags"),
        "If-Range" => condition("entity-tag"),
        "Range" => condition("byte-ranges"),
        "Link" => text(r#"^<[!-~]+>; rel="next"$"#, MAX_URL),
        "Location" => text("^[!-~]+$", MAX_URL),
        "RateLimit" => text(r#"^"(minute|day)";r=\d+;t=\d+(, "day";r=\d+;t=\d+)?$"#, 128),
        "RateLimit-Policy" => text(r#"^"(minute|day)";q=\d+;w=\d+(, "day";q=\d+;w=\d+)?$"#, 128),
        // No request is refused for longer than a day.
        "Retry-After" => number(1, 86_400),
        "X-Content-Type-Options" => one("nosniff"),
        "X-Expires-After" => text(r"^[0-9-]+T[0-9:.]+Z$", 40),
        // Requests per hour at the largest limit per minute.
        "X-Rate-Limit" => number(0, i64::from(u32::MAX) * 60),
        "X-RateLimit-Limit" | "X-RateLimit-Remaining" => number(0, i64::from(u32::MAX)),
        "X-RateLimit-Reset" => number(0, 86_400),
        "X-Request-Id" => text("^[A-Za-z0-9._-]+$", 64),
        // Values of this service: challenges, media types, cache directives.
        _ => text("^[ -~]+$", 512),
    };
    schema.build().into()
}

/// Maximum length of a URL: the operator's public URL, and the request target, which is bounded itself.
const MAX_URL: usize = 16 << 10;

pub fn text(pattern: &str, max_length: usize) -> ObjectBuilder {
    Object::builder()
        .schema_type(Type::String)
        .pattern(Some(pattern))
        .max_length(Some(max_length))
}

/// Has no pattern, since the operation rejects or ignores malformed values.
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

pub fn number(minimum: i64, maximum: i64) -> ObjectBuilder {
    Object::builder()
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(
            utoipa::openapi::KnownFormat::Int64,
        )))
        .minimum(Some(minimum))
        .maximum(Some(maximum))
}
