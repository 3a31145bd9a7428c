//! Queries and forms: the parameters are those that `url` reads, and those that are kept for the next page are the same.

use std::borrow::Cow;

use pet_inventory::api::extract::Parameters;
use url::form_urlencoded;

crate::target!("query", check);

fn check(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    let expected: Vec<_> = form_urlencoded::parse(input).collect();
    let (parameters, memory) = crate::measure(|| Parameters::parse(text, "query"));
    // A parameter of two bytes takes about 100, up to a number of them.
    let max_memory = 4 * input.len() as u64 + 200_000;
    assert!(memory <= max_memory, "{memory} bytes for {}", input.len());
    let Ok(parameters) = parameters else {
        let is_replaced = |text: &Cow<'_, str>| text.contains('\u{fffd}');
        let mut read = expected.iter();
        assert!(
            expected.len() > 1_000
                || read.any(|(name, value)| is_replaced(name) || is_replaced(value))
        );
        return;
    };
    for (name, _) in &expected {
        let named = expected.iter().filter(|(other, _)| other == name);
        let values: Vec<_> = named.map(|(_, value)| &**value).collect();
        assert_eq!(parameters.all(name).collect::<Vec<_>>(), values);
    }
    let names: Vec<_> = expected
        .iter()
        .map(|(name, _)| &**name)
        .step_by(2)
        .collect();
    let next = parameters.query_with(&names, ("cursor", "MQ"));
    let mut kept: Vec<_> = expected.clone();
    kept.retain(|(name, _)| names.contains(&&**name));
    kept.push(("cursor".into(), "MQ".into()));
    assert_eq!(
        form_urlencoded::parse(next.as_bytes()).collect::<Vec<_>>(),
        kept
    );
}
