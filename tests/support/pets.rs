//! Pets for requests, of any size, and a request of each kind about them.

use reqwest::Method;
use serde_json::{Value, json};

use crate::Call;

/// Returns a pet with `marker` in each of its parts.
pub fn marked_pet(id: Option<i64>, marker: &str) -> Value {
    let photo = format!("/{marker}");
    json!({"id": id, "name": marker, "photoUrls": [photo], "tags": [{"name": marker}]})
}

/// Identifier that no test gives to a pet.
pub const UNKNOWN_PET: i64 = 9_007_199_254_740_990;

/// Returns a request of each kind that needs PostgreSQL. `request` makes one to a path of the API; pet `replaced` is replaced if
/// there is one.
pub fn requests_of_each_kind(request: impl Fn(Method, &str) -> Call, replaced: i64) -> [Call; 7] {
    let new = marked_pet(None, "a");
    let add = || request(Method::POST, "/pet").json(&new);
    [
        request(Method::GET, "/pet/1"),
        request(Method::GET, "/pet/findByStatus?status=sold"),
        request(Method::GET, "/pet/findByTags?tags=a&limit=5"),
        add(),
        add().header("idempotency-key", "k"),
        request(Method::PUT, "/pet").json(&marked_pet(Some(replaced), "b")),
        request(Method::DELETE, &format!("/pet/{UNKNOWN_PET}")),
    ]
}

/// Returns a pet of `size` bytes as compact JSON with an id of 16 digits, at least 200. The service accepts 16,384.
pub fn pet_of_size(name: &str, size: usize) -> Value {
    /// Brackets and the comma around a URL.
    const AROUND: usize = 3;
    const LONGEST: usize = 2_048 + AROUND;
    let mut pet =
        json!({"name": name, "photoUrls": [], "tags": [{"name": "large"}], "status": "available"});
    let others = r#""id":9007199254740991,"#.len() + pet.to_string().len();
    // The first URL has no comma.
    let size = size - others + 1;
    let count = size.div_ceil(LONGEST);
    let urls = (0..count).map(|number| {
        let length = size / count + usize::from(number < size % count);
        format!("/{}", "y".repeat(length - AROUND - 1))
    });
    pet["photoUrls"] = urls.collect();
    pet
}
