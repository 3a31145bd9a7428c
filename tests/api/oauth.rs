//! OAuth 2.0 endpoints: tokens, revocation, introspection and metadata, also by an independent client library.

use oauth2::{
    AuthType, AuthUrl, ClientId, ClientSecret, EmptyExtraTokenFields, IntrospectionUrl,
    RevocationUrl, Scope as OAuthScope, StandardRevocableToken, StandardTokenResponse,
    TokenIntrospectionResponse, TokenResponse, TokenUrl, basic::BasicClient, basic::BasicTokenType,
};
use pet_inventory::{
    auth::secret,
    db::{self, credentials::NewCredential},
    domain::id::CredentialId,
};
use test_support::*;

/// OAuth client, as `clients create` creates it.
struct TestClient {
    row: CredentialId,
    id: String,
    secret: String,
}

async fn client(app: &TestApp, caller: &str, scopes: Scopes) -> TestClient {
    // Creates the caller, with all scopes.
    app.make_key(caller, Scopes::all()).await;
    let mut connection = app.database.connect().await;
    let name = caller.parse().expect("the name of a caller");
    let known = db::callers::find(&mut connection, &name).await;
    let secret = Secret::generate(CredentialKind::ClientSecret).expect("random numbers");
    let id = secret::generate_client_id().expect("random numbers");
    let credential = NewCredential {
        caller: known.expect("a database").expect("the caller").id,
        hash: secret.hash(),
        hint: secret.hint(),
        client_id: Some(id.clone()),
        name: None,
        scopes: Some(scopes),
        expires_at: None,
    };
    let row = db::credentials::insert(&mut connection, credential, &Initiator::operator()).await;
    TestClient {
        row: row.expect("a database").expect("a new secret"),
        id,
        secret: secret.expose().to_owned(),
    }
}

fn post(app: &TestApp, path: &str, form: &[(&str, &str)]) -> Call {
    app.bare(Method::POST, path).form(form)
}

impl TestClient {
    /// Requests a token, with HTTP Basic authentication.
    async fn request_token(&self, app: &TestApp, form: &[(&str, &str)]) -> Response {
        self.post_form(app, "/oauth/token", form).await
    }

    async fn post_form(&self, app: &TestApp, path: &str, form: &[(&str, &str)]) -> Response {
        post(app, path, form)
            .basic_auth(&self.id, Some(&self.secret))
            .await
    }

    /// Returns an access token with all scopes of the client.
    async fn token(&self, app: &TestApp) -> String {
        let response = self
            .request_token(app, &[("grant_type", "client_credentials")])
            .await
            .is(200);
        response.json()["access_token"]
            .as_str()
            .expect("a token")
            .to_owned()
    }
}

/// Checks that the response is an error by RFC 6749 §5.2.
#[track_caller]
fn assert_error(response: &Response, status: u16, error: &str) {
    assert_eq!(response.status, status, "{response}");
    assert_eq!(response.header("content-type"), "application/json");
    assert_eq!(response.header("cache-control"), "no-store");
    let body = response.json();
    assert_eq!(body["error"], error, "{response}");
    assert!(body["error_description"].is_string(), "{response}");
}

async fn get_with_token(app: &TestApp, token: &str, path: &str) -> Response {
    app.anonymous(Method::GET, path).bearer_auth(token).await
}

#[tokio::test(flavor = "multi_thread")]
async fn token_has_the_scopes_of_its_client() {
    let app = TestApp::start().await;
    let client = client(&app, "acme", scopes(&[Scope::ReadPets, Scope::ReadOrders])).await;
    let response = client
        .request_token(&app, &[("grant_type", "client_credentials")])
        .await
        .is(200);
    assert_eq!(response.header("cache-control"), "no-store");
    assert_eq!(response.header("pragma"), "no-cache");
    let body = response.json();
    assert_eq!(body["token_type"], "Bearer");
    assert_eq!(body["expires_in"], 3600);
    assert_eq!(body["scope"], "read:pets read:orders");
    let token = body["access_token"].as_str().expect("a token");
    assert!(token.starts_with("pia_"), "{token}");

    get_with_token(&app, token, "/pet/1").await.is(404);
    let write = app.anonymous(Method::POST, "/pet").bearer_auth(token);
    write.json(&json!({"name": "a"})).await.problem(403);
    // The `api_key` header accepts access tokens, too.
    app.with_key(token, Method::GET, "/pet/1").is(404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn token_scopes_can_be_narrowed_but_not_widened() {
    let app = TestApp::start().await;
    let client = client(&app, "acme", scopes(&[Scope::ReadPets, Scope::WritePets])).await;
    let grant = ("grant_type", "client_credentials");
    let narrow = client
        .request_token(&app, &[grant, ("scope", "read:pets")])
        .await
        .is(200)
        .json();
    assert_eq!(narrow["scope"], "read:pets");
    for scope in [
        "admin",
        "read:pets admin",
        "read:cats",
        "read:pets  write:pets",
        "READ:PETS",
    ] {
        assert_error(
            &client.request_token(&app, &[grant, ("scope", scope)]).await,
            400,
            "invalid_scope",
        );
    }
    // Tokens lose the scopes that their caller loses.
    let token = client.token(&app).await;
    get_with_token(&app, &token, "/pet/1").await.is(404);
    app.database
        .run("update callers set scopes = '{write:pets}' where name = 'acme'")
        .await;
    eventually(async || get_with_token(&app, &token, "/pet/1").await.status == 403).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn token_request_with_wrong_or_two_client_credentials_is_refused() {
    let app = TestApp::start().await;
    let client = client(&app, "acme", Scopes::all()).await;
    let grant = ("grant_type", "client_credentials");
    let (id, secret) = (
        ("client_id", client.id.as_str()),
        ("client_secret", client.secret.as_str()),
    );
    post(&app, "/oauth/token", &[grant, id, secret])
        .is(200)
        .await;
    client.request_token(&app, &[grant, id]).await.is(200);

    assert_error(
        &client.request_token(&app, &[grant, id, secret]).await,
        400,
        "invalid_request",
    );
    let unknown = Secret::generate(CredentialKind::ClientSecret).expect("random numbers");
    for wrong in ["", "wrong", unknown.expose(), "pcs_é"] {
        let form = [grant, id, ("client_secret", wrong)];
        assert_error(
            &post(&app, "/oauth/token", &form).await,
            401,
            "invalid_client",
        );
        let basic = post(&app, "/oauth/token", &[grant]).basic_auth(&client.id, Some(wrong));
        let response = basic.await;
        assert_error(&response, 401, "invalid_client");
        assert!(
            response.header("www-authenticate").starts_with("Basic "),
            "{response}"
        );
    }
    let nul = post(&app, "/oauth/token", &[grant]).basic_auth("pic_\0", Some(&client.secret));
    assert_error(&nul.await, 401, "invalid_client");
    let other_name = post(&app, "/oauth/token", &[grant]).basic_auth("pic_x", Some(&client.secret));
    assert_error(&other_name.await, 401, "invalid_client");
    assert_error(
        &post(&app, "/oauth/token", &[grant]).await,
        401,
        "invalid_client",
    );
    assert_error(
        &post(&app, "/oauth/token", &[grant, id]).await,
        401,
        "invalid_client",
    );
    let bearer = post(&app, "/oauth/token", &[grant]).bearer_auth(&client.secret);
    assert_error(&bearer.await, 401, "invalid_client");
    // A client secret is not a bearer token, and an API key is not a client secret.
    get_with_token(&app, &client.secret, "/pet/1")
        .await
        .problem(401);
    let key = post(&app, "/oauth/token", &[grant]).basic_auth(&client.id, Some(&app.key));
    assert_error(&key.await, 401, "invalid_client");
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_token_request_is_an_rfc_6749_error() {
    let app = TestApp::start().await;
    let client = client(&app, "acme", Scopes::all()).await;
    let grant = ("grant_type", "client_credentials");
    assert_error(
        &client.request_token(&app, &[]).await,
        400,
        "invalid_request",
    );
    assert_error(
        &client.request_token(&app, &[("grant_type", "")]).await,
        400,
        "invalid_request",
    );
    assert_error(
        &client.request_token(&app, &[grant, grant]).await,
        400,
        "invalid_request",
    );
    let twice = [grant, ("scope", "read:pets"), ("scope", "admin")];
    assert_error(
        &client.request_token(&app, &twice).await,
        400,
        "invalid_request",
    );
    for other in ["password", "authorization_code", "refresh_token"] {
        let response = client.request_token(&app, &[("grant_type", other)]).await;
        assert_error(&response, 400, "unsupported_grant_type");
    }
    let json = app
        .bare(Method::POST, "/oauth/token")
        .basic_auth(&client.id, Some(&client.secret));
    let json = json.json(&json!({"grant_type": "client_credentials"}));
    assert_error(&json.await, 400, "invalid_request");
    // Parameters are read from the body only.
    let query = "/oauth/token?grant_type=client_credentials";
    let query = app
        .bare(Method::POST, query)
        .basic_auth(&client.id, Some(&client.secret));
    assert_error(&query.await, 400, "invalid_request");
    app.bare(Method::GET, "/oauth/token").await.problem(405);
    for path in ["/oauth/revoke", "/oauth/introspect"] {
        assert_error(
            &client.post_form(&app, path, &[]).await,
            400,
            "invalid_request",
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_ends_by_expiry_by_revocation_and_with_its_client() {
    let app = TestApp::with(&[("PET_INVENTORY__AUTH__ACCESS_TOKEN_LIFETIME", "3s")]).await;
    let one = client(&app, "acme", Scopes::all()).await;
    let two = client(&app, "acme", Scopes::all()).await;
    let token = one.token(&app).await;
    get_with_token(&app, &token, "/limits").await.is(200);
    tokio::time::sleep(Duration::from_millis(3_100)).await;
    get_with_token(&app, &token, "/limits").await.problem(401);

    let app = TestApp::replica_of(&app, &[]).await;
    let token = one.token(&app).await;
    get_with_token(&app, &token, "/limits").await.is(200);
    // Clients revoke their own tokens only: not API keys, and not tokens of other clients of the same caller.
    assert_error(
        &two.post_form(&app, "/oauth/revoke", &[("token", &token)])
            .await,
        400,
        "unauthorized_client",
    );
    let key = app.key.clone();
    assert_error(
        &two.post_form(&app, "/oauth/revoke", &[("token", &key)])
            .await,
        400,
        "unauthorized_client",
    );
    get_with_token(&app, &token, "/limits").await.is(200);
    for _ in 0..2 {
        one.post_form(
            &app,
            "/oauth/revoke",
            &[("token", &token), ("token_type_hint", "x")],
        )
        .await
        .is(200);
    }
    one.post_form(&app, "/oauth/revoke", &[("token", "nonsense")])
        .await
        .is(200);
    assert_invalid(&app, &token).await;

    let token = one.token(&app).await;
    get_with_token(&app, &token, "/limits").await.is(200);
    let mut connection = app.database.connect().await;
    let kind = CredentialKind::ClientSecret;
    let revoked =
        db::credentials::revoke(&mut connection, kind, one.row, &Initiator::operator()).await;
    assert!(revoked.expect("a database").is_some());
    assert_invalid(&app, &token).await;
    assert_error(
        &one.request_token(&app, &[("grant_type", "client_credentials")])
            .await,
        401,
        "invalid_client",
    );
    two.token(&app).await;
}

async fn assert_invalid(app: &TestApp, token: &str) {
    eventually(async || get_with_token(app, token, "/limits").await.status == 401).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn introspection_of_another_callers_token_is_inactive_except_for_admins() {
    let app = TestApp::start().await;
    let acme = client(&app, "acme", scopes(&[Scope::ReadPets])).await;
    let other = client(&app, "other", scopes(&[Scope::ReadPets])).await;
    let admin = client(&app, "admin", Scopes::all()).await;
    let token = acme.token(&app).await;
    let about = async |client: &TestClient, token: &str| -> Value {
        let response = client
            .post_form(&app, "/oauth/introspect", &[("token", token)])
            .await
            .is(200);
        assert_eq!(response.header("cache-control"), "no-store");
        response.json()
    };
    for client in [&acme, &admin] {
        let known = about(client, &token).await;
        assert_eq!(known["active"], true);
        assert_eq!(known["scope"], "read:pets");
        assert_eq!(known["client_id"], acme.id);
        assert_eq!(known["sub"], "acme");
        let (exp, iat) = (known["exp"].as_i64(), known["iat"].as_i64());
        assert_eq!(exp.expect("a time") - iat.expect("a time"), 3600);
    }
    let inactive = json!({"active": false});
    assert_eq!(about(&other, &token).await, inactive);
    assert_eq!(about(&admin, "nonsense").await, inactive);
    assert_eq!(about(&admin, &acme.secret).await, inactive);
    acme.post_form(&app, "/oauth/revoke", &[("token", &token)])
        .await
        .is(200);
    assert_eq!(about(&acme, &token).await, inactive);
    let nobody = post(&app, "/oauth/introspect", &[("token", &token)]);
    assert_error(&nobody.await, 401, "invalid_client");
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_names_existing_endpoints() {
    let app = TestApp::start().await;
    let path = "/.well-known/oauth-authorization-server";
    let metadata = app.bare(Method::GET, path).is(200).await.json();
    let host = format!("http://{}", app.address);
    assert_eq!(metadata["issuer"], host);
    for endpoint in [
        "token_endpoint",
        "revocation_endpoint",
        "introspection_endpoint",
    ] {
        let url = metadata[endpoint].as_str().expect("a URL");
        let path = url.strip_prefix(&host).expect("on this host");
        post(&app, path, &[]).is(401).await;
    }
    let app = TestApp::with(&[(
        "PET_INVENTORY__SERVER__PUBLIC_URL",
        "https://pets.example/x",
    )])
    .await;
    let metadata = app.bare(Method::GET, path).is(200).await.json();
    assert_eq!(metadata["issuer"], "https://pets.example/x");
    assert_eq!(
        metadata["token_endpoint"],
        "https://pets.example/x/oauth/token"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn token_requests_over_the_limit_are_429() {
    let app = TestApp::with_stopped_clock(&[]).await;
    let client = client(&app, "acme", Scopes::all()).await;
    let mut admitted = 0;
    for _ in 0..70 {
        let response = client
            .request_token(&app, &[("grant_type", "client_credentials")])
            .await;
        match response.status {
            200 => admitted += 1,
            429 => assert_eq!(
                response.problem(429)["violated-policies"],
                json!(["minute"])
            ),
            _ => panic!("{response}"),
        }
    }
    assert_eq!(admitted, 60);
    // Wrong client secrets count against the failed-authentication limit of the address.
    let app = TestApp::with(&[(
        "PET_INVENTORY__LIMITS__FAILED_AUTHENTICATION_PER_MINUTE",
        "5",
    )])
    .await;
    for _ in 0..5 {
        let guess = Secret::generate(CredentialKind::ClientSecret).expect("random numbers");
        let request = post(
            &app,
            "/oauth/token",
            &[("grant_type", "client_credentials")],
        );
        let request = request.basic_auth("pic_x", Some(guess.expose()));
        assert_error(&request.await, 401, "invalid_client");
    }
    app.get("/limits").await.problem(429);
}

#[tokio::test(flavor = "multi_thread")]
async fn oauth2_crate_gets_and_introspects_a_token() {
    let app = TestApp::start().await;
    let created = client(&app, "acme", scopes(&[Scope::ReadPets, Scope::WritePets])).await;
    let url = |path: &str| format!("http://{}{path}", app.address);
    let http = oauth2::reqwest::ClientBuilder::new()
        .build()
        .expect("a client");
    for way in [AuthType::BasicAuth, AuthType::RequestBody] {
        let client = BasicClient::new(ClientId::new(created.id.clone()))
            .set_client_secret(ClientSecret::new(created.secret.clone()))
            .set_auth_type(way)
            .set_auth_uri(AuthUrl::new(url("/none")).expect("a URL"))
            .set_token_uri(TokenUrl::new(url("/oauth/token")).expect("a URL"))
            .set_introspection_url(IntrospectionUrl::new(url("/oauth/introspect")).expect("a URL"))
            .set_revocation_url(RevocationUrl::new(url("/oauth/revoke")).expect("a URL"));
        let token: StandardTokenResponse<EmptyExtraTokenFields, BasicTokenType> = client
            .exchange_client_credentials()
            .add_scope(OAuthScope::new("read:pets".into()))
            .request_async(&http)
            .await
            .expect("a token");
        assert_eq!(
            token.expires_in().map(|lifetime| lifetime.as_secs()),
            Some(3600)
        );
        let secret = token.access_token().secret();
        get_with_token(&app, secret, "/pet/1").await.is(404);
        let inspected = client
            .introspect(token.access_token())
            .request_async(&http)
            .await;
        assert!(inspected.expect("an introspection").active());
        let refused = client
            .exchange_client_credentials()
            .add_scope(OAuthScope::new("admin".into()))
            .request_async(&http)
            .await
            .expect_err("a scope of others");
        assert!(
            format!("{refused:?}").contains("invalid_scope"),
            "{refused:?}"
        );
        let revocable = StandardRevocableToken::AccessToken(token.access_token().clone());
        // The library refuses to revoke a token without TLS.
        assert!(client.revoke_token(revocable).is_err());
        created
            .post_form(&app, "/oauth/revoke", &[("token", secret)])
            .await
            .is(200);
        assert_invalid(&app, secret).await;
    }
}
