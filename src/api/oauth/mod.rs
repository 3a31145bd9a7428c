//! `/oauth`: tokens for clients, by the RFCs, so that any OAuth 2.0 library can get one. Errors have the
//! form of RFC 6749 §5.2 here, where those libraries look for them.

mod client;
mod error;

use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use self::{
    client::{ClientRequest, once},
    error::{ErrorBody, OAuthError},
};
use super::{
    error::Error,
    extract::{Host, Parameters},
    state::{AppState, Links, TokenLifetime},
};
use crate::{auth::oauth, db::Database, domain::caller::Scope};

/// The operations; they lie beside the API, not below it.
pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(token))
        .routes(routes!(revoke))
        .routes(routes!(introspect))
        .routes(routes!(metadata))
}

/// An access token (RFC 6749 §5.1).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AccessToken)]
struct TokenBody<'a> {
    /// Sent as `Authorization: Bearer …`.
    #[schema(min_length = 42, max_length = 42, pattern = "^pia_[0-9A-Za-z]{38}$")]
    access_token: &'a str,
    /// `Bearer`.
    #[schema(max_length = 6, pattern = "^Bearer$")]
    token_type: &'static str,
    /// How long it lasts, in seconds.
    #[schema(minimum = 1, maximum = 9_223_372_036_854_775_807_i64)]
    expires_in: u64,
    /// What it may do, separated by spaces.
    #[schema(
        max_length = 1_024,
        pattern = r"^(read:pets|write:pets|read:orders|write:orders|admin)( (read:pets|write:pets|read:orders|write:orders|admin))*$"
    )]
    scope: String,
}

/// Asks for a token (RFC 6749 §4.4.2). What is empty is as good as left out (§3.2).
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes the form, which is read as parameters")]
struct TokenRequest {
    /// `client_credentials`.
    #[schema(max_length = 18, pattern = "^client_credentials$")]
    grant_type: String,
    /// Scopes, separated by spaces; without it, all that the client has.
    #[schema(
        nullable = false,
        max_length = 1_024,
        pattern = r"^((read:pets|write:pets|read:orders|write:orders|admin)( (read:pets|write:pets|read:orders|write:orders|admin))*)?$"
    )]
    scope: Option<String>,
    /// The client's name, unless it is sent by HTTP Basic.
    #[schema(
        nullable = false,
        max_length = 24,
        pattern = "^(pic_[0-9A-Za-z]{20})?$"
    )]
    client_id: Option<String>,
    /// The client's secret, unless it is sent by HTTP Basic.
    #[schema(nullable = false, format = Password, max_length = 42, pattern = "^(pcs_[0-9A-Za-z]{38})?$")]
    client_secret: Option<String>,
}

/// Names a token (RFC 7009 §2.1, RFC 7662 §2.1).
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes the form, which is read as parameters")]
struct TokenReference {
    /// The token; what can be none is none.
    #[schema(format = Password, min_length = 1, max_length = 1_048_576)]
    token: String,
    /// Not needed: a token shows what it is.
    #[schema(nullable = false, max_length = 1_048_576)]
    token_type_hint: Option<String>,
    /// The client's name, unless it is sent by HTTP Basic.
    #[schema(
        nullable = false,
        max_length = 24,
        pattern = "^(pic_[0-9A-Za-z]{20})?$"
    )]
    client_id: Option<String>,
    /// The client's secret, unless it is sent by HTTP Basic.
    #[schema(nullable = false, format = Password, max_length = 42, pattern = "^(pcs_[0-9A-Za-z]{38})?$")]
    client_secret: Option<String>,
}

/// Get an access token
///
/// Client credentials (RFC 6749 §4.4). The client sends its name and secret by HTTP Basic or in the form.
#[utoipa::path(
    post, path = "/oauth/token", operation_id = "issueToken", tag = "oauth", security(("client" = []), ()),
    request_body(content = TokenRequest, content_type = "application/x-www-form-urlencoded"),
    responses(
        (status = 200, description = "A token.", body = TokenBody<'static>,
            headers(("Cache-Control" = String, description = "`no-store`."))),
        (status = 400, description = "The request cannot be met; `error` says why.", body = ErrorBody),
        (status = 401, description = "The client is unknown or its secret is wrong.", body = ErrorBody,
            headers(("WWW-Authenticate" = String, description = "How to authenticate."))),
    ),
)]
async fn token(
    State(database): State<Database>,
    State(TokenLifetime(lifetime)): State<TokenLifetime>,
    ClientRequest { client, form }: ClientRequest,
) -> Result<Response, OAuthError> {
    match once(&form, "grant_type")? {
        Some("client_credentials") => {}
        Some(_) => return Err(OAuthError::UnsupportedGrantType),
        None => return Err(OAuthError::InvalidRequest("grant_type is required")),
    }
    let issued = oauth::issue(&database, &client, once(&form, "scope")?, lifetime).await?;
    Ok(no_store(&TokenBody {
        access_token: issued.token.expose(),
        token_type: "Bearer",
        expires_in: issued.lifetime.as_secs(),
        scope: issued.scopes.to_string(),
    }))
}

/// Revoke an access token
///
/// RFC 7009. A client's own tokens; one that is no good any more is fine.
#[utoipa::path(
    post, path = "/oauth/revoke", operation_id = "revokeToken", tag = "oauth", security(("client" = []), ()),
    request_body(content = TokenReference, content_type = "application/x-www-form-urlencoded"),
    responses(
        (status = 200, description = "The token is good no more."),
        (status = 400, description = "The request cannot be met; `error` says why.", body = ErrorBody),
        (status = 401, description = "The client is unknown or its secret is wrong.", body = ErrorBody,
            headers(("WWW-Authenticate" = String, description = "How to authenticate."))),
    ),
)]
async fn revoke(
    State(database): State<Database>,
    ClientRequest { client, form }: ClientRequest,
) -> Result<Response, OAuthError> {
    oauth::revoke(&database, &client, named_token(&form)?).await?;
    Ok(([(header::CACHE_CONTROL, "no-store")]).into_response())
}

/// What a token is (RFC 7662 §2.2).
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = Introspection)]
struct IntrospectionBody {
    /// Whether it opens anything; if not, nothing more is said.
    active: bool,
    /// What it may do, separated by spaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 255, pattern = "^[a-z: ]*$")]
    scope: Option<String>,
    /// The client that it was given to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 24, pattern = "^pic_[0-9A-Za-z]{20}$")]
    client_id: Option<String>,
    /// The caller that it stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 512, pattern = r"^[^\x00]*$")]
    sub: Option<String>,
    /// `Bearer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = String, max_length = 6, pattern = "^Bearer$")]
    token_type: Option<&'static str>,
    /// When it ends, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 9_223_372_036_854_775_807_i64)]
    exp: Option<i64>,
    /// When it was made, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 9_223_372_036_854_775_807_i64)]
    iat: Option<i64>,
}

/// Ask what a token is
///
/// RFC 7662. A client may ask about its own caller's API keys and tokens, and with `admin` about all.
#[utoipa::path(
    post, path = "/oauth/introspect", operation_id = "introspectToken", tag = "oauth", security(("client" = []), ()),
    request_body(content = TokenReference, content_type = "application/x-www-form-urlencoded"),
    responses(
        (status = 200, description = "What it is.", body = IntrospectionBody,
            headers(("Cache-Control" = String, description = "`no-store`."))),
        (status = 400, description = "The request cannot be met; `error` says why.", body = ErrorBody),
        (status = 401, description = "The client is unknown or its secret is wrong.", body = ErrorBody,
            headers(("WWW-Authenticate" = String, description = "How to authenticate."))),
    ),
)]
async fn introspect(
    State(database): State<Database>,
    ClientRequest { client, form }: ClientRequest,
) -> Result<Response, OAuthError> {
    let token = oauth::introspect(&database, &client, named_token(&form)?).await?;
    let body = token.map_or_else(IntrospectionBody::default, |token| IntrospectionBody {
        active: true,
        scope: Some(token.scopes.to_string()),
        client_id: token.client_id,
        sub: Some(token.caller_name),
        token_type: Some("Bearer"),
        exp: token.expires_at.map(|at| at.timestamp()),
        iat: Some(token.created_at.timestamp()),
    });
    Ok(no_store(&body))
}

/// Authorization server metadata (RFC 8414 §2).
#[derive(ToSchema, Serialize)]
#[schema(as = OAuthMetadata)]
struct MetadataBody {
    /// Who gives the tokens.
    #[schema(format = "uri", max_length = 2_048)]
    issuer: String,
    /// Where they are.
    #[schema(format = "uri", max_length = 2_048)]
    token_endpoint: String,
    /// How a client may show who it is there.
    #[schema(value_type = Vec<Word>, inline, max_items = 8)]
    token_endpoint_auth_methods_supported: [&'static str; 2],
    /// Where they are revoked.
    #[schema(format = "uri", max_length = 2_048)]
    revocation_endpoint: String,
    /// How a client may show who it is there.
    #[schema(value_type = Vec<Word>, inline, max_items = 8)]
    revocation_endpoint_auth_methods_supported: [&'static str; 2],
    /// Where one can ask what they are.
    #[schema(format = "uri", max_length = 2_048)]
    introspection_endpoint: String,
    /// How a client may show who it is there.
    #[schema(value_type = Vec<Word>, inline, max_items = 8)]
    introspection_endpoint_auth_methods_supported: [&'static str; 2],
    /// How a client may get one.
    #[schema(value_type = Vec<Word>, inline, max_items = 8)]
    grant_types_supported: [&'static str; 1],
    /// None: nobody is sent to log in here.
    #[schema(value_type = Vec<Word>, inline, max_items = 8)]
    response_types_supported: [&'static str; 0],
    /// What a token may do.
    #[schema(value_type = Vec<Word>, inline, max_items = 8)]
    scopes_supported: [&'static str; Scope::ALL.len()],
    /// What people read.
    #[schema(format = "uri", max_length = 2_048)]
    service_documentation: String,
}

/// A name that an RFC, or this service, has for something.
#[derive(ToSchema)]
#[schema(value_type = String, max_length = 32, pattern = "^[a-z_:]+$")]
#[expect(dead_code, reason = "describes what is written as text")]
struct Word(String);

/// See where tokens come from
///
/// Authorization server metadata (RFC 8414).
#[utoipa::path(
    get, path = "/.well-known/oauth-authorization-server", operation_id = "getOAuthMetadata",
    tag = "oauth", security(()),
    responses((status = 200, description = "The metadata.", body = MetadataBody)),
)]
async fn metadata(State(links): State<Links>, Host(host): Host) -> Response {
    let url = |path: &str| links.absolute_url(path, &host);
    let ways = ["client_secret_basic", "client_secret_post"];
    json_response(&MetadataBody {
        issuer: url(""),
        token_endpoint: url("/oauth/token"),
        token_endpoint_auth_methods_supported: ways,
        revocation_endpoint: url("/oauth/revoke"),
        revocation_endpoint_auth_methods_supported: ways,
        introspection_endpoint: url("/oauth/introspect"),
        introspection_endpoint_auth_methods_supported: ways,
        grant_types_supported: ["client_credentials"],
        response_types_supported: [],
        scopes_supported: Scope::ALL.map(Scope::as_str),
        service_documentation: url("/docs/"),
    })
}

fn named_token(form: &Parameters) -> Result<&str, OAuthError> {
    once(form, "token")?.ok_or(OAuthError::InvalidRequest("token is required"))
}

fn json_response(body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => Error::Internal(error.into()).into_response(),
    }
}

fn no_store(body: &impl Serialize) -> Response {
    let mut response = json_response(body);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
    response
}
