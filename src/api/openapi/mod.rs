//! Generates the OpenAPI 3.1 document from the handlers.
//!
//! A handler documents what is specific to it. [`complete`] adds what all operations share: the statuses of the
//! layers, the schema of errors, the headers. Parameters and headers that several operations have are described
//! once, among the components: a handler only names them, which makes them references. A shared parameter also adds the
//! errors that it causes.

mod failures;
mod headers;
mod links;
mod operations;
mod parameters;

use axum::{Router, http::header, routing::get};
use utoipa::{
    OpenApi, PartialSchema, ToSchema,
    openapi::{
        Components, ContentBuilder, OpenApi as Document, Ref, RefOr, Response, Schema, Server,
        Type,
        extensions::Extensions,
        path::{Operation, Parameter},
        schema::SchemaType,
        security::{
            ApiKey, ApiKeyValue, ClientCredentials, Flow, Http, HttpAuthScheme, OAuth2, Scopes,
            SecurityRequirement, SecurityScheme,
        },
    },
};

use self::{
    failures::{
        ALWAYS, CommonError, OF_A_CALLER, OF_AN_ADDRESS, WITH_BODY, WITH_IDEMPOTENCY_KEY,
        WITH_PARAMETER,
    },
    operations::operations,
};
use super::{
    problem::{Problem, Violation},
    state::Links,
};
use crate::domain::caller::Scope;

/// Base path of the API.
pub const BASE: &str = "/api/v3";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Pet inventory",
        description = "Manages the pets, orders and users of a pet store: the Petstore v3 interface, on PostgreSQL.\n\n\
            Send an API key in the header `api_key`, or as `Authorization: Bearer …`. \
            Every error is `application/problem+json` (RFC 9457) and also has Petstore's `code` and `message`.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    tags(
        (name = "pet", description = "The pets of the store."),
        (name = "store", description = "Orders for pets, and the inventory."),
        (name = "user", description = "User accounts and their sessions."),
        (name = "limits", description = "Limits of a caller's plan."),
        (name = "oauth", description = "Access tokens for clients."),
    ),
)]
struct Base;

/// Returns the document that the resources add their operations to.
#[must_use]
pub fn base() -> Document {
    Base::openapi()
}

/// Completes the document from the operations of the API, those that are `open` to unauthenticated clients within the
/// limits of an address, those outside the API's base path, and what they share.
#[must_use]
pub fn complete(
    mut document: Document,
    mut open: Document,
    mut outside_base: Document,
    links: &Links,
) -> Document {
    document.servers = Some(vec![server(links, BASE)]);
    for item in outside_base.paths.paths.values_mut() {
        item.servers = Some(vec![server(links, "/")]);
        for (_, operation) in operations(item) {
            if operation.request_body.is_some() {
                complete_operation(operation, &[&ALWAYS, &OF_AN_ADDRESS, &WITH_BODY]);
            } else {
                // Operations without a body there only read, and have no limit.
                complete_operation(operation, &[&ALWAYS]);
            }
            // OAuth reports another media type as `invalid_request` (RFC 6749 §5.2).
            operation.responses.responses.remove("415");
        }
    }
    for item in open.paths.paths.values_mut() {
        for (method, operation) in operations(item) {
            let mut common: Vec<&[CommonError]> = vec![&ALWAYS, &OF_AN_ADDRESS];
            if operation.request_body.is_some() {
                common.push(&WITH_BODY);
            }
            // The response to a login is a secret and is not stored.
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
    document.merge(outside_base);
    links::add(&mut document);

    let components = document.components.get_or_insert_default();
    headers::add_components(components);
    parameters::add_components(components);
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
    let by_parameter = WITH_PARAMETER.iter().map(|(_, errors)| *errors);
    for (status, name, description) in every.into_iter().chain(by_parameter).flatten() {
        let mut response = Response::new(*description);
        complete_response(status, &mut response);
        // No limit headers on errors that are sent before the caller is known, or without one.
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
        // Of a POST, these are stored with its key and replayed.
        if ["NoSuchPet", "PreconditionFailed"].contains(name) {
            headers::add_common(&mut response, "Idempotent-Replayed");
        }
        headers::complete(&mut response);
        components
            .responses
            .insert((*name).to_owned(), response.into());
    }
    add_security_schemes(components, links);
    document
}

/// Returns the server of operations, marked as public.
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
        "An access token, the token of a user session, an API key, or a JWT of a trusted issuer (RFC 6750). \
             JWTs are validated as RFC8725 requires: fixed algorithms, issuer, audience and validity period."
            .into(),
    );
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    let mut client = Http::new(HttpAuthScheme::Basic);
    client.description = Some(
        "Client identifier and secret (RFC 6749 §2.3.1), which can also be sent in the form."
            .into(),
    );
    components.add_security_scheme("client", SecurityScheme::Http(client));
    let scopes = Scopes::from_iter(Scope::ALL.map(|scope| (scope.as_str(), scope.description())));
    let flow = ClientCredentials::new(links.url("/oauth/token"), scopes);
    let oauth = OAuth2::with_description(
        [Flow::ClientCredentials(flow)],
        "An access token for a client (RFC 6749 §4.4). Tokens of this service are opaque; JWTs of trusted issuers are \
         validated as RFC8725 requires.",
    );
    components.add_security_scheme("oauth2", SecurityScheme::OAuth2(oauth));
}

/// Adds the client credentials flow to an operation that takes bearer tokens. Returns false if it takes none.
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

fn complete_operation(operation: &mut Operation, common: &[&[CommonError]]) {
    let mut common = common.to_vec();
    for parameter in operation.parameters.iter_mut().flatten() {
        match parameter {
            RefOr::T(described) if described.description.is_some() => {
                described.schema = described.schema.take().map(without_null);
                headers::complete_parameter(described);
            }
            RefOr::T(Parameter { name, .. }) => {
                let errors = WITH_PARAMETER
                    .iter()
                    .filter(|(cause, _)| *cause == name.as_str());
                common.extend(errors.map(|(_, errors)| *errors));
                *parameter = parameters::reference(name);
            }
            RefOr::Ref(_) => {}
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
            headers::complete(response);
        }
    }
    for (status, name, _) in common.into_iter().flatten() {
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
    operation
        .parameters
        .get_or_insert_default()
        .push(parameters::reference("Idempotency-Key"));
}

/// Removes `null` from the schema of an optional parameter or body, which utoipa derives from `Option`: it may be
/// absent, but never null.
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
            // The schema of an `Option` lists null last.
            (Some(_null), Some(only)) if one_of.items.is_empty() => only,
            (last, before) => {
                one_of.items.extend(before.into_iter().chain(last));
                RefOr::T(Schema::OneOf(one_of))
            }
        },
        other => other,
    }
}

/// Adds the headers of a status and, to an error, its schema.
fn complete_response(status: &str, response: &mut Response) {
    // hyper itself sends this one, without a body.
    if status == "431" {
        return;
    }
    headers::add_common(response, "X-Request-Id");
    let more = match status {
        "401" | "403" => Some((
            "WWW-Authenticate",
            "Authentication challenge (RFC 6750 §3).",
        )),
        "409" => Some((
            "Retry-After",
            "Seconds to wait before a retry, if the `Idempotency-Key` is in use.",
        )),
        "429" => Some(("Retry-After", "Seconds until the request is admitted.")),
        "415" => {
            let description = "`identity`, if the body was encoded.";
            headers::add(response, "Accept-Encoding", description);
            Some(("Accept", "Accepted media types."))
        }
        "503" => Some(("Retry-After", "Seconds to wait before a retry.")),
        _ => None,
    };
    if let Some((name, description)) = more {
        headers::add(response, name, description);
    }
    // Some errors have the format of another RFC.
    if status.starts_with(['4', '5']) && response.content.is_empty() {
        let problem = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name(Problem::name())))
            .build();
        response
            .content
            .insert(Problem::MEDIA_TYPE.to_owned(), problem.into());
    }
}

/// Returns the router of `/api/v3/openapi.json`, which needs no credential.
pub fn router<S: Clone + Send + Sync + 'static>(
    document: &Document,
) -> Result<Router<S>, serde_json::Error> {
    let json: axum::body::Bytes = serde_json::to_vec(document)?.into();
    let respond = async || ([(header::CONTENT_TYPE, "application/json")], json);
    Ok(Router::new().route(&format!("{BASE}/openapi.json"), get(respond)))
}
