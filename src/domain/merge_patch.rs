//! JSON Merge Patch (RFC 7396).

use serde_json::{Map, Value};

/// Applies `patch` to `target` (RFC 7396 §2): merges objects member by member, where `null` removes a member; any
/// other patch replaces the target.
pub fn apply(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    if let Value::Object(members) = target {
        for (name, value) in patch {
            if value.is_null() {
                members.remove(&name);
            } else {
                apply(members.entry(name).or_insert(Value::Null), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All examples of RFC 7396, appendix A: the original, the patch and the result.
    const EXAMPLES: &str = r#"
        {"a":"b"} {"a":"c"} {"a":"c"}
        {"a":"b"} {"b":"c"} {"a":"b","b":"c"}
        {"a":"b"} {"a":null} {}
        {"a":"b","b":"c"} {"a":null} {"b":"c"}
        {"a":["b"]} {"a":"c"} {"a":"c"}
        {"a":"c"} {"a":["b"]} {"a":["b"]}
        {"a":{"b":"c"}} {"a":{"b":"d","c":null}} {"a":{"b":"d"}}
        {"a":[{"b":"c"}]} {"a":[1]} {"a":[1]}
        ["a","b"] ["c","d"] ["c","d"]
        {"a":"b"} ["c"] ["c"]
        {"a":"foo"} null null
        {"a":"foo"} "bar" "bar"
        {"e":null} {"a":1} {"e":null,"a":1}
        [1,2] {"a":"b","c":null} {"a":"b"}
        {} {"a":{"bb":{"ccc":null}}} {"a":{"bb":{}}}
    "#;

    #[test]
    fn follows_the_examples_of_the_rfc() {
        for example in EXAMPLES.trim().lines() {
            let values = serde_json::Deserializer::from_str(example).into_iter();
            let values: Vec<Value> = values.collect::<Result<_, _>>().expect("JSON");
            let [mut target, patch, result] = values.try_into().expect("three values");
            apply(&mut target, patch);
            assert_eq!(target, result, "{example}");
        }
    }
}
