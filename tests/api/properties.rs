//! Property tests: valid pets are returned as sent, and no input causes a 5xx.

use std::{
    future::Future,
    sync::atomic::{AtomicU16, Ordering},
};

use proptest::{
    collection::vec,
    option,
    prelude::*,
    sample::select,
    test_runner::{Config, TestCaseError, TestRunner},
};
use reqwest::header::{HeaderName, HeaderValue};
use serde_json::Map;
use test_support::*;

const MAX_ID: i64 = (1 << 53) - 1;

/// Checks an asynchronous property of generated values.
fn check<S: Strategy, F: Future<Output = Result<(), TestCaseError>>>(
    cases: u32,
    strategy: &S,
    property: impl Fn(S::Value) -> F,
) {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let runtime = tokio::runtime::Handle::current();
    tokio::task::block_in_place(|| {
        let outcome =
            TestRunner::new(config).run(strategy, |value| runtime.block_on(property(value)));
        if let Err(error) = outcome {
            panic!("{error}");
        }
    });
}

/// Generates text of `shortest` to 255 characters without NUL.
fn text(shortest: usize) -> impl Strategy<Value = String> {
    let character = prop_oneof![
        4 => prop::char::range(' ', '~'),
        2 => any::<char>(),
        1 => select(vec!['"', '\\', '\u{1}', '\n', '\u{7f}', '\u{2028}', '\u{feff}', '\u{10ffff}', '\u{301}', '🦊', 'ß']),
    ];
    let character = character.prop_filter("not NUL", |character| *character != '\0');
    let lengths = prop_oneof![8 => shortest..20_usize, 1 => 250..=255_usize];
    lengths
        .prop_flat_map(move |length| vec(character.clone(), length))
        .prop_map(|characters| characters.into_iter().collect())
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![-MAX_ID..=MAX_ID, select(vec![0, 1, -1, -MAX_ID, MAX_ID])]
}

/// Generates a category or a tag with optional fields.
fn label() -> impl Strategy<Value = Value> {
    (option::of(number()), option::of(text(0))).prop_map(|(id, name)| {
        let mut label = Map::new();
        label.extend(id.map(|id| ("id".to_owned(), json!(id))));
        label.extend(name.map(|name| ("name".to_owned(), json!(name))));
        label.into()
    })
}

fn photo_url() -> impl Strategy<Value = String> {
    let path = "[a-zA-Z0-9._~!$&'()*+,;=:@%/ü🦊-]{0,40}";
    prop_oneof![
        path.prop_map(|path| format!("https://example.com/{path}")),
        path.prop_map(|path| format!("http://[::1]:8080/{path}?a=b#c")),
        path.prop_map(|path| format!("/{path}").replacen("//", "/", 1)),
        "[a-z]{1,8}(/[a-z.]{0,5}){0,3}",
        Just("?page=2".to_owned()),
        Just(format!("/{}", "é".repeat(2_047))),
    ]
}

fn status() -> impl Strategy<Value = &'static str> {
    select(vec!["available", "pending", "sold"])
}

/// Generates a valid pet with optional fields present or absent.
fn pet() -> impl Strategy<Value = Value> {
    let many = |length: usize| prop_oneof![6 => 0..4_usize, 1 => Just(length)];
    let id = prop_oneof![1..=MAX_ID, Just(1), Just(MAX_ID)];
    let photo_urls = many(100).prop_flat_map(|length| vec(photo_url(), length));
    let tags = many(100).prop_flat_map(|length| vec(label(), length));
    let optional = (
        option::of(label()),
        option::of(photo_urls),
        option::of(tags),
        option::of(status()),
    );
    // A character of which is visible.
    let name = text(0).prop_map(|name| format!("{}x", name.chars().take(254).collect::<String>()));
    (id, name, optional)
        .prop_map(|(id, name, (category, photo_urls, tags, status))| {
            let mut pet = Map::new();
            pet.insert("id".into(), id.into());
            pet.insert("name".into(), name.into());
            pet.extend(category.map(|category| ("category".to_owned(), category)));
            pet.extend(photo_urls.map(|urls| ("photoUrls".to_owned(), json!(urls))));
            pet.extend(tags.map(|tags| ("tags".to_owned(), json!(tags))));
            pet.extend(status.map(|status| ("status".to_owned(), json!(status))));
            pet.into()
        })
        .prop_filter("a pet has at most 16 KiB", |pet: &Value| {
            let mut longest = with_defaults(pet.clone());
            longest["id"] = json!(MAX_ID);
            longest.to_string().len() <= 16 << 10
        })
}

/// Returns the pet with the defaults that responses have for absent fields.
fn with_defaults(mut pet: Value) -> Value {
    for (field, default) in [
        ("photoUrls", json!([])),
        ("tags", json!([])),
        ("status", json!("available")),
    ] {
        if pet.get(field).is_none() {
            pet[field] = default;
        }
    }
    pet
}

#[tokio::test(flavor = "multi_thread")]
async fn valid_pet_is_returned_as_sent() {
    let app = TestApp::start().await;
    check(200, &(pet(), pet()), |(first, second)| {
        let app = &app;
        async move {
            let id = first["id"].as_i64().unwrap_or_default();
            let second = {
                let mut second = second;
                second["id"] = json!(id);
                second
            };
            let expected = with_defaults(first.clone());
            let added = app.post("/pet", &first).await;
            prop_assert_eq!(added.status, 201, "{}", added);
            prop_assert_eq!(&added.json(), &expected);
            let fetched = app.get(&format!("/pet/{id}")).await;
            prop_assert_eq!(&fetched.body, &added.body);
            let replaced = app.put("/pet", &second).await;
            prop_assert_eq!(replaced.status, 200, "{}", replaced);
            prop_assert_eq!(&replaced.json(), &with_defaults(second));
            let fetched = app.get(&format!("/pet/{id}")).await;
            prop_assert_eq!(&fetched.body, &replaced.body);
            // PUT and PATCH of the pet as returned change nothing.
            let same = app.put("/pet", &fetched.json()).await;
            prop_assert_eq!(&same.body, &fetched.body);
            let same = app.patch(&format!("/pet/{id}"), &fetched.json()).await;
            prop_assert_eq!(&same.body, &fetched.body);
            let deleted = app.delete(&format!("/pet/{id}")).await;
            prop_assert_eq!(deleted.status, 200, "{}", deleted);
            Ok(())
        }
    });
    assert_eq!(app.count().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn find_by_tags_finds_any_tag_name() {
    let app = TestApp::start().await;
    let name = text(1).prop_filter("a comma separates", |name| !name.contains(','));
    check(100, &(name, text(0)), |(name, other)| {
        let app = &app;
        async move {
            let pet = json!({"name": "a", "tags": [{"name": other}, {"name": name}, {"id": 1}]});
            let id = app.post("/pet", &pet).is(201).await.id();
            for extra in [("match", "any"), ("match", "all"), ("limit", "1000")] {
                let query = [("tags", name.as_str()), extra];
                let found = app.get("/pet/findByTags").query(&query).await;
                prop_assert_eq!(found.ids(), vec![id], "{}", found);
            }
            app.delete(&format!("/pet/{id}")).is(200).await;
            Ok(())
        }
    });
}

/// Generates any JSON value, also deeply nested ones.
fn nonsense() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        select(vec![
            "\0",
            "a\0b",
            "sold",
            "available",
            "https://example.com",
            "//",
            "javascript:x"
        ])
        .prop_map(Value::from),
    ];
    let deep =
        (1..200_usize).prop_map(|depth| (0..depth).fold(json!(1), |inner, _| json!([inner])));
    let shallow = leaf.prop_recursive(3, 16, 4, |inner| {
        let names = select(vec![
            "id",
            "name",
            "category",
            "tags",
            "photoUrls",
            "status",
            "x",
            "",
        ]);
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((names, inner), 0..4).prop_map(|members| {
                members
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect()
            }),
        ]
    });
    prop_oneof![9 => shallow, 1 => deep]
}

/// Counts a value and all values nested in it.
fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(nodes).sum(),
        Value::Object(members) => members.values().map(nodes).sum(),
        _ => 0,
    }
}

/// Replaces the nested value with the depth-first index `at`, which is `usize::MAX` afterwards.
fn replace_node(value: &mut Value, at: &mut usize, with: &Value) {
    if *at == 0 {
        *value = with.clone();
        *at = usize::MAX;
        return;
    }
    *at -= 1;
    let children: Vec<&mut Value> = match value {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(members) => members.values_mut().collect(),
        _ => Vec::new(),
    };
    for child in children {
        replace_node(child, at, with);
        if *at == usize::MAX {
            return;
        }
    }
}

/// Edit of the text of a JSON document.
#[derive(Debug, Clone)]
enum Edit {
    Byte(prop::sample::Index, u8),
    Insert(prop::sample::Index, &'static str),
    Cut(prop::sample::Index, usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    let snippets = select(vec![
        "\\ud800",
        "\\udc00\\ud800",
        "\\u0000",
        "1e999",
        "-0",
        "0.1",
        "123456789012345678901234567890",
        "\"name\":\"again\",",
        "\"id\":7,",
        "[[[[[[[[",
        "{\"a\":",
        "null",
        "\u{feff}",
        "\u{0}",
        "//",
        "NaN",
        ",,",
        "\"",
        "}",
        "]",
        " ",
        "\\",
        "\"tags\":[],\"tags\":[{}],",
    ]);
    prop_oneof![
        (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, byte)| Edit::Byte(at, byte)),
        (any::<prop::sample::Index>(), snippets).prop_map(|(at, text)| Edit::Insert(at, text)),
        (any::<prop::sample::Index>(), 1..20_usize).prop_map(|(at, length)| Edit::Cut(at, length)),
    ]
}

fn edited(mut text: Vec<u8>, edits: &[Edit]) -> Vec<u8> {
    for edit in edits {
        if text.is_empty() {
            break;
        }
        match edit {
            Edit::Byte(at, byte) => {
                let at = at.index(text.len());
                text[at] = *byte;
            }
            Edit::Insert(at, snippet) => {
                let at = at.index(text.len());
                text.splice(at..at, snippet.bytes());
            }
            Edit::Cut(at, length) => {
                let at = at.index(text.len());
                text.drain(at..text.len().min(at + length));
            }
        }
    }
    text
}

/// Checks that the response is not a 5xx, and is a problem document if it is a 4xx.
fn check_client_error(response: &Response) -> Result<(), TestCaseError> {
    let status = response.status;
    prop_assert!(status < 500, "{}", response);
    if status >= 400 {
        response.problem(status);
    }
    Ok(())
}

/// Sends a body to every operation that takes a pet.
async fn send_everywhere(app: &TestApp, body: Vec<u8>) -> Result<(), TestCaseError> {
    for (method, path) in [
        (Method::POST, "/pet"),
        (Method::PUT, "/pet"),
        (Method::PATCH, "/pet/1"),
    ] {
        let request = app
            .request(method, path)
            .header("content-type", "application/json");
        check_client_error(&request.body(body.clone()).await)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pet_with_edited_text_is_never_5xx() {
    let app = TestApp::start().await;
    app.post("/pet", &json!({"id": 1, "name": "a"}))
        .is(201)
        .await;
    check(300, &(pet(), vec(edit(), 1..4)), |(pet, edits)| {
        send_everywhere(&app, edited(pet.to_string().into_bytes(), &edits))
    });
    app.get("/pet/1").is(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pet_with_replaced_value_is_never_5xx() {
    let app = TestApp::start().await;
    app.post("/pet", &json!({"id": 1, "name": "a"}))
        .is(201)
        .await;
    let strategy = (pet(), any::<prop::sample::Index>(), nonsense());
    check(300, &strategy, |(mut pet, at, with)| {
        let mut at = at.index(nodes(&pet));
        replace_node(&mut pet, &mut at, &with);
        send_everywhere(&app, pet.to_string().into_bytes())
    });
    app.get("/pet/1").is(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn find_and_form_update_with_any_query_are_never_5xx() {
    let app = TestApp::start().await;
    let name = select(vec![
        "status", "tags", "limit", "cursor", "match", "name", "x", "",
    ]);
    let value = prop_oneof![
        "[ -~]{0,12}",
        "(%[0-9a-fA-F]{2}|%|[a-z,&=+;]){0,12}",
        select(vec![
            "sold",
            "available,pending",
            "1",
            "1000",
            "any",
            "all",
            "MQ",
            "%00",
            "%FF",
            "a,,b",
            "-1",
            "9e9"
        ])
        .prop_map(str::to_owned),
    ];
    let value = value.prop_map(|value: String| {
        value.replace(
            ['#', ' ', '"', '<', '>', '\\', '^', '`', '{', '|', '}'],
            "+",
        )
    });
    check(300, &vec((name, value), 0..5), |pairs| {
        let pairs: Vec<String> = pairs
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let query = pairs.join("&");
        let app = &app;
        async move {
            for path in ["/pet/findByStatus", "/pet/findByTags"] {
                check_client_error(&app.get(&format!("{path}?{query}")).await)?;
            }
            let update = app.request(Method::POST, &format!("/pet/1?{query}"));
            check_client_error(&update.await)?;
            let form = app.request(Method::POST, "/pet/1");
            let form = form.header("content-type", "application/x-www-form-urlencoded");
            check_client_error(&form.body(query).await)
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_any_header_values_are_never_5xx() {
    // Each case has its own client address, because failed authentications are limited per address.
    let proxies = [("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.1")];
    let app = TestApp::with(&proxies).await;
    let next = AtomicU16::new(0);
    app.post("/pet", &json!({"id": 1, "name": "a"}))
        .is(201)
        .await;
    let name = select(vec![
        "api_key",
        "authorization",
        "if-match",
        "if-none-match",
        "idempotency-key",
        "x-request-id",
        "accept",
        "content-type",
        "range",
        "cookie",
        "x-forwarded-for",
        "origin",
        "accept-encoding",
        "expect",
        "via",
    ]);
    let value = prop_oneof![
        vec(prop_oneof![0x20..=0x7e_u8, 0x80..=0xff_u8], 0..40),
        "(W/)?\"[!-~]{0,8}\"?(, ?(W/)?\"[0-9]{0,20}\"){0,3}".prop_map(String::into_bytes),
        "Bearer [ -~]{0,30}".prop_map(String::into_bytes),
    ];
    check(300, &vec((name, value), 1..4), |headers| {
        let app = &app;
        let [high, low] = next.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        async move {
            for (method, path) in [
                (Method::GET, "/pet/1"),
                (Method::POST, "/pet/1?name=b"),
                (Method::PATCH, "/pet/1"),
            ] {
                let mut request = app.request(method, path).body("{}");
                for (name, value) in &headers {
                    let value = HeaderValue::from_bytes(value).expect("a value");
                    request = request.header(HeaderName::from_static(name), value);
                }
                let address = format!("198.18.{high}.{low}");
                let request = request.header("x-forwarded-for", address);
                check_client_error(&request.await)?;
            }
            Ok(())
        }
    });
    app.get("/pet/1").is(200).await;
}
