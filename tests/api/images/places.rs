//! Where the bytes are: what crashes leave is found again, and a place that fails fails by itself.

use std::{
    fs::{self, File},
    time::{Duration, SystemTime},
};

use super::{ImageApp, files_in, pictures::png, url_of};
use crate::support::{Ask, TestApp, eventually};

fn make_old(path: &std::path::Path) {
    let hours = Duration::from_hours(2);
    let file = File::options().write(true).open(path).expect("a file");
    file.set_modified(SystemTime::now() - hours)
        .expect("its time");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_without_a_row_are_deleted_once_they_are_old() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let image = app.image(pet, &png(10, 10)).await;
    let [kept] = &app.files()[..] else {
        panic!("{:?}", app.files());
    };
    make_old(kept);
    let folder = app.folder.path().join("ab");
    fs::create_dir_all(&folder).expect("a folder");
    let orphan = folder.join("ab000000000000000000000000000000");
    let half = folder.join("ab000000000000000000000000000001#1");
    let (young, young_half) = (folder.join("ab02"), folder.join("ab03#1"));
    for path in [&orphan, &half, &young, &young_half] {
        fs::write(path, "x").expect("a file");
    }
    make_old(&orphan);
    make_old(&half);
    // Another process that starts looks for them first.
    let url = url_of(app.folder.path());
    let _second = TestApp::beside(&app, &[("PET_INVENTORY__IMAGES__URL", &url)]).await;
    eventually(async || !orphan.exists() && !half.exists()).await;
    assert!(young.exists() && young_half.exists() && kept.exists());
    app.image_of(pet, &image).answer().await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_folder_before_there_is_an_image() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path().join("some where/images");
    let url = url_of(&folder).replace(' ', "%20");
    let app = TestApp::with(&[("PET_INVENTORY__IMAGES__URL", &url)]).await;
    let pet = app.pet("Rex").await;
    app.get(&format!("/pet/{pet}/images"))
        .answer()
        .await
        .is(200);
    assert!(!folder.exists());
    let upload = app.request(reqwest::Method::POST, &format!("/pet/{pet}/uploadImage"));
    upload.body(png(10, 10)).answer().await.is(200);
    assert_eq!(files_in(&folder).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_cannot_be_written_is_a_problem_of_images_alone() {
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("file");
    fs::write(&file, "in the way").expect("a file");
    let app = TestApp::with(&[("PET_INVENTORY__IMAGES__URL", &url_of(&file))]).await;
    let pet = app.pet("Rex").await;
    let upload = app.request(reqwest::Method::POST, &format!("/pet/{pet}/uploadImage"));
    let answer = upload.body(png(10, 10)).answer().await;
    answer.problem(503);
    assert!(!answer.text().contains("file"), "{answer}");
    app.get(&format!("/pet/{pet}")).answer().await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_missing_are_our_fault() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let image = app.image(pet, &png(10, 10)).await;
    for path in app.files() {
        fs::remove_file(path).expect("removed");
    }
    let answer = app.image_of(pet, &image).answer().await;
    answer.problem(500);
    assert_eq!(answer.optional_header("cache-control"), None, "{answer}");
    // What is deleted is deleted, all the same.
    app.delete(&format!("/pet/{pet}/images/{image}"))
        .answer()
        .await
        .is(200);
    let leftovers = "select count(*) from image_leftovers";
    eventually(async || app.database.number(leftovers).await == 0).await;
}
