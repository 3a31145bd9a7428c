//! The OpenAPI 3.1 document, generated from the handlers.
//!
//! A handler says what is its own; [`complete`] adds what every operation has: the statuses that the
//! layers around it can answer, the form of errors, the headers. Nothing is written down twice.

mod failures;
mod headers;
mod links;

use axum::{Router, http::header, routing::get};
use utoipa::{
    OpenApi, PartialSchema, ToSchema,
    openapi::{
        Components, ContentBuilder, OpenApi as Document, Ref, RefOr, Required, Response, Schema,
        Server, Type,
        extensions::Extensions,
        path::{Operation, ParameterBuilder, ParameterIn, PathItem},
        schema::SchemaType,
        security::{
            ApiKey, ApiKeyValue, ClientCredentials, Flow, Http, HttpAuthScheme, OAuth2, Scopes,
            SecurityRequirement, SecurityScheme,
        },
    },
};

use self::failures::{
    ALWAYS, CommonError, OF_A_CALLER, OF_AN_ADDRESS, WITH_BODY, WITH_IDEMPOTENCY_KEY,
};
use super::{
    problem::{Problem, Violation},
    state::Links,
};
use crate::domain::caller::Scope;

/// Where the API lies.
pub const BASE: &str = "/api/v3";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Pet inventory",
        description = "Keeps a store's pets, orders and users: the Petstore v3 interface, on PostgreSQL.\n\n\
            Send an API key in the header `api_key`, or as `Authorization: Bearer …`. \
            Every error is `application/problem+json` (RFC 9457) and also has Petstore's `code` and `message`.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    tags(
        (name = "pet", description = "The pets of the store."),
        (name = "store", description = "Orders for them, and how many there are."),
        (name = "user", description = "Accounts of people, and their sessions."),
        (name = "limits", description = "What a plan admits."),
        (name = "oauth", description = "Access tokens for clients."),
    ),
)]
struct Base;

/// The document to which the nouns add their operations.
#[must_use]
pub fn base() -> Document {
    Base::openapi()
}

/// Puts the document together: the operations of the API, those of it that are `open` to strangers within the
/// limits of an address, those that lie `beside` it, and what all have in common.
#[must_use]
pub fn complete(
    mut document: Document,
    mut open: Document,
    mut beside: Document,
    links: &Links,
) -> Document {
    document.servers = Some(vec![server(links, BASE)]);
    for item in beside.paths.paths.values_mut() {
        item.servers = Some(vec![server(links, "/")]);
        for (_, operation) in operations(item) {
            if operation.request_body.is_some() {
                complete_operation(operation, &[&ALWAYS, &OF_AN_ADDRESS, &WITH_BODY]);
            } else {
                // What is only read there is the same for everybody.
                complete_operation(operation, &[&ALWAYS]);
            }
            // Another media type is an `invalid_request` there (RFC 6749 §5.2).
            operation.responses.responses.remove("415");
        }
    }
    for item in open.paths.paths.values_mut() {
        for (method, operation) in operations(item) {
            let mut common: Vec<&[CommonError]> = vec![&ALWAYS, &OF_AN_ADDRESS];
            if operation.request_body.is_some() {
                common.push(&WITH_BODY);
            }
            // What makes nothing but a session is not kept: its answer is a secret.
            if method == "post" && operation.responses.responses.contains_key("201") {
                add_idempotency_key(operation);
                common.push(&WITH_IDEMPOTENCY_KEY);
            }
            complete_operation(operation, &common);
        }
    }
    for item in document.paths.paths.values_mut() {
        for (method, operation) in operations(item) {
            let mut common: Vec<&[CommonError]> = vec![&ALWAYS];
            if add_token_flow(operation) {
                for response in operation.responses.responses.values_mut() {
                    if let RefOr::T(response) = response {
                        headers::add_limits(response);
                    }
                }
                common.push(&OF_A_CALLER);
            }
            if operation.request_body.is_some() {
                common.push(&WITH_BODY);
            }
            if method == "post" {
                add_idempotency_key(operation);
                common.push(&WITH_IDEMPOTENCY_KEY);
            }
            complete_operation(operation, &common);
        }
    }
    document.merge(open);
    document.merge(beside);
    links::add(&mut document);

    let components = document.components.get_or_insert_default();
    headers::add_components(components);
    for (name, schema) in [
        (Problem::name(), Problem::schema()),
        (Violation::name(), Violation::schema()),
    ] {
        components.schemas.insert(name.into_owned(), schema);
    }
    let every: [&[CommonError]; 5] = [
        &ALWAYS,
        &OF_A_CALLER,
        &OF_AN_ADDRESS,
        &WITH_BODY,
        &WITH_IDEMPOTENCY_KEY,
    ];
    for (status, name, description) in every.into_iter().flatten() {
        let mut response = Response::new(*description);
        complete_response(status, &mut response);
        // Who it is that asks is not known yet, or not at all.
        if ![
            "UriTooLong",
            "HeadTooLarge",
            "Unauthenticated",
            "TooManyFromAddress",
        ]
        .contains(name)
        {
            headers::add_limits(&mut response);
        }
        headers::bound(&mut response);
        components
            .responses
            .insert((*name).to_owned(), response.into());
    }
    add_security_schemes(components, links);
    document
}

/// Where operations lie; for clients, not for the operator alone.
fn server(links: &Links, path: &str) -> Server {
    let mut server = Server::new(links.url(path));
    server.extensions = Some(Extensions::builder().add("x-internal", false).build());
    server
}

fn add_security_schemes(components: &mut Components, links: &Links) {
    let api_key = ApiKeyValue::with_description("api_key", "An API key.");
    components.add_security_scheme("api_key", SecurityScheme::ApiKey(ApiKey::Header(api_key)));
    let mut bearer = Http::new(HttpAuthScheme::Bearer);
    bearer.description = Some(
        "An access token, a session of a user, an API key, or a JWT of an issuer that the operator trusts (RFC 6750), \
             checked as RFC8725 asks: by a fixed algorithm, and for its issuer, audience and time."
            .into(),
    );
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    let mut client = Http::new(HttpAuthScheme::Basic);
    client.description = Some(
        "A client's name and secret (RFC 6749 §2.3.1); they may stand in the form, too.".into(),
    );
    components.add_security_scheme("client", SecurityScheme::Http(client));
    let scopes = Scopes::from_iter(Scope::ALL.map(|scope| (scope.as_str(), scope.description())));
    let flow = ClientCredentials::new(links.url("/oauth/token"), scopes);
    let oauth = OAuth2::with_description(
        [Flow::ClientCredentials(flow)],
        "An access token for a client (RFC 6749 §4.4). Ours are opaque; another issuer's, which are JWTs, are checked as \
         RFC8725 asks.",
    );
    components.add_security_scheme("oauth2", SecurityScheme::OAuth2(oauth));
}

/// Whoever may send a bearer token may get it by the client credentials flow. `false`: nobody needs one.
fn add_token_flow(operation: &mut Operation) -> bool {
    let ways = operation.security.get_or_insert_default();
    let scopes = ways.iter().find_map(|way| {
        let way = serde_json::to_value(way).ok()?;
        let scopes = way.get("bearer")?.as_array()?.clone();
        Some(scopes)
    });
    let Some(scopes) = scopes else {
        return false;
    };
    let scopes: Vec<&str> = scopes.iter().filter_map(|scope| scope.as_str()).collect();
    ways.push(SecurityRequirement::new("oauth2", scopes));
    true
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

fn complete_operation(operation: &mut Operation, common: &[&[CommonError]]) {
    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(parameter) = parameter {
            parameter.schema = parameter.schema.take().map(without_null);
            headers::bound_parameter(parameter);
        }
    }
    if let Some(RefOr::T(body)) = &mut operation.request_body {
        for content in body.content.values_mut() {
            if let RefOr::T(content) = content {
                content.schema = content.schema.take().map(without_null);
            }
        }
    }
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response {
            complete_response(status, response);
            headers::bound(response);
        }
    }
    for (status, name, _) in common.iter().copied().flatten() {
        operation
            .responses
            .responses
            .entry((*status).to_owned())
            .or_insert_with(|| RefOr::Ref(Ref::from_response_name(*name)));
    }
}

fn add_idempotency_key(operation: &mut Operation) {
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            headers::add_common(response, "Idempotent-Replayed");
        }
    }
    let key = ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "Any 1–255 characters of the client's, bare or in double quotes. The first answer is \
             kept for 24 hours and given again to the same request with the same key.",
        ))
        .build();
    operation
        .parameters
        .get_or_insert_default()
        .push(key.into());
}

/// A parameter or body that is optional may be left out; it is never null, as the type of an `Option` says.
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
        RefOr::T(Schema::OneOf(mut one_of)) => match (one_of.items.pop(), one_of.items.pop()) {
            // The type of an `Option` lists null last.
            (Some(_null), Some(only)) if one_of.items.is_empty() => only,
            (last, before) => {
                one_of.items.extend(before.into_iter().chain(last));
                RefOr::T(Schema::OneOf(one_of))
            }
        },
        other => other,
    }
}

/// Adds the fields that go with a status, and, to an error, its form.
fn complete_response(status: &str, response: &mut Response) {
    headers::add_common(response, "X-Request-Id");
    let more = match status {
        "401" | "403" => Some(("WWW-Authenticate", "How to authenticate (RFC 6750 §3).")),
        "409" => Some((
            "Retry-After",
            "Seconds until another try is worth it, when the key is in use.",
        )),
        "429" => Some(("Retry-After", "Seconds until the request is admitted.")),
        "415" => {
            let description = "`identity`, when the body was encoded.";
            headers::add(response, "Accept-Encoding", description);
            Some(("Accept", "Media types that are accepted."))
        }
        "503" => Some(("Retry-After", "Seconds until another try is worth it.")),
        _ => None,
    };
    if let Some((name, description)) = more {
        headers::add(response, name, description);
    }
    // Some errors have the form of their own RFC.
    if status.starts_with(['4', '5']) && response.content.is_empty() {
        let problem = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name(Problem::name())))
            .build();
        response
            .content
            .insert(Problem::MEDIA_TYPE.to_owned(), problem.into());
    }
}

/// `/api/v3/openapi.json`, without a credential.
pub fn router<S: Clone + Send + Sync + 'static>(
    document: &Document,
) -> Result<Router<S>, serde_json::Error> {
    let json: axum::body::Bytes = serde_json::to_vec(document)?.into();
    let answer = async || ([(header::CONTENT_TYPE, "application/json")], json);
    Ok(Router::new().route(&format!("{BASE}/openapi.json"), get(answer)))
}
