//! Generates the OpenAPI 3.1 document from the handlers.
//!
//! A handler documents what is specific to it. [`complete`] adds what all operations share: the statuses of the
//! layers, the schema of errors, the headers, the parameters in the path, the ways to send a token. Parameters and
//! headers that several operations have are among the [`components`]: a handler only names them, which makes them
//! references. A shared parameter also adds the errors that it causes.

mod components;
mod links;
pub mod serve;
pub mod version_3_0;

use std::collections::BTreeMap;

use axum::http::{Method, StatusCode};
use serde_json::json;
use utoipa::{
    OpenApi, PartialSchema, ToSchema,
    openapi::{
        Components, Contact, ContentBuilder, Object, OpenApi as Document, Ref, RefOr, Required,
        Response, Schema, Server, Type,
        extensions::Extensions,
        path::{Operation, Parameter, ParameterIn, PathItem},
        schema::SchemaType,
        security::{
            ApiKey, ApiKeyValue, ClientCredentials, Flow, Http, HttpAuthScheme, OAuth2, Scopes,
            SecurityRequirement, SecurityScheme,
        },
    },
};

use self::components::{
    ERRORS, LIMIT_HEADERS, SharedError, add_headers, errors_of, header, reference,
};
use super::{
    operations::{BASE, Facts, Keys, Operations, RequestLimit},
    problem::{Problem, Violation},
    state::Links,
};
use crate::domain::caller::Scope;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Pet inventory",
        description = "Manages the pets, orders and users of a pet store: the Petstore v3 interface, on PostgreSQL.\n\n\
            Send an API key in the header `api_key`, or as `Authorization: Bearer …`. \
            Every error is `application/problem+json` (RFC 9457) and also has Petstore's `code` and `message`.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    external_docs(url = "https://petstore3.swagger.io", description = "Petstore v3, the interface that this service implements."),
    tags(
        (name = "pet", description = "The pets of the store."),
        (name = "store", description = "Orders for pets, and the inventory."),
        (name = "user", description = "User accounts and their sessions."),
        (name = "limits", description = "Limits of a caller's plan."),
        (name = "changes", description = "Record of changes."),
        (name = "admin", description = "Callers, their keys and clients, and login sessions, for administrators."),
        (name = "oauth", description = "Access tokens for clients."),
    ),
)]
struct Base;

/// Returns the document that the resources add their operations to.
pub fn base() -> Document {
    Base::openapi()
}

/// Completes the document of the operations with what they share.
pub fn complete(all: &Operations, links: &Links) -> Document {
    let mut document = all.document();
    let contact = Contact::builder().name(Some("Operator of this service"));
    // Generators refuse a relative URL.
    let home = Some(links.url("/")).filter(|url| !url.starts_with('/'));
    document.info.contact = Some(contact.url(home).build());
    document.servers = Some(vec![server(links, BASE)]);
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in operations(item) {
            let facts = all.facts(path, &method);
            complete_operation(path, operation, facts);
        }
    }
    let items = document.paths.paths.values_mut();
    links::add(items.flat_map(operations).map(|(_, operation)| operation));

    let components = document.components.get_or_insert_default();
    components::add(components);
    let schemas = &mut components.schemas;
    merge_combined(schemas);
    // Nothing else refers to these parts of others.
    schemas.retain(|name, _| !["OrderDetails", "PetDetails", "Profile"].contains(&name.as_str()));
    // Bytes are no form. openapi-generator (typescript-fetch) imports the module of a form that has another media type
    // beside it, and writes it only if there is a reference from elsewhere.
    if let Some(RefOr::T(Schema::Object(bytes))) = schemas.get_mut("ImageBytes") {
        let form = Ref::from_schema_name("ImageForm").ref_location;
        bytes.extensions = Some(Extensions::from_iter([("not", json!({"$ref": form}))]));
    }
    schemas.insert(Problem::name().into_owned(), Problem::schema());
    schemas.insert(Violation::name().into_owned(), Violation::schema());
    for error in ERRORS {
        let mut response = Response::new(error.description);
        match error.name {
            // Sent before the caller is known, or without one.
            "UriTooLong" | "HeadTooLarge" | "Unauthenticated" | "TooManyFromAddress" => {}
            _ => add_headers(&mut response, LIMIT_HEADERS),
        }
        // Of a POST, these are stored with its key and replayed.
        if ["400", "404", "412"].contains(&error.status) {
            add_headers(&mut response, &["Idempotent-Replayed"]);
        }
        complete_response(error.status, &mut response);
        let responses = &mut components.responses;
        responses.insert(error.name.to_owned(), response.into());
    }
    add_security_schemes(components, links);
    document
}

/// Replaces each schema that combines others by one object with all of their properties, of which the last of a name
/// counts. Generators drop operations whose combined schemas narrow a property.
fn merge_combined(schemas: &mut BTreeMap<String, RefOr<Schema>>) {
    let all = schemas.clone();
    for schema in schemas.values_mut() {
        let RefOr::T(Schema::AllOf(combined)) = schema else {
            continue;
        };
        let mut merged = Object::new();
        merged.description = combined.description.take();
        merged.example = combined.example.take();
        for part in &combined.items {
            let part = match part {
                RefOr::Ref(part) => all.get(part.ref_location.rsplit('/').next().unwrap_or("")),
                RefOr::T(_) => Some(part),
            };
            if let Some(RefOr::T(Schema::Object(part))) = part {
                merged.properties.extend(part.properties.clone());
                merged.required.extend(part.required.clone());
            }
        }
        *schema = merged.into();
    }
}

/// Returns the operations of a path, for the methods that this service uses.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Operation)> {
    [
        (Method::GET, &mut item.get),
        (Method::POST, &mut item.post),
        (Method::PUT, &mut item.put),
        (Method::PATCH, &mut item.patch),
        (Method::DELETE, &mut item.delete),
    ]
    .into_iter()
    .filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

/// Returns the responses that the handler declares.
fn responses(operation: &mut Operation) -> impl Iterator<Item = &mut Response> {
    let responses = operation.responses.responses.values_mut();
    responses.filter_map(|response| match response {
        RefOr::T(response) => Some(response),
        RefOr::Ref(_) => None,
    })
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
             JWTs are validated as RFC8725 requires: fixed algorithms, issuer, audience and validity period; at most 8 KiB."
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

/// Adds the other ways to send a credential to an operation that takes bearer tokens. Returns false if it takes none.
fn complete_security(operation: &mut Operation) -> bool {
    let scopes = operation.security.iter().flatten().find_map(|way| {
        let way = serde_json::to_value(way).ok()?;
        Some(way.get("bearer")?.as_array()?.clone())
    });
    let Some(scopes) = scopes else {
        return false;
    };
    let scopes: Vec<&str> = scopes.iter().filter_map(|scope| scope.as_str()).collect();
    let ways = ["api_key", "bearer", "oauth2"];
    let ways = ways.map(|way| SecurityRequirement::new(way, scopes.clone()));
    operation.security = Some(ways.into());
    true
}

/// Completes an operation.
fn complete_operation(path: &str, operation: &mut Operation, facts: Facts) {
    // Tools that show models an operation show the description, not the summary.
    if let Some(summary) = &operation.summary {
        let more = operation.description.take().unwrap_or_default();
        operation.description = Some(format!("{summary}. {more}").trim_end().to_owned());
    }
    let needs_caller = complete_security(operation);
    if needs_caller {
        responses(operation).for_each(|response| add_headers(response, LIMIT_HEADERS));
    }
    let limit = match facts.limit {
        _ if needs_caller => "caller",
        RequestLimit::Address => "address",
        _ => "none",
    };
    let mut common: Vec<&SharedError> = errors_of("always").chain(errors_of(limit)).collect();
    let in_path = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<RefOr<Parameter>> =
        in_path.map(|name| Parameter::new(name).into()).collect();
    parameters.extend(operation.parameters.take().into_iter().flatten());
    if !matches!(facts.keys, Keys::Ignored | Keys::Refused) {
        parameters.push(Parameter::new("Idempotency-Key").into());
        for response in responses(operation) {
            add_headers(response, &["Idempotent-Replayed"]);
        }
        if let Some(RefOr::T(conflict)) = operation.responses.responses.get_mut("409") {
            add_retry_with_key(conflict);
        }
    }
    for parameter in &mut parameters {
        match parameter {
            RefOr::T(described) if described.description.is_some() => {
                described.schema.iter_mut().for_each(remove_null);
                if described.parameter_in == ParameterIn::Header {
                    described.schema = Some(components::schema(&described.name));
                } else if let Some(RefOr::T(Schema::Object(schema))) = &mut described.schema {
                    schema.examples.extend(components::example(&described.name));
                }
            }
            RefOr::T(Parameter { name, .. }) => {
                common.extend(errors_of(name));
                *parameter = reference("parameters", name);
            }
            RefOr::Ref(_) => {}
        }
    }
    operation.parameters = (!parameters.is_empty()).then_some(parameters);
    if let Some(RefOr::T(body)) = &mut operation.request_body {
        common.extend(errors_of("body"));
        // utoipa omits it if there are several media types. The query has the fields of the form, too.
        let is_optional = operation.operation_id.as_deref() == Some("updatePetWithForm");
        let required = if is_optional {
            Required::False
        } else {
            Required::True
        };
        body.required = Some(required);
        for content in body.content.values_mut() {
            if let RefOr::T(content) = content {
                content.schema.iter_mut().for_each(remove_null);
            }
        }
    }
    let responses = &mut operation.responses.responses;
    for (status, response) in &mut *responses {
        if let RefOr::T(response) = response {
            complete_response(status, response);
        }
    }
    // OAuth reports another media type as `invalid_request` (RFC 6749 §5.2).
    let is_oauth = facts.is_at_root;
    for error in common {
        if is_oauth && error.status == "415" {
            continue;
        }
        let response = responses.entry(error.status.to_owned());
        response.or_insert_with(|| reference("responses", error.name));
    }
}

fn add_retry_with_key(response: &mut Response) {
    let description = "Seconds to wait before a retry, if the `Idempotency-Key` is in use.";
    add_header(response, "Retry-After", description);
}

fn add_header(response: &mut Response, name: &str, description: &str) {
    let header = header(name, description).into();
    response.headers.insert(name.to_owned(), header);
}

/// Removes `null` from the schema of an optional parameter or body, which utoipa derives from `Option`: it may be
/// absent, but never null.
fn remove_null(schema: &mut RefOr<Schema>) {
    match schema {
        RefOr::T(Schema::Object(object)) => {
            if let SchemaType::Array(types) = &mut object.schema_type {
                types.retain(|kind| *kind != Type::Null);
                if let [only] = types.as_slice() {
                    object.schema_type = SchemaType::Type(only.clone());
                }
            }
        }
        // The schema of an `Option` lists null last.
        RefOr::T(Schema::OneOf(one_of)) if one_of.items.len() == 2 => {
            *schema = one_of.items.swap_remove(0);
        }
        _ => {}
    }
}

/// Adds the headers of a status and, to an error, its schema. Headers without a description become references.
fn complete_response(status: &str, response: &mut Response) {
    for (name, header) in &mut response.headers {
        match header {
            RefOr::T(described) if described.description.is_some() => {
                described.schema = Some(components::schema(name));
            }
            _ => *header = reference("headers", name),
        }
    }
    // hyper itself sends this one, without a body.
    if status == "431" {
        return;
    }
    add_headers(response, &["X-Request-Id"]);
    let more: &[_] = match status {
        "401" | "403" => &[(
            "WWW-Authenticate",
            "Authentication challenge (RFC 6750 §3).",
        )],
        "415" => &[
            ("Accept-Encoding", "`identity`, if the body was encoded."),
            ("Accept", "Accepted media types."),
            ("Accept-Patch", "Accepted media types of a PATCH."),
        ],
        "429" => &[("Retry-After", "Seconds until the request is admitted.")],
        "503" => &[("Retry-After", "Seconds to wait before a retry.")],
        _ => &[],
    };
    for (name, description) in more {
        add_header(response, name, description);
    }
    // Some errors have the format of another RFC; what is invalid for all operations, such as a condition, has this one.
    let is_error = status.starts_with(['4', '5']);
    if is_error && (response.content.is_empty() || status == "400") {
        let status = status.parse().unwrap_or(StatusCode::BAD_REQUEST);
        let example = Problem::new(status, &*response.description);
        let example = example.into_json("9f86d081884c7d659a2feaa0c55ad015");
        let problem = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name(Problem::name())))
            .example(serde_json::from_slice(&example).ok())
            .build();
        response
            .content
            .insert(Problem::MEDIA_TYPE.to_owned(), problem.into());
    }
}
