//! Where the bytes are: what crashes leave is found again, and a place that fails fails by itself.

use std::{
    fs::{self, File},
    path::Path,
    time::{Duration, SystemTime},
};

use futures_util::future::join_all;
use pet_inventory::{
    app::images::sweep_orphans,
    blobs::Blobs,
    db::{self, Database},
};

use super::{ImageApp, files_in, pictures::png, url_of};
use crate::support::{Ask, TestApp, config, eventually, postgres::TestDatabase};

const DAY: Duration = Duration::from_hours(24);

fn make_old(path: &Path) {
    let file = File::options().write(true).open(path).expect("a file");
    file.set_modified(SystemTime::now() - 2 * DAY)
        .expect("its time");
}

/// Deletes what a database knows nothing of from a place.
async fn sweep(database: &TestDatabase, folder: &Path) {
    let settings = [("PET_INVENTORY__IMAGES__URL", &*url_of(folder))];
    let config = config(&database.url(), &settings);
    let blobs = Blobs::new(&config).expect("a place");
    let options = db::parse_url(&database.url().into()).expect("a URL");
    let database = Database::new(options, &config.database);
    sweep_orphans(&database, &blobs, DAY).await.expect("swept");
    database.close().await;
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
    let place = app.folder.path();
    let file = |name: &str| {
        let path = place.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, "x").expect("a file");
        path
    };
    let old = |name: &str| {
        let path = file(name);
        make_old(&path);
        path
    };
    let orphan = old("ab/ab000000000000000000000000000000");
    let half = old("ab/ab000000000000000000000000000001#1");
    let stays = [
        file("ab/ab000000000000000000000000000002"),
        file("ab/ab000000000000000000000000000003#1"),
        // Old, and not ours.
        old("ab000000000000000000000000000004"),
        old("ab/ab05"),
        old("ab/holiday.jpg"),
        old("ab/notes#1"),
        old("ab/cd000000000000000000000000000006"),
        old("ab/ab/ab000000000000000000000000000007"),
        old("holidays/2024/beach.jpg"),
    ];
    sweep(&app.database, place).await;
    assert!(!orphan.exists() && !half.exists() && kept.exists());
    for path in stays {
        assert!(path.exists(), "{} is gone", path.display());
    }
    app.image_of(pet, &image).answer().await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_deletes_nothing_in_the_place_of_another() {
    let app = ImageApp::start().await;
    let place = app.folder.path();
    let orphan = place.join("ab/ab000000000000000000000000000000");
    fs::create_dir(place.join("ab")).expect("a folder");
    fs::write(&orphan, "x").expect("a file");
    make_old(&orphan);
    // Nobody's yet.
    sweep(&app.database, place).await;
    assert!(orphan.exists());
    let pet = app.pet("Rex").await;
    app.image(pet, &png(10, 10)).await;
    for path in app.files() {
        make_old(&path);
    }
    let other = ImageApp::start().await;
    sweep(&other.database, place).await;
    // Nor does it become its own by storing an image there.
    let url = url_of(place);
    let there = TestApp::with(&[("PET_INVENTORY__IMAGES__URL", &url)]).await;
    let pet = there.pet("Max").await;
    let upload = there.request(reqwest::Method::POST, &format!("/pet/{pet}/uploadImage"));
    upload.body(png(11, 11)).answer().await.is(200);
    sweep(&there.database, place).await;
    assert_eq!(app.files().len(), 3);
    sweep(&app.database, place).await;
    assert!(!orphan.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_cannot_be_deleted_keep_no_others() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let image = app.image(pet, &png(10, 10)).await;
    // A folder is no file, and this one comes first.
    let stuck = "00/00000000000000000000000000000000";
    fs::create_dir_all(app.folder.path().join(stuck)).expect("a folder");
    let insert = format!("insert into image_leftovers values ('{stuck}')");
    app.database.run(&insert).await;
    app.delete(&format!("/pet/{pet}/images/{image}"))
        .answer()
        .await
        .is(200);
    app.files_become(0).await;
    let leftovers = "select count(*) from image_leftovers";
    eventually(async || app.database.number(leftovers).await == 1).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_rendering_whose_bytes_are_lost_is_made_anew() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let image = app.image(pet, &png(100, 100)).await;
    let original = app.files();
    let small = async || {
        let ask = app.image_of(pet, &image).query(&[("width", 16)]);
        ask.answer().await.is(200)
    };
    let first = small().await;
    for path in app.files() {
        if !original.contains(&path) {
            fs::remove_file(path).expect("removed");
        }
    }
    let again = small().await;
    assert_eq!(again.body, first.body);
    assert_ne!(again.etag(), first.etag());
    app.files_become(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_goes_while_it_is_asked_for_is_not_there() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    for side in 20..40 {
        let image = app.image(pet, &png(side, side)).await;
        let asking = join_all((0..16).map(|width| {
            let ask = app.image_of(pet, &image);
            let ask = match width {
                0..8 => ask,
                _ => ask.query(&[("width", 16)]),
            };
            ask.answer()
        }));
        let deleting = app.delete(&format!("/pet/{pet}/images/{image}"));
        let (answers, deleted) = tokio::join!(asking, deleting.answer());
        deleted.is(200);
        for answer in answers {
            assert!([200, 404].contains(&answer.status.as_u16()), "{answer}");
        }
    }
    app.nothing_is_stored().await;
}
