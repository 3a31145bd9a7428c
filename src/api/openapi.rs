//! The OpenAPI 3.1 document, generated from the handlers, and its page at `/docs`.
//!
//! A handler says what is its own; [`complete`] adds what every operation has: the statuses that the
//! layers around it can answer, the form of errors, the headers. Nothing is written down twice.

use axum::{Router, extract::State, http::header, response::IntoResponse, routing::get};
use utoipa::{
    OpenApi, PartialSchema, ToSchema,
    openapi::{
        ContentBuilder, Header, HeaderBuilder, ObjectBuilder, OpenApi as Document, Ref, RefOr,
        Required, Response, Schema, Server, Type,
        path::{Operation, ParameterBuilder, ParameterIn, PathItem},
        schema::SchemaType,
        security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme},
    },
};
use utoipa_swagger_ui::{Config, SwaggerUi};

use super::{
    problem::{Problem, Violation},
    state::Links,
};

/// Where the API lies.
pub const BASE: &str = "/api/v3";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Pet inventory",
        description = "Keeps a store's pets: the Petstore v3 interface, on PostgreSQL.\n\n\
            Send an API key in the header `api_key`, or as `Authorization: Bearer …`. \
            Every error is `application/problem+json` (RFC 9457) and also has Petstore's `code` and `message`.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    tags((name = "pet", description = "The pets of the store.")),
)]
struct Base;

/// The document to which the nouns add their operations.
#[must_use]
pub fn base() -> Document {
    Base::openapi()
}

/// Adds what all operations have in common.
pub fn complete(document: &mut Document, links: &Links) {
    document.servers = Some(vec![Server::new(links.url(BASE))]);
    let components = document.components.get_or_insert_default();
    for (name, schema) in [
        (Problem::name(), Problem::schema()),
        (Violation::name(), Violation::schema()),
    ] {
        components.schemas.insert(name.into_owned(), schema);
    }
    let api_key = ApiKeyValue::with_description("api_key", "An API key.");
    components.add_security_scheme("api_key", SecurityScheme::ApiKey(ApiKey::Header(api_key)));
    let mut bearer = Http::new(HttpAuthScheme::Bearer);
    bearer.description = Some("An API key, sent as a bearer token (RFC 6750).".into());
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    for (status, name, description) in common_errors() {
        let mut response = Response::new(description);
        complete_response(status, &mut response);
        components
            .responses
            .insert(name.to_owned(), response.into());
    }
    for item in document.paths.paths.values_mut() {
        for (method, operation) in operations(item) {
            complete_operation(method, operation);
        }
    }
}

/// The operations of a path that this service has any of.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    [
        ("get", &mut item.get),
        ("post", &mut item.post),
        ("put", &mut item.put),
        ("patch", &mut item.patch),
        ("delete", &mut item.delete),
    ]
    .into_iter()
    .filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

/// An error that is the same whatever the operation: its status, its name among the document's
/// components, and what it means.
type CommonError = (&'static str, &'static str, &'static str);

/// What the layers and extractors answer to any request.
const ALWAYS: [CommonError; 5] = [
    (
        "400",
        "Invalid",
        "The request is invalid; `errors` names every broken rule.",
    ),
    ("414", "UriTooLong", "The path and query are too long."),
    ("431", "HeadTooLarge", "The request head is too large."),
    (
        "500",
        "InternalError",
        "Something went wrong on the server's side.",
    ),
    (
        "503",
        "Unavailable",
        "The database is not available right now, or the request took too long.",
    ),
];
const WITH_CREDENTIAL: [CommonError; 2] = [
    (
        "401",
        "Unauthenticated",
        "The credential is missing or not valid.",
    ),
    (
        "403",
        "Forbidden",
        "The credential lacks a scope that this operation needs.",
    ),
];
const WITH_BODY: [CommonError; 3] = [
    ("408", "BodyTimeout", "The body did not arrive in time."),
    ("413", "BodyTooLarge", "The body is too large."),
    (
        "415",
        "UnsupportedMediaType",
        "The body is of another media type.",
    ),
];
const WITH_IDEMPOTENCY_KEY: [CommonError; 2] = [
    (
        "409",
        "IdempotencyKeyInUse",
        "A request with this `Idempotency-Key` is being worked on.",
    ),
    (
        "422",
        "IdempotencyKeyReused",
        "This `Idempotency-Key` was used for another request.",
    ),
];

fn common_errors() -> impl Iterator<Item = CommonError> {
    ALWAYS
        .into_iter()
        .chain(WITH_CREDENTIAL)
        .chain(WITH_BODY)
        .chain(WITH_IDEMPOTENCY_KEY)
}

fn complete_operation(method: &str, operation: &mut Operation) {
    let secured = operation.security.as_ref().is_some_and(|ways| {
        serde_json::to_value(ways).is_ok_and(|ways| ways != serde_json::json!([{}]))
    });
    let has_body = operation.request_body.is_some();
    let is_post = method == "post";

    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(parameter) = parameter {
            parameter.schema = parameter.schema.take().map(without_null);
        }
    }
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else {
            continue;
        };
        complete_response(status, response);
        if is_post {
            let description = "`true` on an answer that was given before.";
            let header = header_of("Idempotent-Replayed", description);
            response
                .headers
                .insert("Idempotent-Replayed".into(), header);
        }
    }
    if is_post {
        let key = ParameterBuilder::new()
            .name("Idempotency-Key")
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some(
                "Any 1–255 characters of the client's, bare or in double quotes. The first answer is \
                 kept for 24 hours and given again to the same request with the same key.",
            ))
            .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
            .build();
        operation
            .parameters
            .get_or_insert_default()
            .push(key.into());
    }
    let common = ALWAYS
        .into_iter()
        .chain(WITH_CREDENTIAL.into_iter().filter(|_| secured))
        .chain(WITH_BODY.into_iter().filter(|_| has_body))
        .chain(WITH_IDEMPOTENCY_KEY.into_iter().filter(|_| is_post));
    for (status, name, _) in common {
        operation
            .responses
            .responses
            .entry(status.to_owned())
            .or_insert_with(|| RefOr::Ref(Ref::from_response_name(name)));
    }
}

/// A parameter that is optional may be left out; it is never null, as the type of an `Option` says.
fn without_null(schema: RefOr<Schema>) -> RefOr<Schema> {
    match schema {
        RefOr::T(Schema::Object(mut object)) => {
            if let SchemaType::Array(types) = &mut object.schema_type {
                types.retain(|kind| *kind != Type::Null);
                if let [only] = types.as_slice() {
                    object.schema_type = SchemaType::Type(only.clone());
                }
            }
            RefOr::T(Schema::Object(object))
        }
        other => other,
    }
}

/// Adds the headers that go with a status, and, to an error, its form.
fn complete_response(status: &str, response: &mut Response) {
    let mut add = |name: &str, description: &str| {
        response
            .headers
            .insert(name.to_owned(), header_of(name, description));
    };
    add(
        "X-Request-Id",
        "The request's own id, or the one it was given.",
    );
    match status {
        "401" | "403" => add("WWW-Authenticate", "How to authenticate (RFC 6750 §3)."),
        "409" => add(
            "Retry-After",
            "Seconds until another try is worth it, when the key is in use.",
        ),
        "415" => add("Accept", "Media types that are accepted."),
        "503" => add("Retry-After", "Seconds until another try is worth it."),
        _ => {}
    }
    if status.starts_with(['4', '5']) {
        let problem = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name(Problem::name())))
            .build();
        response
            .content
            .insert(Problem::MEDIA_TYPE.to_owned(), problem.into());
    }
}

fn header_of(name: &str, description: &str) -> RefOr<Header> {
    let kind = if name == "Retry-After" {
        Type::Integer
    } else {
        Type::String
    };
    HeaderBuilder::new()
        .schema(Some(ObjectBuilder::new().schema_type(kind)))
        .description(Some(description))
        .build()
        .into()
}

/// `/api/v3/openapi.json` and `/docs`, without a credential.
pub fn router<S: Clone + Send + Sync + 'static>(
    document: &Document,
) -> Result<Router<S>, serde_json::Error> {
    let json: axum::body::Bytes = serde_json::to_vec(document)?.into();
    let path = format!("{BASE}/openapi.json");
    let swagger_ui = SwaggerUi::new("/docs").config(
        Config::new([path.clone()])
            .try_it_out_enabled(true)
            .persist_authorization(true)
            .display_request_duration(true)
            .validator_url("none"),
    );
    Ok(Router::new()
        .route(
            &path,
            get(|State(json): State<axum::body::Bytes>| async {
                ([(header::CONTENT_TYPE, "application/json")], json).into_response()
            }),
        )
        .with_state(json)
        .merge(swagger_ui))
}
