//! Test of the image store that a physical copy of the PostgreSQL cluster shares with the original.

use std::process::Command;

use test_support::*;

use super::url_of;

const KEY: &str = "special-key";
/// Metric that is 1 while the store belongs to another cluster.
const CONFLICT: &str = "images_store_conflict";

async fn delete(service: &Service, path: &str) {
    service.request(Method::DELETE, path, KEY).is(200).await;
}

/// Adds a pet with an image; returns the path of the image.
async fn add(service: &Service, pet: u32) -> String {
    let body = json!({"id": pet, "name": "Rex"});
    let added = service.request(Method::POST, "/pet", KEY).json(&body);
    added.is(201).await;
    upload(service, pet, 10).await
}

async fn upload(service: &Service, pet: u32, height: u32) -> String {
    let upload = service.request(Method::POST, &format!("/pet/{pet}/uploadImage"), KEY);
    let stored = upload.body(png(10 + pet, height)).await;
    stored.is(200).image_path()
}

async fn assert_served(service: &Service, image: &str) {
    service.request(Method::GET, image, KEY).is(200).await;
}

async fn wait_for_report(service: &Service) {
    eventually(async || service.log().contains("skipped orphaned blobs")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_of_the_cluster_deletes_no_images_and_reports_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path();
    let [home, home_of_copy] =
        [(); 2].map(|()| Home::new().with("PET_INVENTORY__IMAGES__URL", url_of(place)));
    let original = home.serve().await;
    let mut images = Vec::new();
    for pet in 1..=3 {
        images.push(add(&original, pet).await);
    }
    original.stop().await;
    let copied = Command::new("cp")
        .arg("-a")
        .arg(home.path().join("data"))
        .arg(home_of_copy.path())
        .status();
    assert!(copied.expect("cp").success());
    let (original, copy) = (home.serve().await, home_of_copy.serve().await);

    // The original claims the store, and deletes an image.
    delete(&original, "/pet/1").await;
    eventually(async || files_in(place).len() == 2).await;
    // The copy deletes no bytes: the original refers to them.
    delete(&copy, "/pet/2").await;
    wait_for_report(&copy).await;
    assert_served(&original, &images[1]).await;
    assert_eq!(copy.sample(CONFLICT).await, Some(1));
    let check = home_of_copy.run(&["check"]).await.is(1);
    check.stdout_has("FAILED  images");
    check.stdout_has("run: pet-inventory claim-images");
    // From then on, nor does the original: the copy refers to them.
    assert_eq!(original.sample(CONFLICT).await, Some(0));
    delete(&original, "/pet/3").await;
    wait_for_report(&original).await;
    assert_served(&copy, &images[2]).await;
    assert_eq!(original.sample(CONFLICT).await, Some(1));
    assert_eq!(files_in(place).len(), 2);

    // Without the copy and its mark, the original deletes bytes again.
    copy.stop().await;
    home.run(&["claim-images"]).await.is(0);
    let image = upload(&original, 2, 20).await;
    delete(&original, &image).await;
    eventually(async || files_in(place).len() == 1).await;
    assert_served(&original, &images[1]).await;
    home.run(&["check"]).await.is(0);
    original.stop().await;
}
