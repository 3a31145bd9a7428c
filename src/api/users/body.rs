//! Defines the request and response bodies of user accounts.
//!
//! Invariant: no response body has a password.

use std::collections::HashSet;

use serde::{Deserialize, Serialize, de::SeqAccess};
use utoipa::ToSchema;

use crate::{
    api::{
        error::Error,
        fields::{Field, Input, Object, Violations, read_elements, too_many},
    },
    db::users::NewAccount,
    domain::{
        Invalid, Text,
        user::{self, Password, Profile, User, Username},
    },
};

/// Account to create. Unknown fields are ignored: an account cannot give itself an `id`, a plan or scopes.
#[derive(ToSchema)]
#[schema(as = UserInput, example = json!({
    "username": "ada",
    "firstName": "Ada",
    "email": "ada@example.com",
    "password": "correct horse battery staple"
}))]
#[expect(dead_code, reason = "needs a name, but is read as UserDetailsBody")]
pub struct NewUserBody {
    /// Username, unique regardless of case, without surrounding white space and control characters. It follows RFC 8265
    /// (UsernameCaseMapped) and does not mix scripts. `.`, `..`, `login`, `logout` and `createWithList`, in any case, are reserved:
    /// they are other paths.
    #[schema(
        example = "ada",
        min_length = 1,
        max_length = 64,
        pattern = r"^[^\x00-\x1f\x7f]+$"
    )]
    username: String,
    #[serde(flatten)]
    details: UserDetailsBody,
}

/// New values for an account. Unknown fields are ignored.
// Without `Debug`: it holds a password.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = UserDetails, example = json!({
    "firstName": "Ada",
    "email": "ada@example.com",
    "password": "correct horse battery staple"
}))]
pub struct UserDetailsBody {
    /// Username, unique regardless of case. A new one follows RFC 8265 (UsernameCaseMapped) and does not mix scripts.
    /// Optional when an account is changed.
    #[schema(value_type = String, required = false, nullable, example = "ada", min_length = 1, max_length = 64, pattern = r"^[^\x00-\x1f\x7f]+$")]
    username: Field<String>,
    /// First name.
    #[schema(value_type = String, required = false, nullable, max_length = 255, pattern = r"^[^\x00]*$")]
    first_name: Field<Text>,
    /// Last name.
    #[schema(value_type = String, required = false, nullable, max_length = 255, pattern = r"^[^\x00]*$")]
    last_name: Field<Text>,
    /// Email address.
    #[schema(value_type = String, required = false, nullable, max_length = 255, pattern = r"^[^\x00]*$")]
    email: Field<Text>,
    /// Phone number.
    #[schema(value_type = String, required = false, nullable, max_length = 255, pattern = r"^[^\x00]*$")]
    phone: Field<Text>,
    /// Password, prepared as RFC 8265 has it (OpaqueString): in Unicode normalization form C, with a space for other white
    /// space; without control, invisible and unassigned characters. Its length is counted then. Without one, a new account cannot log in, and an existing one keeps its password.
    #[schema(value_type = String, required = false, nullable, format = Password, write_only, min_length = 8, max_length = 128)]
    password: Field<Password>,
    /// Number with a meaning that the operator defines. Ignored unless the caller has the scope `admin`.
    #[schema(value_type = i32, required = false, nullable, minimum = -2_147_483_648, maximum = 2_147_483_647)]
    user_status: Field<i32>,
}

impl Object for UserDetailsBody {}

/// Accounts to create.
#[derive(ToSchema)]
#[schema(max_items = 1_000, example = json!([{"username": "grace", "firstName": "Grace"}, {"username": "alan", "firstName": "Alan"}]))]
#[expect(dead_code, reason = "has a maximum; a Vec is read")]
pub struct NewUsers(Vec<NewUserBody>);

/// Created accounts.
#[derive(Serialize, ToSchema)]
#[schema(max_items = 1_000)]
pub struct Users(pub Vec<User>);

/// Validated values for an account.
pub struct UserDetails {
    pub username: Option<Username>,
    pub profile: Profile,
    pub password: Option<Password>,
    pub status: Option<i32>,
}

/// Account to create, and the password to hash for it.
pub type NewUser = (NewAccount, Option<Password>);

impl UserDetailsBody {
    /// Validates the body of `POST /user`.
    pub fn into_new_user(self) -> Result<NewUser, Error> {
        let mut violations = Violations::default();
        let new = self.read_new(&mut violations, "");
        violations.finish(new)
    }

    /// Validates the body of `PUT /user/{username}` for an account named `current`, which may keep its name.
    pub fn into_change(self, current: &Username) -> Result<UserDetails, Error> {
        let mut violations = Violations::default();
        let details = self.read(&mut violations, "", Some(current));
        violations.finish(Some(details))
    }

    fn read_new(self, violations: &mut Violations, path: &str) -> Option<NewUser> {
        if matches!(self.username, Field::Null) {
            violations.add(format!("{path}username"), "is required");
        }
        let details = self.read(violations, path, None);
        let account = NewAccount {
            username: details.username?,
            profile: details.profile,
            status: details.status.unwrap_or_default(),
            password_hash: None,
        };
        Some((account, details.password))
    }

    fn read(
        self,
        violations: &mut Violations,
        path: &str,
        current: Option<&Username>,
    ) -> UserDetails {
        let at = |name: &str| format!("{path}{name}");
        let profile = Profile {
            first_name: violations.optional(&at("firstName"), self.first_name),
            last_name: violations.optional(&at("lastName"), self.last_name),
            email: violations.optional(&at("email"), self.email),
            phone: violations.optional(&at("phone"), self.phone),
        };
        let username = violations.optional(&at("username"), self.username);
        let username = username.and_then(|name| {
            let kept = current.filter(|current| current.as_str() == name);
            let username = kept.map_or_else(|| Username::new(&name), |kept| Ok(kept.clone()));
            violations.check(&at("username"), username)
        });
        UserDetails {
            username,
            profile,
            password: violations.optional(&at("password"), self.password),
            status: violations.optional(&at("userStatus"), self.user_status),
        }
    }
}

/// Accounts to create. Elements are kept if others are invalid, since their usernames are compared.
pub struct NewUsersBody(Vec<Field<UserDetailsBody>>);

impl Input for NewUsersBody {
    fn wrong_type() -> Invalid {
        Invalid::because("must be an array")
    }

    fn from_elements<'de, A: SeqAccess<'de>>(elements: A) -> Result<Field<Self>, A::Error> {
        let list = read_elements(elements, user::MAX_LIST)?;
        let list = list.ok_or_else(|| too_many(user::MAX_LIST));
        Ok(list.map(Self).into())
    }
}

impl NewUsersBody {
    /// Validates the body of `POST /user/createWithList`.
    pub fn into_new_users(self) -> Result<Vec<NewUser>, Error> {
        let mut violations = Violations::default();
        let mut names = HashSet::new();
        let mut users = Vec::with_capacity(self.0.len());
        for (index, field) in self.0.into_iter().enumerate() {
            let path = format!("[{index}]");
            let body: Option<UserDetailsBody> = violations.required(&path, field);
            let new = body.and_then(|body| body.read_new(&mut violations, &format!("{path}.")));
            if let Some((account, password)) = new {
                if !names.insert(account.username.folded()) {
                    violations.add(format!("{path}.username"), "must be unique in the list");
                }
                users.push((account, password));
            }
        }
        violations.finish(Some(users))
    }
}
