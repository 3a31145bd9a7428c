//! Authenticates OAuth clients by identifier and secret.

use axum::{
    extract::{FromRef, FromRequest, Request},
    http::{HeaderMap, HeaderValue, header},
};
use base64::{Engine, prelude::BASE64_STANDARD};

use crate::{
    api::{
        error::Error,
        extract::{Form, Parameters},
        request_context::RequestContext,
        state::AppState,
    },
    auth::oauth,
    db::{Database, oauth::Client},
};

/// Form of an authenticated client (RFC 6749 §2.3.1).
pub struct ClientRequest {
    pub client: Client,
    pub form: Parameters,
}

impl FromRequest<AppState> for ClientRequest {
    type Rejection = Error;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Error> {
        let address = RequestContext::of(&request).client_address();
        let basic = basic_credentials(request.headers())?;
        let form = Form::from_request(request, state).await;
        let Form(form) = form.map_err(in_oauth)?;
        let posted = match (once(&form, "client_id")?, once(&form, "client_secret")?) {
            (Some(id), Some(secret)) => Some((id.to_owned(), secret.to_owned())),
            (Some(id), None) if basic.as_ref().is_some_and(|(known, _)| known == id) => None,
            (None, None) => None,
            _ => return Err(oauth::Error::InvalidClient.into()),
        };
        let (client_id, secret) = match (basic, posted) {
            (Some(_), Some(_)) => {
                let reason = "the client must use only one authentication method";
                return Err(Error::invalid_request(reason));
            }
            (one, other) => one.or(other).ok_or(oauth::Error::InvalidClient)?,
        };

        let limit = &state.failed_authentication;
        limit.check(address).map_err(Error::too_many_failures)?;
        let database = Database::from_ref(state);
        let client = oauth::authenticate_client(&database, &client_id, &secret).await;
        if let Err(oauth::Error::InvalidClient) = &client {
            limit.count(address);
        }
        let client = client?;
        Ok(Self { client, form })
    }
}

/// Returns the error of a form as OAuth reports it.
fn in_oauth(error: Error) -> Error {
    match error {
        Error::Invalid(_) => Error::invalid_request("the form is malformed"),
        Error::UnsupportedMediaType(_) => {
            Error::invalid_request("the body must be application/x-www-form-urlencoded")
        }
        Error::EncodedBody => {
            Error::invalid_request("the body must be sent without a Content-Encoding")
        }
        other => other,
    }
}

/// Returns the credentials of `Authorization: Basic`. Both parts are form-encoded before they are joined.
fn basic_credentials(headers: &HeaderMap) -> Result<Option<(String, String)>, Error> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (values.next(), values.next()) else {
        let reason = "Authorization must be given once";
        return Err(Error::invalid_request(reason));
    };
    let Some(value) = value else {
        return Ok(None);
    };
    Ok(Some(parse_basic(value).ok_or(oauth::Error::InvalidClient)?))
}

fn parse_basic(value: &HeaderValue) -> Option<(String, String)> {
    let (scheme, encoded) = value.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("Basic") {
        return None;
    }
    let decoded = String::from_utf8(BASE64_STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (id, secret) = decoded.split_once(':')?;
    Some((Parameters::decode(id)?, Parameters::decode(secret)?))
}

/// Returns a parameter that must not be repeated (RFC 6749 §3.2). An empty one counts as missing.
pub fn once<'a>(form: &'a Parameters, name: &'a str) -> Result<Option<&'a str>, Error> {
    let mut values = form.all(name);
    match (values.next(), values.next()) {
        (value, None) => Ok(value.filter(|value| !value.is_empty())),
        _ => Err(Error::invalid_request("parameters must not be repeated")),
    }
}
