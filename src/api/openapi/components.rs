//! Components of the document: headers, parameters and error responses, each declared once.
//!
//! Handlers only name these headers and parameters. A header or parameter has the same schema everywhere.

use serde_json::Value;
use utoipa::openapi::{
    Components, Header, HeaderBuilder, KnownFormat, Object, ObjectBuilder, Ref, RefOr, Required,
    Response, Schema, SchemaFormat, Type,
    path::{ParameterBuilder, ParameterIn},
};

use crate::domain::id::{OrderId, PetId};

/// Headers with the same description in every response. Handlers describe the others.
#[rustfmt::skip]
const HEADERS: &[(&str, &str)] = &[
    ("X-Request-Id", "Request id: the client's value if it is valid, else a generated one."),
    ("Idempotent-Replayed", "`true` if the response is a replay of a stored one."),
    ("RateLimit-Policy", "Limits of the caller's plan; absent if unlimited."),
    ("RateLimit", "Remaining requests (`r`) of each limit, and the seconds until more are available (`t`)."),
    ("X-RateLimit-Limit", "The limit with fewer remaining requests."),
    ("X-RateLimit-Remaining", "Remaining requests of that limit."),
    ("X-RateLimit-Reset", "Seconds until more requests are available."),
    ("Cache-Control", "`no-store`."),
    ("ETag", "Entity tag, for the conditional requests of RFC 9110 §13."),
    ("Location", "URL of the new resource."),
    ("Link", "URL of the next page: `<…>; rel=\"next\"` (RFC 8288). Only with `limit`, while more matches remain."),
    ("Accept-Ranges", "`bytes`."),
    ("Content-Range", "The returned range, or `*` if there is none, and the size in bytes."),
    ("Content-Disposition", "`inline`, and a name for a copy of the image."),
    ("Content-Security-Policy", "`default-src 'none'; sandbox`: disables active content."),
    ("Cross-Origin-Resource-Policy", "`cross-origin`: pages of any origin can show the image."),
    ("X-Content-Type-Options", "`nosniff`."),
    ("X-Rate-Limit", "Requests per hour that the account's plan allows; absent if unlimited."),
    ("X-Expires-After", "Expiry time of the session (RFC 3339)."),
];

/// Those of [`HEADERS`] that report the state of the caller's limits.
pub const LIMIT_HEADERS: &[&str] = &[
    "RateLimit-Policy",
    "RateLimit",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
];

/// Locations, names and descriptions of parameters.
#[rustfmt::skip]
const PARAMETERS: &[(ParameterIn, &str, &str)] = &[
    (ParameterIn::Path, "petId", "Identifier of the pet."),
    (ParameterIn::Path, "orderId", "Identifier of the order."),
    (ParameterIn::Path, "username", "Username of the account, in any case."),
    (ParameterIn::Path, "imageId", "Identifier of the image."),
    (ParameterIn::Path, "callerId", "Identifier of the caller."),
    (ParameterIn::Path, "keyId", "Identifier of the key."),
    (ParameterIn::Path, "clientId", "Identifier of the client."),
    (ParameterIn::Path, "sessionId", "Identifier of the session."),
    (ParameterIn::Path, "webhookId", "Identifier of the webhook."),
    (ParameterIn::Path, "position", "Position of the delivery."),
    (ParameterIn::Query, "limit", "Maximum number of matches in the response."),
    (ParameterIn::Query, "cursor", "Position of the page, from `Link` of the previous page."),
    (ParameterIn::Header, "Idempotency-Key", "1–255 characters chosen by the client, bare or in double quotes. The \
        first response is stored for 24 hours and replayed to the same request with the same key."),
    (ParameterIn::Header, "If-Match", "Read, change or delete the resource only if it has one of these ETags. Where a \
        resource has no ETag, this header gets 400."),
    (ParameterIn::Header, "If-None-Match", "Read, change or delete the resource only if it has none of these ETags; `*` is \
        any. Otherwise a GET gets 304, and a change 412. Where a resource has no ETag, this header gets 400."),
];

/// Error response that operations share.
pub struct SharedError {
    pub status: &'static str,
    pub name: &'static str,
    /// Each is a parameter, `body`, or `always`; `caller` of operations that need one; `address` of those with a limit by
    /// client address.
    causes: &'static [&'static str],
    pub description: &'static str,
}

/// All shared errors.
#[rustfmt::skip]
pub const ERRORS: &[SharedError] = &[
    SharedError { status: "400", name: "Invalid", causes: &["always"],
        description: "The request is invalid; `errors` lists all violations." },
    SharedError { status: "401", name: "Unauthenticated", causes: &["caller"],
        description: "The credential is missing or not valid." },
    SharedError { status: "403", name: "Forbidden", causes: &["caller"],
        description: "The credential lacks a scope that this operation needs, or is a demo key that was sent from elsewhere than this \
        machine." },
    SharedError { status: "404", name: "NoSuchPet", causes: &["petId", "If-Match"],
        description: "There is no such pet." },
    SharedError { status: "404", name: "NoSuchOrder", causes: &["orderId"],
        description: "The order does not exist or belongs to another caller." },
    SharedError { status: "404", name: "NoSuchUser", causes: &["username"],
        description: "The account does not exist or belongs to another caller." },
    SharedError { status: "404", name: "NoSuchCaller", causes: &["callerId"],
        description: "The caller does not exist." },
    SharedError { status: "404", name: "NoSuchKey", causes: &["keyId"],
        description: "There is no valid key with this identifier." },
    SharedError { status: "404", name: "NoSuchClient", causes: &["clientId"],
        description: "There is no valid client with this identifier." },
    SharedError { status: "404", name: "NoSuchSession", causes: &["sessionId"],
        description: "There is no valid session with this identifier." },
    SharedError { status: "404", name: "NoSuchWebhook", causes: &["webhookId"],
        description: "There is no such webhook or delivery." },
    SharedError { status: "408", name: "BodyTimeout", causes: &["body"],
        description: "The body did not arrive in time." },
    SharedError { status: "412", name: "PreconditionFailed", causes: &["If-Match"],
        description: "The resource has none of the ETags in `If-Match`, or one of those in `If-None-Match`; nothing changed." },
    SharedError { status: "413", name: "BodyTooLarge", causes: &["body"],
        description: "The body is too large." },
    SharedError { status: "414", name: "UriTooLong", causes: &["always"],
        description: "The path and query are too long." },
    SharedError { status: "415", name: "UnsupportedMediaType", causes: &["body"],
        description: "The media type of the body is not supported, or the body has a `Content-Encoding`." },
    SharedError { status: "422", name: "IdempotencyKeyReused", causes: &["Idempotency-Key"],
        description: "This `Idempotency-Key` was already used for a different request." },
    SharedError { status: "429", name: "TooManyFromAddress", causes: &["address"],
        description: "A limit of the client address is reached." },
    SharedError { status: "429", name: "TooManyRequests", causes: &["caller"],
        description: "A limit of the caller's plan is reached." },
    SharedError { status: "431", name: "HeadTooLarge", causes: &["always"],
        description: "The request head is too large." },
    SharedError { status: "500", name: "InternalError", causes: &["always"],
        description: "An internal error occurred." },
    SharedError { status: "501", name: "UnsupportedTransferCoding", causes: &["always"],
        description: "The body has a transfer coding below `chunked`." },
    SharedError { status: "503", name: "Unavailable", causes: &["always"],
        description: "The service is overloaded, the database is not available, or the request took too long." },
];

/// Returns the shared errors with this cause.
pub fn errors_of(cause: &str) -> impl Iterator<Item = &'static SharedError> {
    ERRORS
        .iter()
        .filter(move |error| error.causes.contains(&cause))
}

/// Adds the headers and parameters.
pub fn add(components: &mut Components) {
    for (name, description) in HEADERS {
        let header = header(name, description).into();
        components.headers.insert((*name).to_owned(), header);
    }
    for (location, name, description) in PARAMETERS {
        let parameter = ParameterBuilder::new()
            .name(*name)
            .parameter_in(location.clone())
            // Ignored for `Path`, of which all are required.
            .required(Required::False)
            .description(Some(*description))
            .schema(Some(schema(name)))
            // Swagger UI sends it unless the user changes it.
            .example(match *name {
                "petId" | "orderId" | "username" | "imageId" | "callerId" | "keyId"
                | "clientId" | "sessionId" | "webhookId" | "position" | "limit" => example(name),
                _ => None,
            });
        let parameter = parameter.build().into();
        components.parameters.insert((*name).to_owned(), parameter);
    }
}

/// Returns a reference to the header or parameter with this name.
pub fn reference<T>(kind: &str, name: &str) -> RefOr<T> {
    RefOr::Ref(Ref::new(format!("#/components/{kind}/{name}")))
}

/// Adds headers of [`HEADERS`] to a response.
pub fn add_headers(response: &mut Response, names: &[&str]) {
    for name in names {
        let header = reference("headers", name);
        response.headers.insert((*name).to_owned(), header);
    }
}

/// Returns a header that is not among [`HEADERS`], or that describes it.
pub fn header(name: &str, description: &str) -> Header {
    HeaderBuilder::new()
        .schema(Some(schema(name)))
        .description(Some(description))
        .build()
}

/// Returns the schema of a header or parameter.
pub fn schema(name: &str) -> RefOr<Schema> {
    let schema = match name {
        "Accept-Ranges" => one("bytes"),
        "Content-Disposition" => text(
            r#"^inline; filename="pet-\d+-[0-9a-f]{32}\.(png|jpg|gif|webp)"$"#,
            96,
        ),
        "Content-Range" => text(r"^bytes (\d+-\d+|\*)/\d+$", 64),
        "Content-Security-Policy" => one("default-src 'none'; sandbox"),
        "Cross-Origin-Resource-Policy" => one("cross-origin"),
        "ETag" => text(r#"^"[0-9A-Za-z-]+"$"#, 66),
        // Bare, or a quoted string (RFC 8941 §3.3.3).
        "Idempotency-Key" => text(r#"^([!#-~]([ -~]{0,253}[!-~])?|"[ -~]{1,255}")$"#, 257),
        "Idempotent-Replayed" => one("true"),
        // The operation rejects or ignores malformed values (RFC 9110 §8.8.3, §13.1, §14.2).
        "If-Match" => formatted("entity-tags")
            .pattern(Some(r#"^(\*|(W/)?"[!#-~]*"( *, *(W/)?"[!#-~]*")*)$"#))
            .max_length(Some(4_096)),
        "If-None-Match" => formatted("entity-tags").max_length(Some(4_096)),
        "If-Range" => formatted("entity-tag").max_length(Some(4_096)),
        "Range" => formatted("byte-ranges").max_length(Some(4_096)),
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
        "X-RateLimit-Limit" | "X-RateLimit-Remaining" => number(0, u32::MAX.into()),
        "X-RateLimit-Reset" => number(0, 86_400),
        "X-Request-Id" => text("^[A-Za-z0-9._-]+$", 64),
        "cursor" => formatted("cursor")
            .pattern(Some("^[A-Za-z0-9_-]+$"))
            .min_length(Some(2))
            .max_length(Some(22)),
        "imageId" => text("^[0-9a-f]{32}$", 32).min_length(Some(32)),
        "limit" => number(1, 1_000).format(Some(SchemaFormat::KnownFormat(KnownFormat::Int32))),
        "orderId" => number(1, OrderId::MAX),
        "petId" | "callerId" | "keyId" | "clientId" | "sessionId" | "webhookId" => {
            number(1, PetId::MAX)
        }
        "position" => number(0, PetId::MAX),
        "username" => text(r"^[^\x00-\x1f\x7f]+$", 64).min_length(Some(1)),
        // Values of this service: challenges, media types, cache directives.
        _ => text("^[ -~]+$", 512),
    };
    schema.examples(example(name)).build().into()
}

/// Returns an example of a header or parameter, unless its schema lists the values. Headers that make a request conditional or
/// repeatable have none: collections would send it with every request.
#[rustfmt::skip]
pub fn example(name: &str) -> Option<Value> {
    Some(match name {
        "Accept" => "application/json".into(),
        "Accept-Encoding" => "identity".into(),
        "Accept-Patch" => "application/merge-patch+json, application/json".into(),
        "Cache-Control" => "no-store".into(),
        "Content-Disposition" => "inline; filename=\"pet-7-9f86d081884c7d659a2feaa0c55ad015.jpg\"".into(),
        "Content-Range" => "bytes 0-1023/183734".into(),
        "ETag" => "\"42\"".into(),
        "Link" => "</api/v3/pet/findByStatus?status=available&limit=20&cursor=MjA>; rel=\"next\"".into(),
        "Location" => "/api/v3/pet/1".into(),
        "RateLimit" => "\"minute\";r=59;t=60, \"day\";r=999;t=43200".into(),
        "RateLimit-Policy" => "\"minute\";q=60;w=60, \"day\";q=1000;w=86400".into(),
        "Retry-After" => 30.into(),
        "WWW-Authenticate" => "Bearer realm=\"pet-inventory\"".into(),
        "X-Expires-After" => "2026-01-31T12:00:00Z".into(),
        "X-Rate-Limit" => 3_600.into(),
        "X-RateLimit-Limit" | "X-RateLimit-Reset" => 60.into(),
        "X-RateLimit-Remaining" => 59.into(),
        "X-Request-Id" | "imageId" => "9f86d081884c7d659a2feaa0c55ad015".into(),
        "additionalMetadata" => "from the left".into(),
        "cursor" => "MjA".into(),
        "limit" => 20.into(),
        "name" => "Rex".into(),
        "orderId" | "petId" => 1.into(),
        "callerId" | "keyId" | "clientId" | "sessionId" | "webhookId" => 7.into(),
        "position" => 1_769_860_800_000_000_i64.into(),
        "password" => "correct horse battery staple".into(),
        "username" => "ada".into(),
        "width" => 256.into(),
        _ => return None,
    })
}

/// Maximum length of a URL: the operator's public URL, and the request target, which is bounded itself.
const MAX_URL: usize = 16 << 10;

fn string() -> ObjectBuilder {
    Object::builder().schema_type(Type::String)
}

fn text(pattern: &str, max_length: usize) -> ObjectBuilder {
    let string = string().pattern(Some(pattern));
    string.max_length(Some(max_length))
}

fn formatted(format: &str) -> ObjectBuilder {
    string().format(Some(SchemaFormat::Custom(format.to_owned())))
}

fn one(word: &str) -> ObjectBuilder {
    string().enum_values(Some([word]))
}

fn number(minimum: i64, maximum: i64) -> ObjectBuilder {
    Object::builder()
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
        .minimum(Some(minimum))
        .maximum(Some(maximum))
}
