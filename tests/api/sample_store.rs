//! Sample store: what is added, once, and what its removal leaves.

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
    let names = "select count(distinct name) from pets";
    assert_eq!(app.database.number(names).await, 30);
    add().await.problem(409);
}

#[tokio::test(flavor = "multi_thread")]
async fn seed_adds_what_is_missing_and_removes_what_it_added() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let database = &commands.database;
    let seed = async |arguments: &[&str]| {
        let arguments = [&["--json", "seed"], arguments].concat();
        commands.json(&arguments).await
    };
    let nothing = json!({"pets": 0, "orders": 0});
    assert_eq!(seed(&["--remove"]).await, nothing);
    assert_eq!(seed(&[]).await, json!({"pets": PETS, "orders": ORDERS}));
    assert_eq!(seed(&[]).await, nothing);
    let output = commands.run(&["seed"]).await.is(0);
    assert!(output.stdout.contains("is there already"), "{output:?}");

    // One is deleted, and a client uses its id; others are changed, sold and ordered.
    let deleted = "delete from pets where name = 'Rio'";
    database.run(deleted).await;
    for change in [
        "insert into pets (id, status, name, category, photo_urls, tags)
         select missing, 'available', 'Mine', null, '{}', '[]'
         from generate_series(1, 30) as missing where missing not in (select id from pets)",
        "update pets set name = 'Renamed', photo_urls = '{}' where name = 'Bella'",
        "insert into orders (id, owner, pet_id, held_pet, quantity, status, complete)
         select 1000, 0, id, id, 1, 'placed', false from pets where name = 'Milo'",
        "insert into orders (id, owner, pet_id, quantity, status, complete)
         select 1001, 0, id, 1, 'delivered', true from pets where name = 'Kiwi'",
    ] {
        database.run(change).await;
    }
    let removed = json!({"pets": PETS - 1, "orders": ORDERS + 1});
    assert_eq!(seed(&["--remove"]).await, removed);
    let left = "select count(*) from pets where name = 'Mine'";
    assert_eq!(database.number(left).await, 1);
    assert_eq!(database.number("select count(*) from pets").await, 1);
    assert_eq!(database.number("select id from orders").await, 1_001);
    assert_eq!(database.number("select count(*) from images").await, 0);
    let recorded = "select count(*) from new_changes
         where action = 'deleted' and actor = 'operator' and kind in ('pet', 'image', 'order')";
    let expected = i64::try_from(2 * (PETS - 1) + ORDERS + 1).expect("a number");
    assert_eq!(database.number(recorded).await, expected);
    assert_eq!(seed(&["--remove"]).await, nothing);
    assert_eq!(seed(&[]).await, json!({"pets": PETS, "orders": ORDERS}));
    assert_eq!(database.number("select count(*) from pets").await, 31);
}
