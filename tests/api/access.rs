//! Tests of the access rules: each operation requested by each kind of caller, against a snapshot of the statuses.

use chrono::Duration;
use pet_inventory::{
    api,
    db::{
        self, Connection,
        orders::{Placement, PlacementOutcome},
        users::NewAccount,
    },
    domain::{
        id::{CredentialId, OrderId},
        order::{NewOrder, OrderDetails, Quantity, Status},
        user::{Profile, User},
    },
};
use test_support::*;

const SETTINGS: [(&str, &str); 3] = [
    ("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "unlimited"),
    ("PET_INVENTORY__USERS__LOGINS_PER_MINUTE", "1000"),
    (
        "PET_INVENTORY__LIMITS__FAILED_AUTHENTICATION_PER_MINUTE",
        "10000",
    ),
];

/// Kinds of callers. The requested resources belong to `owner`.
const ACTORS: [&str; 19] = [
    "none",
    "malformed",
    "unknown",
    "expired",
    "revoked",
    "disabled",
    "no-scope",
    "read:pets",
    "write:pets",
    "read:orders",
    "write:orders",
    "read:changes",
    "admin",
    "not-admin",
    "all",
    "owner",
    "owner's-key",
    "other",
    "ended",
];

/// Resources of one request: a pet, and its owner's account and order.
struct Resources {
    number: i64,
    owner: User,
    other: User,
    /// A key of `other`.
    key: CredentialId,
}

impl Resources {
    async fn insert(connection: &mut Connection, number: i64) -> Self {
        let accounts = ["owner", "other"].map(|name| NewAccount {
            username: format!("{name}{number}").parse().expect("a name"),
            profile: Profile::default(),
            status: 0,
            password_hash: None,
        });
        let users = db::users::insert(connection, &accounts, &Initiator::operator())
            .await
            .expect("a database");
        let [owner, other] = <[User; 2]>::try_from(users.expect("new names")).expect("two");
        let pet = "insert into pets (id, status, details)
                   select id, 'available', json_build_object('name', 'a', 'photoUrls', '[]'::json, 'tags', '[]'::json)
                   from generate_series($1, $1 + 1) as id";
        let inserted = sqlx::query(pet)
            .bind(number)
            .execute(&mut *connection)
            .await;
        inserted.expect("pets");
        let order = NewOrder {
            id: Some(OrderId::new(number).expect("an id")),
            details: OrderDetails {
                pet_id: PetId::new(number).expect("an id"),
                quantity: Quantity::default(),
                ship_date: None,
                status: Status::Placed,
                complete: false,
            },
        };
        let placement = Placement {
            owner: Some(owner.caller),
            order,
            initiator: Initiator::default(),
        };
        let placed = db::orders::place_in(connection, placement).await;
        let placed = placed.expect("a database");
        assert!(matches!(placed, PlacementOutcome::Placed(_)), "{placed:?}");
        let caller = format!("user:{}", other.id);
        let key = make_key(connection, &caller, Scopes::default(), None).await;
        Self {
            number,
            owner,
            other,
            key: key.id,
        }
    }

    /// Returns the credential of an actor, or `None` for an unauthenticated one.
    async fn credential(&self, connection: &mut Connection, actor: &str) -> Option<String> {
        let key = async |connection: &mut Connection, caller: &str, scopes, expires_at| {
            make_key(connection, caller, scopes, expires_at)
                .await
                .secret
        };
        let caller = format!("caller {}", self.number);
        let key_for = async |connection: &mut Connection, scopes: Scopes| {
            Some(key(connection, &caller, scopes, None).await)
        };
        match actor {
            "none" => None,
            "malformed" => Some("malformed".to_owned()),
            "unknown" => Some(
                Secret::generate(CredentialKind::ApiKey)
                    .expect("random")
                    .expose()
                    .to_owned(),
            ),
            "expired" => {
                let yesterday = Utc::now() - Duration::days(1);
                Some(key(connection, &caller, Scopes::all(), Some(yesterday)).await)
            }
            "revoked" => {
                let key = make_key(connection, &caller, Scopes::all(), None).await;
                let kind = CredentialKind::ApiKey;
                let revoked =
                    db::credentials::revoke(connection, kind, key.id, &Initiator::operator()).await;
                assert!(revoked.expect("a database").is_some());
                Some(key.secret)
            }
            "disabled" => {
                let caller = format!("disabled {}", self.number);
                let key = key(connection, &caller, Scopes::all(), None).await;
                let disable = sqlx::query("update callers set disabled_at = now() where name = $1");
                let disabled = disable.bind(&caller).execute(connection).await;
                disabled.expect("a caller");
                Some(key)
            }
            "no-scope" => key_for(connection, Scopes::default()).await,
            "not-admin" => key_for(connection, Scopes::of_new_callers()).await,
            "all" => key_for(connection, Scopes::all()).await,
            "owner" => Some(session(connection, &self.owner, false).await),
            "other" => Some(session(connection, &self.other, false).await),
            "ended" => Some(session(connection, &self.owner, true).await),
            "owner's-key" => {
                let caller = format!("user:{}", self.owner.id);
                Some(key(connection, &caller, scopes(&[Scope::ReadPets]), None).await)
            }
            scope => {
                let scope: Scope = scope.parse().expect("a scope");
                key_for(connection, scopes(&[scope])).await
            }
        }
    }

    fn request(&self, app: &TestApp, method: &Method, path: &str, operation: &str) -> Call {
        let (number, name) = (self.number, self.owner.username.as_str());
        let target = path
            .replace("{petId}", &number.to_string())
            .replace("{orderId}", &number.to_string())
            .replace("{username}", name)
            .replace("{callerId}", &self.other.caller.0.to_string())
            .replace("{keyId}", &self.key.to_string())
            .replace("{clientId}", &self.key.to_string())
            .replace("{sessionId}", &self.key.to_string())
            .replace("{webhookId}", "999999")
            .replace("{position}", "7");
        let fresh = format!("fresh{number}");
        let (query, body) = match operation {
            "findPetsByStatus" => ("?status=sold", None),
            "findPetsByTags" => ("?tags=a", None),
            "suggestTags" => ("?prefix=a", None),
            "updatePetWithForm" => ("?name=a", None),
            "addPet" => ("", Some(json!({"name": "a"}))),
            "updatePet" => ("", Some(json!({"id": number, "name": "a"}))),
            "patchPet" | "patchOrder" | "updateUser" => ("", Some(json!({}))),
            "placeOrder" => ("", Some(json!({"petId": number + 1}))),
            "createCaller" => ("", Some(json!({"name": fresh, "plan": "free"}))),
            "createWebhook" => ("", Some(json!({"url": "https://example.com/"}))),
            "patchWebhook" | "patchCaller" | "createKey" | "rotateKey" | "createClient" => {
                ("", Some(json!({})))
            }
            "createUser" => ("", Some(json!({ "username": fresh }))),
            "createUsersWithListInput" => ("", Some(json!([{ "username": fresh }]))),
            "loginUser" | "createSession" => ("?username=nobody&password=wrong", None),
            _ => ("", None),
        };
        let request = app.anonymous(method.clone(), &format!("{target}{query}"));
        match body {
            Some(body) => request.json(&body),
            None => request,
        }
    }
}

/// Inserts a session of `user`, revoked if `is_revoked`, and returns its token.
async fn session(connection: &mut Connection, user: &User, is_revoked: bool) -> String {
    let token = Secret::generate(CredentialKind::Session).expect("random");
    let insert = "insert into credentials (caller_id, kind, hash, hint, expires_at, revoked_at)
                  values ($1, 'session', $2, 'pis_', now() + interval '1 hour', case when $3 then now() end)";
    let inserted = sqlx::query(insert)
        .bind(user.caller.0)
        .bind(token.hash())
        .bind(is_revoked);
    inserted.execute(connection).await.expect("a session");
    token.expose().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn access_table_matches_the_snapshot() {
    let app = TestApp::with(&SETTINGS).await;
    let mut connection = app.database.connect().await;
    let document: Value =
        serde_json::to_value(api::document(&Links::new(None))).expect("a document");
    let mut rows = vec![format!(
        "{:<26}{}",
        "",
        ACTORS.map(|actor| format!("{actor:<13}")).concat()
    )];
    let mut cells = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        if path.contains("oauth") {
            // Authenticates clients, not callers.
            continue;
        }
        for (method, operation) in item.as_object().expect("operations") {
            let method: Method = method.to_uppercase().parse().expect("a method");
            let operation = operation["operationId"].as_str().expect("a name");
            let mut row = format!("{operation:<26}");
            for actor in ACTORS {
                cells += 1;
                let resources = Resources::insert(&mut connection, 10 * cells).await;
                let request = resources.request(&app, &method, path, operation);
                let request = match resources.credential(&mut connection, actor).await {
                    Some(credential) => request.bearer_auth(credential),
                    None => request,
                };
                let status = request.await.status;
                row = format!("{row}{status:<13}");
            }
            rows.push(row);
        }
    }
    assert!(cells >= 200, "{cells}");
    let table: Vec<&str> = rows.iter().map(|row| row.trim_end()).collect();
    insta::assert_snapshot!("table", table.join("\n"));
}
