//! JSON bodies: only valid JSON is accepted, its notation changes nothing, and memory is bounded.

use pet_inventory::{
    api::{
        error::Error,
        extract::{json_from_slice, without_byte_order_mark},
        fields::Input,
        orders::{self, NewOrderBody},
        pets::{self, NewPetBody},
        users::{NewUsersBody, UserDetailsBody},
    },
    domain::id::PetId,
};
use serde::de::IgnoredAny;
use serde_json::Value;

crate::target!("json", check);

fn check(input: &[u8]) {
    let pet_id = PetId::new(1).expect("an identifier");
    check_body(input, |body: NewPetBody| debug(&body.into_new_pet()));
    check_body(input, |body: NewPetBody| debug(&body.into_replacement()));
    check_body(input, |body: pets::PatchBody| {
        debug(&body.into_patch(pet_id))
    });
    check_body(input, |body: NewOrderBody| debug(&body.into_new_order()));
    check_body(input, |body: orders::PatchBody| debug(&body.into_patch()));
    let profile =
        |body: UserDetailsBody| debug(&body.into_new_user().map(|(account, _)| account.profile));
    check_body(input, profile);
    let number = |list: NewUsersBody| debug(&list.into_new_users().map(|users| users.len()));
    check_body(input, number);
}

fn debug<T: std::fmt::Debug>(result: &Result<T, Error>) -> String {
    format!("{result:?}")
}

fn check_body<T: Input>(input: &[u8], read: impl Fn(T) -> String) {
    let (parsed, memory) = crate::measure(|| json_from_slice::<T>(input));
    // Strings, which grow while escapes are replaced, and at most 1,001 accounts of 160 bytes, which grow too.
    let max_memory = 3 * input.len() as u64 + 262_144;
    assert!(memory <= max_memory, "{memory} bytes for {}", input.len());
    let input = without_byte_order_mark(input);
    if serde_json::from_slice::<IgnoredAny>(input).is_err() {
        assert!(parsed.is_err(), "it is not JSON");
    }
    let Ok(body) = parsed else { return };
    let first = read(body);
    if let Ok(value) = serde_json::from_slice::<Value>(input)
        && !has_double(&value)
    {
        let again = json_from_slice::<T>(value.to_string().as_bytes());
        assert_eq!(again.map(read).ok(), Some(first));
    }
}

/// Returns true if a number is a double, which may be rounded when it is written and read again.
fn has_double(value: &Value) -> bool {
    match value {
        Value::Array(elements) => elements.iter().any(has_double),
        Value::Object(members) => members.values().any(has_double),
        value => value.is_f64(),
    }
}
