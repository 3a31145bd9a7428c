//! User accounts on the wire. A password comes in and never goes out.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    api::{
        error::Error,
        fields::{Field, FieldType, Kind, Violations},
    },
    db::users::NewAccount,
    domain::{
        Invalid,
        user::{self, Password, Profile, Text, User, Username},
    },
};

/// A user account.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = User, example = json!({
    "id": 1,
    "username": "ada",
    "firstName": "Ada",
    "lastName": "Lovelace",
    "email": "ada@example.com",
    "phone": "+44 20 7946 0000",
    "userStatus": 0
}))]
pub struct UserBody<'a> {
    /// Identifier.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    id: i64,
    /// Name, unique without regard to case.
    #[schema(value_type = UsernameText)]
    username: &'a str,
    /// First name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 255, pattern = r"^[^\x00]*$")]
    first_name: Option<&'a str>,
    /// Last name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 255, pattern = r"^[^\x00]*$")]
    last_name: Option<&'a str>,
    /// Where it gets mail; nobody has checked it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 255, pattern = r"^[^\x00]*$")]
    email: Option<&'a str>,
    /// Where it can be called.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 255, pattern = r"^[^\x00]*$")]
    phone: Option<&'a str>,
    /// A number that means something to the operator.
    #[schema(minimum = -2_147_483_648, maximum = 2_147_483_647)]
    user_status: i32,
}

impl<'a> From<&'a User> for UserBody<'a> {
    fn from(user: &'a User) -> Self {
        fn text(text: Option<&Text>) -> Option<&str> {
            text.map(Text::as_str)
        }
        let Profile {
            first_name,
            last_name,
            email,
            phone,
        } = &user.profile;
        Self {
            id: user.id.0,
            username: user.username.as_str(),
            first_name: text(first_name.as_ref()),
            last_name: text(last_name.as_ref()),
            email: text(email.as_ref()),
            phone: text(phone.as_ref()),
            user_status: user.status,
        }
    }
}

/// The name of an account: no white space around it, no control characters in it.
#[derive(ToSchema)]
#[schema(as = Username, value_type = String, min_length = 1, max_length = 64, pattern = r"^[^\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]([^\x00-\x1f\x7f-\x9f]*[^\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000])?$")]
#[expect(dead_code, reason = "describes what is read and written as text")]
pub struct UsernameText(String);

/// An account to make. Fields that are not listed are ignored: an account cannot give itself an `id`, a plan or
/// scopes.
#[derive(ToSchema)]
#[schema(as = NewUser, example = json!({
    "username": "ada",
    "firstName": "Ada",
    "email": "ada@example.com",
    "password": "correct horse battery staple"
}))]
#[expect(
    dead_code,
    reason = "says that a new account needs a name; it is read as UserDetailsBody"
)]
pub struct NewUserBody {
    /// Name, unique without regard to case.
    username: UsernameText,
    #[serde(flatten)]
    details: UserDetailsBody,
}

/// An account as it shall be. Fields that are not listed are ignored.
// Without `Debug`: it holds a password.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = UserDetails, example = json!({
    "firstName": "Ada",
    "email": "ada@example.com",
    "password": "correct horse battery staple"
}))]
pub struct UserDetailsBody {
    /// Name, unique without regard to case; to change an account, it may be left out.
    #[serde(default)]
    #[schema(value_type = UsernameText, required = false, nullable)]
    username: Field<String>,
    /// First name.
    #[serde(default)]
    #[schema(value_type = String, required = false, nullable, max_length = 255, pattern = r"^[^\x00]*$")]
    first_name: Field<String>,
    /// Last name.
    #[serde(default)]
    #[schema(value_type = String, required = false, nullable, max_length = 255, pattern = r"^[^\x00]*$")]
    last_name: Field<String>,
    /// Where it gets mail.
    #[serde(default)]
    #[schema(value_type = String, required = false, nullable, max_length = 255, pattern = r"^[^\x00]*$")]
    email: Field<String>,
    /// Where it can be called.
    #[serde(default)]
    #[schema(value_type = String, required = false, nullable, max_length = 255, pattern = r"^[^\x00]*$")]
    phone: Field<String>,
    /// Any characters. Without one nobody can log in to a new account, and another keeps the one it has.
    #[serde(default)]
    #[schema(value_type = String, required = false, nullable, format = Password, write_only, min_length = 8, max_length = 128)]
    password: Field<String>,
    /// Taken from a caller with the scope `admin`, otherwise ignored.
    #[serde(default)]
    #[schema(value_type = i32, required = false, nullable, minimum = -2_147_483_648, maximum = 2_147_483_647)]
    user_status: Field<i64>,
}

impl FieldType for UserDetailsBody {
    const KIND: Kind = Kind::Object;
}

/// The accounts of a list, to be made.
#[derive(ToSchema)]
#[schema(max_items = 1_000)]
#[expect(
    dead_code,
    reason = "says how many there may be; they are read as UserDetailsBody"
)]
pub struct NewUsers(Vec<NewUserBody>);

/// The accounts of a list, made.
#[derive(ToSchema)]
#[schema(max_items = 1_000)]
#[expect(dead_code, reason = "says how many there may be; a Vec is written")]
pub struct Users(Vec<UserBody<'static>>);

/// What a client says of an account.
pub struct Said {
    /// Its name.
    pub username: Option<Username>,
    /// What it says of itself.
    pub profile: Profile,
    /// Its password.
    pub password: Option<Password>,
    /// A number that means something to the operator.
    pub status: Option<i32>,
}

/// An account to be made, once its password is hashed.
pub struct NewUser {
    /// The account.
    pub account: NewAccount,
    /// Its password.
    pub password: Option<Password>,
}

impl UserDetailsBody {
    /// The body of `POST /user`.
    pub fn into_new_user(self) -> Result<NewUser, Error> {
        let mut violations = Violations::default();
        let new = self.read_new(&mut violations, "");
        let mut new = violations.finish(new)?;
        // That is the admins' to say.
        new.account.status = 0;
        Ok(new)
    }

    /// The body of `PUT /user/{username}`.
    pub fn into_change(self) -> Result<Said, Error> {
        let mut violations = Violations::default();
        let said = self.read(&mut violations, "");
        violations.finish(Some(said))
    }

    fn read_new(self, violations: &mut Violations, place: &str) -> Option<NewUser> {
        if matches!(self.username, Field::Absent) {
            violations.add(format!("{place}username"), "is required");
        }
        let said = self.read(violations, place);
        Some(NewUser {
            account: NewAccount {
                username: said.username?,
                profile: said.profile,
                status: said.status.unwrap_or_default(),
                password_hash: None,
            },
            password: said.password,
        })
    }

    fn read(self, violations: &mut Violations, place: &str) -> Said {
        let mut text = |name: &str, field: Field<String>| {
            violations.optional(format_args!("{place}{name}"), field, Text::new)
        };
        let profile = Profile {
            first_name: text("firstName", self.first_name),
            last_name: text("lastName", self.last_name),
            email: text("email", self.email),
            phone: text("phone", self.phone),
        };
        let at = |name: &'static str| format!("{place}{name}");
        Said {
            username: violations.optional(at("username"), self.username, |name| name.parse()),
            profile,
            password: violations.optional(at("password"), self.password, Password::new),
            status: violations.optional(at("userStatus"), self.user_status, |status| {
                i32::try_from(status).map_err(|_| Invalid::because("must be a 32-bit integer"))
            }),
        }
    }
}

/// The body of `POST /user/createWithList`.
pub fn into_new_users(list: Vec<Field<UserDetailsBody>>) -> Result<Vec<NewUser>, Error> {
    let mut violations = Violations::default();
    if list.len() > user::MAX_LIST {
        violations.add("body", "must have at most 1000 elements");
        return violations.finish(None);
    }
    let mut names = HashSet::new();
    let mut users = Vec::with_capacity(list.len());
    for (index, field) in list.into_iter().enumerate() {
        let place = format!("[{index}]");
        let body = violations.required(&place, field, Ok);
        let new = body.and_then(|body| body.read_new(&mut violations, &format!("{place}.")));
        if let Some(new) = new {
            if !names.insert(new.account.username.folded()) {
                violations.add(format!("{place}.username"), "must not be in the list twice");
            }
            users.push(new);
        }
    }
    violations.finish(Some(users))
}
