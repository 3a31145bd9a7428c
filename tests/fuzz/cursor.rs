//! Cursors: exactly those that the service creates are accepted.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use pet_inventory::{
    api::list_parameters::{cursor, read_cursor},
    domain::id::PetId,
};

crate::target!("cursor", check);

/// Checks the input as a cursor, as the content of one, and as a number.
fn check(input: &[u8]) {
    if let Ok(text) = str::from_utf8(input)
        && let Ok(id) = read_cursor::<PetId>(text)
    {
        assert_eq!(cursor(id), text);
    }
    if let Ok(id) = read_cursor::<PetId>(&BASE64_URL_SAFE_NO_PAD.encode(input)) {
        assert_eq!(id.to_string().as_bytes(), input);
    }
    if let Some(number) = input.first_chunk()
        && let Ok(id) = PetId::new(i64::from_le_bytes(*number))
    {
        assert_eq!(read_cursor(&cursor(id)), Ok(id));
    }
}
