//! Tests of the sample store.

use test_support::*;

use super::cli::Commands;

const PETS: usize = 30;
const ORDERS: usize = 6;

/// Returns the array at a path.
async fn list(app: &TestApp, path: &str) -> Vec<Value> {
    let list = app.get(path).is(200).await.json();
    list.as_array().expect("an array").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_store_is_added_to_an_empty_store() {
    let app = TestApp::start().await;
    let add = || app.request(Method::POST, "/admin/sample-store");
    let responses = send_all((0..4).map(|_| add())).await;
    let (added, refused): (Vec<Response>, _) =
        (responses.into_iter()).partition(|it| it.status == 201);
    assert_eq!(added.len(), 1);
    assert_eq!(added[0].json(), json!({"pets": PETS, "orders": ORDERS}));
    assert_eq!(added[0].header("location"), "/api/v3/pet");
    for response in refused {
        // Or it waited for the first one for longer than a statement may.
        assert!([409, 503].contains(&response.status), "{response}");
    }

    let pets = list(&app, "/pet?limit=100").await;
    assert_eq!(pets.len(), PETS);
    for pet in &pets {
        assert!(pet["category"]["name"].is_string(), "{pet}");
        assert!(pet["tags"].as_array().is_some_and(|it| it.len() > 1));
        let images = list(&app, &format!("/pet/{}/images", pet["id"])).await;
        let [image] = &images[..] else {
            panic!("{images:?}")
        };
        assert_eq!(pet["photoUrls"], json!([image["url"]]));
        assert_eq!(
            (&image["width"], &image["height"]),
            (&json!(480), &json!(360))
        );
        let url = image["url"].as_str().expect("a URL");
        let bytes = client().get(url).is(200).await.body;
        assert!(
            (1_000..=10_000).contains(&bytes.len()),
            "{pet}: {}",
            bytes.len()
        );
        assert_eq!(image["size"], bytes.len());
        // Decodes the picture.
        client().get(format!("{url}?width=384")).is(200).await;
    }
    let orders = list(&app, "/store/orders").await;
    assert_eq!(orders.len(), ORDERS);
    let inventory = app.get("/store/inventory").is(200).await.json();
    assert_eq!(inventory, json!({"available": 24, "pending": 4, "sold": 2}));
    let names = "select count(distinct details ->> 'name') from pets";
    assert_eq!(app.database.number(names).await, 30);
    add().await.problem(409);
}

#[tokio::test(flavor = "multi_thread")]
async fn seed_adds_to_an_empty_store_only() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let added = commands.json(&["--json", "seed"]).await;
    assert_eq!(added, json!({"pets": PETS, "orders": ORDERS}));
    let output = commands.run(&["seed"]).await.is(1);
    output.stderr_has("only to a store without pets");
    let pets = commands.database.number("select count(*) from pets").await;
    assert_eq!(usize::try_from(pets), Ok(PETS));
}
