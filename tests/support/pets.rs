//! Pets of any size.

use serde_json::{Value, json};

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
