//! Defines the request and response bodies of user accounts.
//!
//! Invariant: no response body has a password.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    api::{
        error::Error,
        fields::{Array, Field, FieldType, Violations},
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
#[derive(Default, Deserialize, ToSchema)]
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
    first_name: Field<String>,
    /// Last name.
    #[schema(value_type = String, required = false, nullable, max_length = 255, pattern = r"^[^\x00]*$")]
    last_name: Field<String>,
    /// Email address.
    #[schema(value_type = String, required = false, nullable, max_length = 255, pattern = r"^[^\x00]*$")]
    email: Field<String>,
    /// Phone number.
    #[schema(value_type = String, required = false, nullable, max_length = 255, pattern = r"^[^\x00]*$")]
    phone: Field<String>,
    /// Password, prepared as RFC 8265 has it (OpaqueString): in Unicode normalization form C, with a space for other white
    /// space; without control, invisible and unassigned characters. Its length is counted then. Without one, a new account cannot log in, and an existing one keeps its password.
    #[schema(value_type = String, required = false, nullable, format = Password, write_only, min_length = 8, max_length = 128)]
    password: Field<String>,
    /// Number with a meaning that the operator defines. Ignored unless the caller has the scope `admin`.
    #[schema(value_type = i32, required = false, nullable, minimum = -2_147_483_648, maximum = 2_147_483_647)]
    user_status: Field<i64>,
}

impl FieldType for UserDetailsBody {}

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
        let (account, password) = violations.finish(new)?;
        // Only administrators may set it.
        let status = 0;
        Ok((NewAccount { status, ..account }, password))
    }

    /// Validates the body of `PUT /user/{username}` for an account named `current`, which may keep its name.
    pub fn into_change(self, current: &Username) -> Result<UserDetails, Error> {
        let mut violations = Violations::default();
        let details = self.read(&mut violations, "", Some(current));
        violations.finish(Some(details))
    }

    fn read_new(self, violations: &mut Violations, path: &str) -> Option<NewUser> {
        if matches!(self.username, Field::Absent) {
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
        let mut text = |name: &str, field: Field<String>| {
            violations.optional(format_args!("{path}{name}"), field, Text::new)
        };
        let profile = Profile {
            first_name: text("firstName", self.first_name),
            last_name: text("lastName", self.last_name),
            email: text("email", self.email),
            phone: text("phone", self.phone),
        };
        UserDetails {
            username: violations.optional(format!("{path}username"), self.username, |name| {
                let kept = current.filter(|current| current.as_str() == name);
                kept.map_or_else(|| Username::new(&name), |current| Ok(current.clone()))
            }),
            profile,
            password: violations.optional(format!("{path}password"), self.password, Password::new),
            status: violations.optional(format!("{path}userStatus"), self.user_status, |status| {
                i32::try_from(status).map_err(|_| Invalid::because("must be a 32-bit integer"))
            }),
        }
    }
}

/// Validates the body of `POST /user/createWithList`.
pub fn into_new_users(
    Array(list): Array<UserDetailsBody, { user::MAX_LIST }>,
) -> Result<Vec<NewUser>, Error> {
    if list.len() > user::MAX_LIST {
        return Err(Error::one_violation(
            "body",
            "must have at most 1000 elements",
        ));
    }
    let mut violations = Violations::default();
    let mut names = HashSet::new();
    let mut users = Vec::with_capacity(list.len());
    for (index, field) in list.into_iter().enumerate() {
        let path = format!("[{index}]");
        let body = violations.required(&path, field, Ok);
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
