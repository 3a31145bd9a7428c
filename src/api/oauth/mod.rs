//! `/oauth`: issues, revokes and introspects access tokens by the OAuth 2.0 RFCs.
//!
//! Invariant: errors have the form of RFC 6749 §5.2, which OAuth libraries expect.

mod client;
mod errors;

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::{
    ToSchema,
    openapi::{Components, OpenApi},
};
use utoipa_axum::routes;

use self::{
    client::{ClientRequest, once},
    errors::{ErrorBody, ErrorResponses},
};
use super::{
    error::{Error, NO_STORE},
    extract::{Host, Parameters},
    operations::{Facts, Operations},
    response::json,
    state::{Links, TokenLifetime},
};
use crate::{auth::oauth, db::Database, domain::caller::Scope};

/// Returns the operations. They are at the paths of the RFCs, too.
pub fn router() -> Operations {
    let open = Facts {
        is_at_root: true,
        ..Facts::OPEN
    };
    // utoipa does not collect the schemas of `ErrorResponses`.
    let components = Components::builder().schema_from::<ErrorBody>().build();
    let document = OpenApi::builder().components(Some(components)).build();
    Operations::with_document(document)
        .routes_with(open, routes!(token))
        .routes_with(open, routes!(revoke))
        .routes_with(open, routes!(introspect))
        .routes_with(open, routes!(metadata))
}

/// Access token (RFC 6749 §5.1).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AccessToken, example = json!({
    "access_token": "pia_0123456789ABCDEFGHIJabcdefghij01234567",
    "token_type": "Bearer",
    "expires_in": 3600,
    "scope": "read:pets"
}))]
struct TokenBody<'a> {
    /// Token to send as `Authorization: Bearer …`.
    #[schema(min_length = 42, max_length = 42, pattern = "^pia_[0-9A-Za-z]{38}$")]
    access_token: &'a str,
    /// Always `Bearer`.
    #[schema(max_length = 6, pattern = "^Bearer$")]
    token_type: &'static str,
    /// Lifetime in seconds.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    expires_in: u64,
    /// Granted scopes, separated by spaces.
    #[schema(
        max_length = 1_024,
        pattern = r"^(read:pets|write:pets|read:orders|write:orders|read:changes|admin)( (read:pets|write:pets|read:orders|write:orders|read:changes|admin))*$"
    )]
    scope: String,
}

/// Token request (RFC 6749 §4.4.2). Empty parameters count as missing (§3.2).
#[derive(ToSchema)]
#[schema(example = json!({"grant_type": "client_credentials", "scope": "read:pets"}))]
#[expect(dead_code, reason = "describes the form, which is read as parameters")]
struct TokenRequest {
    /// Always `client_credentials`.
    #[schema(
        example = "client_credentials",
        max_length = 18,
        pattern = "^client_credentials$"
    )]
    grant_type: String,
    /// Requested scopes, separated by spaces. Without it, all scopes of the client.
    #[schema(
        nullable = false,
        max_length = 1_024,
        pattern = r"^((read:pets|write:pets|read:orders|write:orders|read:changes|admin)( (read:pets|write:pets|read:orders|write:orders|read:changes|admin))*)?$"
    )]
    scope: Option<String>,
    /// Client identifier, unless sent by HTTP Basic.
    #[schema(nullable = false)]
    #[schema(max_length = 24, pattern = "^(pic_[0-9A-Za-z]{20})?$")]
    client_id: Option<String>,
    /// Client secret, unless sent by HTTP Basic.
    #[schema(nullable = false, format = Password, max_length = 42, pattern = "^(pcs_[0-9A-Za-z]{38})?$")]
    client_secret: Option<String>,
}

/// Reference to a token (RFC 7009 §2.1, RFC 7662 §2.1).
#[derive(ToSchema)]
#[schema(example = json!({"token": "pia_0123456789ABCDEFGHIJabcdefghij01234567"}))]
#[expect(dead_code, reason = "describes the form, which is read as parameters")]
struct TokenReference {
    /// Token. Malformed text counts as an invalid token.
    #[schema(format = Password, min_length = 1, max_length = 1_048_576)]
    token: String,
    /// Ignored: the token itself shows its type.
    #[schema(nullable = false, max_length = 1_048_576)]
    token_type_hint: Option<String>,
    /// Client identifier, unless sent by HTTP Basic.
    #[schema(nullable = false)]
    #[schema(max_length = 24, pattern = "^(pic_[0-9A-Za-z]{20})?$")]
    client_id: Option<String>,
    /// Client secret, unless sent by HTTP Basic.
    #[schema(nullable = false, format = Password, max_length = 42, pattern = "^(pcs_[0-9A-Za-z]{38})?$")]
    client_secret: Option<String>,
}

/// Get an access token
///
/// Client credentials grant (RFC 6749 §4.4). The client sends its identifier and secret by HTTP Basic or in the form.
#[utoipa::path(
    post, path = "/oauth/token", operation_id = "issueToken", tag = "oauth", security(("client" = []), ()),
    request_body(content = TokenRequest, content_type = "application/x-www-form-urlencoded"),
    responses((status = 200, description = "The access token.", body = TokenBody<'static>, headers(("Cache-Control"))), ErrorResponses),
)]
async fn token(
    State(database): State<Database>,
    State(TokenLifetime(lifetime)): State<TokenLifetime>,
    ClientRequest { client, form }: ClientRequest,
) -> Result<Response, Error> {
    match once(&form, "grant_type")? {
        Some("client_credentials") => {}
        Some(_) => {
            let description = "grant_type must be client_credentials";
            return Err(Error::OAuth("unsupported_grant_type", description));
        }
        None => return Err(Error::invalid_request("grant_type is required")),
    }
    let issued = oauth::issue(&database, &client, once(&form, "scope")?, lifetime).await?;
    let body = TokenBody {
        access_token: issued.token.expose(),
        token_type: "Bearer",
        expires_in: lifetime.as_secs(),
        scope: issued.scopes.to_string(),
    };
    Ok((NO_STORE, json(StatusCode::OK, &body)).into_response())
}

/// Revoke an access token
///
/// RFC 7009. A client can revoke its own tokens. A token that is no longer valid is not an error.
#[utoipa::path(
    post, path = "/oauth/revoke", operation_id = "revokeToken", tag = "oauth", security(("client" = []), ()),
    request_body(content = TokenReference, content_type = "application/x-www-form-urlencoded"),
    responses((status = 200, description = "The token is no longer valid."), ErrorResponses),
)]
async fn revoke(
    State(database): State<Database>,
    ClientRequest { client, form }: ClientRequest,
) -> Result<Response, Error> {
    oauth::revoke(&database, &client, named_token(&form)?).await?;
    Ok(([(header::CACHE_CONTROL, "no-store")]).into_response())
}

/// Token introspection (RFC 7662 §2.2).
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = Introspection, example = json!({
    "active": true,
    "scope": "read:pets",
    "client_id": "pic_0123456789ABCDEFGHIJ",
    "sub": "acme",
    "token_type": "Bearer",
    "exp": 1_769_860_800,
    "iat": 1_769_857_200
}))]
struct IntrospectionBody {
    /// True if the token is valid. If not, there are no other members.
    active: bool,
    /// Scopes, separated by spaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 255, pattern = "^[a-z: ]*$")]
    scope: Option<String>,
    /// Identifier of the client that the token was issued to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 24, pattern = "^pic_[0-9A-Za-z]{20}$")]
    client_id: Option<String>,
    /// Name of the token's caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 512, pattern = r"^[^\x00]*$")]
    sub: Option<String>,
    /// Always `Bearer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = String, max_length = 6, pattern = "^Bearer$")]
    token_type: Option<&'static str>,
    /// Expiry time, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    exp: Option<i64>,
    /// Issue time, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    iat: Option<i64>,
}

/// Introspect a token
///
/// RFC 7662. A client can introspect API keys and tokens of its own caller or, with the scope `admin`, of all callers.
#[utoipa::path(
    post, path = "/oauth/introspect", operation_id = "introspectToken", tag = "oauth", security(("client" = []), ()),
    request_body(content = TokenReference, content_type = "application/x-www-form-urlencoded"),
    responses((status = 200, description = "State of the token.", body = IntrospectionBody, headers(("Cache-Control"))), ErrorResponses),
)]
async fn introspect(
    State(database): State<Database>,
    ClientRequest { client, form }: ClientRequest,
) -> Result<Response, Error> {
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
    Ok((NO_STORE, json(StatusCode::OK, &body)).into_response())
}

/// Authorization server metadata (RFC 8414 §2).
#[derive(ToSchema, Serialize)]
#[schema(as = OAuthMetadata, example = json!({
    "issuer": "https://pets.example.com",
    "token_endpoint": "https://pets.example.com/oauth/token",
    "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
    "revocation_endpoint": "https://pets.example.com/oauth/revoke",
    "revocation_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
    "introspection_endpoint": "https://pets.example.com/oauth/introspect",
    "introspection_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
    "grant_types_supported": ["client_credentials"],
    "response_types_supported": [],
    "scopes_supported": ["read:pets", "write:pets", "read:orders", "write:orders", "read:changes", "admin"],
    "service_documentation": "https://pets.example.com/docs/"
}))]
struct MetadataBody {
    /// Issuer of the tokens.
    #[schema(format = "uri", max_length = 2_048)]
    issuer: String,
    /// URL to get tokens from.
    #[schema(format = "uri", max_length = 2_048)]
    token_endpoint: String,
    /// Client authentication methods of the token endpoint.
    #[schema(value_type = Vec<Word>, inline, max_items = 8)]
    token_endpoint_auth_methods_supported: [&'static str; 2],
    /// URL to revoke tokens at.
    #[schema(format = "uri", max_length = 2_048)]
    revocation_endpoint: String,
    /// Client authentication methods of the revocation endpoint.
    #[schema(value_type = Vec<Word>, inline, max_items = 8)]
    revocation_endpoint_auth_methods_supported: [&'static str; 2],
    /// URL to introspect tokens at.
    #[schema(format = "uri", max_length = 2_048)]
    introspection_endpoint: String,
    /// Client authentication methods of the introspection endpoint.
    #[schema(value_type = Vec<Word>, inline, max_items = 8)]
    introspection_endpoint_auth_methods_supported: [&'static str; 2],
    /// Supported grant types.
    #[schema(value_type = Vec<Word>, inline, max_items = 8)]
    grant_types_supported: [&'static str; 1],
    /// Empty: there is no authorization endpoint.
    #[schema(value_type = Vec<Word>, inline, max_items = 8)]
    response_types_supported: [&'static str; 0],
    /// Supported scopes.
    #[schema(value_type = Vec<Word>, inline, max_items = 8)]
    scopes_supported: [&'static str; Scope::ALL.len()],
    /// URL of the documentation for people.
    #[schema(format = "uri", max_length = 2_048)]
    service_documentation: String,
}

/// Name that an RFC or this service defines.
#[derive(ToSchema)]
#[schema(value_type = String, max_length = 32, pattern = "^[a-z_:]+$")]
#[expect(dead_code, reason = "describes what is written as text")]
struct Word(String);

/// Get the authorization server metadata
///
/// RFC 8414. Lists the OAuth endpoints and their capabilities.
#[utoipa::path(
    get, path = "/.well-known/oauth-authorization-server", operation_id = "getOAuthMetadata",
    tag = "oauth", security(()),
    responses((status = 200, description = "The metadata.", body = MetadataBody)),
)]
async fn metadata(State(links): State<Links>, Host(host): Host) -> Result<Response, Error> {
    let url = |path: &str| links.absolute_url(path, &host);
    let ways = ["client_secret_basic", "client_secret_post"];
    let body = MetadataBody {
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
    };
    json(StatusCode::OK, &body)
}

fn named_token(form: &Parameters) -> Result<&str, Error> {
    once(form, "token")?.ok_or(Error::invalid_request("token is required"))
}
