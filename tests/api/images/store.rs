//! Tests of the image store: orphaned and missing blobs, ownership, and failures of the store.

use std::{
    fs::{self, File},
    time::SystemTime,
};

use pet_inventory::{
    blob_store::BlobStore,
    db::{self, Database},
    maintenance::orphaned_blobs::sweep_orphans,
};
use test_support::postgres::TestDatabase;
use test_support::*;

use super::{ImageApp, url_of};

const DAY: Duration = Duration::from_hours(24);

fn make_old(path: &Path) {
    let file = File::options().write(true).open(path).expect("a file");
    file.set_modified(SystemTime::now() - 2 * DAY)
        .expect("its time");
}

/// Deletes the blobs in `folder` that are older than a day and not in `database`.
async fn sweep(database: &TestDatabase, folder: &Path) {
    let settings = [("PET_INVENTORY__IMAGES__URL", &*url_of(folder))];
    let config = config(&database.url(), &settings);
    let blobs = BlobStore::new(&config).expect("a place");
    let options = db::DatabaseUrl::parse(&database.url().into(), None)
        .expect("a URL")
        .options;
    let database = Database::new(options, &config.database);
    sweep_orphans(&database, &blobs, DAY).await.expect("swept");
    database.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sweep_deletes_old_orphaned_blobs_only() {
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
        // Old, but not names of blobs.
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
    app.image_of(pet, &image).is(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sweep_skips_the_store_of_another_database() {
    let app = ImageApp::start().await;
    let place = app.folder.path();
    let orphan = place.join("ab/ab000000000000000000000000000000");
    fs::create_dir(place.join("ab")).expect("a folder");
    fs::write(&orphan, "x").expect("a file");
    make_old(&orphan);
    // The folder does not belong to a database yet.
    sweep(&app.database, place).await;
    assert!(orphan.exists());
    let pet = app.pet("Rex").await;
    app.image(pet, &png(10, 10)).await;
    for path in app.files() {
        make_old(&path);
    }
    let other = ImageApp::start().await;
    sweep(&other.database, place).await;
    // Storing an image there does not change the ownership.
    let url = url_of(place);
    let other = TestApp::with(&[("PET_INVENTORY__IMAGES__URL", &url)]).await;
    let pet = other.pet("Max").await;
    other.upload(pet, png(11, 11)).is(200).await;
    sweep(&other.database, place).await;
    assert_eq!(app.files().len(), 3);
    sweep(&app.database, place).await;
    assert!(!orphan.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_dump_deletes_no_images_of_the_first_database() {
    let app = ImageApp::start().await;
    let place = app.folder.path();
    let pet = app.pet("Rex").await;
    let image = app.image(pet, &png(10, 10)).await;
    // Another database with the rows of the first one, in which its image is deleted.
    let restored = TestApp::with(&[("PET_INVENTORY__IMAGES__URL", &url_of(place))]).await;
    let text = async |query: &'static str| {
        let mut connection = app.database.connect().await;
        let found = sqlx::query_scalar::<_, String>(query);
        found.fetch_one(&mut connection).await.expect("a row")
    };
    let id = text("select id::text from image_place").await;
    let key = text("select key from image_contents").await;
    for statement in [
        format!("update image_place set id = '{id}'"),
        format!("insert into image_leftovers values ('{key}')"),
    ] {
        restored.database.run(&statement).await;
    }
    let pet_there = restored.pet("Max").await;
    restored.upload(pet_there, png(11, 11)).is(200).await;
    // Starts a sweep, which would delete the image within milliseconds.
    let delete = restored.delete(&format!("/pet/{pet_there}"));
    delete.is(200).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let leftovers = "select count(*) from image_leftovers";
    assert_eq!(restored.database.number(leftovers).await, 2);
    app.image_of(pet, &image).is(200).await;
}

/// Returns the content of the marker of an image folder.
fn marker_in(folder: &Path) -> String {
    fs::read_to_string(folder.join(MARKER)).expect("a marker")
}

#[tokio::test(flavor = "multi_thread")]
async fn older_state_of_the_database_deletes_no_images() {
    let app = ImageApp::start().await;
    let place = app.folder.path();
    let pet = app.pet("Rex").await;
    app.image(pet, &png(10, 10)).await;
    let orphan = place.join("ab/ab000000000000000000000000000000");
    let add_orphan = || {
        fs::create_dir_all(place.join("ab")).expect("a folder");
        fs::write(&orphan, "x").expect("a file");
        make_old(&orphan);
    };
    // Each sweep writes another nonce.
    sweep(&app.database, place).await;
    let first = marker_in(place);
    add_orphan();
    sweep(&app.database, place).await;
    assert!(!orphan.exists());
    assert_ne!(marker_in(place), first);

    // The database is as it was before these sweeps.
    let nonce = first.rsplit('/').next().expect("a nonce");
    let restore = format!("update image_place set nonce = '{nonce}', next_nonce = null");
    app.database.run(&restore).await;
    add_orphan();
    let latest = marker_in(place);
    sweep(&app.database, place).await;
    assert!(orphan.exists());
    // Nor does the newer state of the database, which may have been copied.
    assert!(marker_in(place).ends_with("/shared"));
    let nonce = latest.rsplit('/').next().expect("a nonce");
    let restore = format!("update image_place set nonce = '{nonce}', next_nonce = null");
    app.database.run(&restore).await;
    let other = app.image(pet, &png(11, 11)).await;
    let delete = app.delete(&format!("/pet/{pet}/images/{other}"));
    delete.is(200).await;
    sweep(&app.database, place).await;
    assert!(orphan.exists());
    assert_eq!(app.files().len(), 3);

    // The remedy needs no restart.
    fs::remove_file(place.join(MARKER)).expect("removed");
    eventually(async || {
        let image = app.image(pet, &png(12, 12)).await;
        let delete = app.delete(&format!("/pet/{pet}/images/{image}"));
        delete.is(200).await;
        place.join(MARKER).exists()
    })
    .await;
    app.wait_for_files(2).await;
    sweep(&app.database, place).await;
    assert!(!orphan.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_claim_of_the_store_is_resumed() {
    let app = ImageApp::start().await;
    let place = app.folder.path();
    let pet = app.pet("Rex").await;
    app.image(pet, &png(10, 10)).await;
    sweep(&app.database, place).await;
    let orphan = place.join("ab/ab000000000000000000000000000000");
    let name = marker_in(place);
    let name = name.rsplit_once('/').expect("a nonce").0;
    let next = "00000000-0000-4000-8000-000000000000";
    // Before and after the nonce was written to the store, and with the marker of the previous release.
    for marker in [
        marker_in(place),
        format!("{name}/{next}"),
        format!("{name}\n"),
    ] {
        let begin = format!("update image_place set next_nonce = '{next}'");
        app.database.run(&begin).await;
        fs::write(place.join(MARKER), &marker).expect("written");
        fs::create_dir_all(place.join("ab")).expect("a folder");
        fs::write(&orphan, "x").expect("a file");
        make_old(&orphan);
        sweep(&app.database, place).await;
        assert!(!orphan.exists(), "{marker}");
        let equal = format!(
            "select count(*) from image_place where next_nonce is null and '{}' like '%/' || nonce",
            marker_in(place)
        );
        assert_eq!(app.database.number(&equal).await, 1, "{marker}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_sweep_together_share_the_store() {
    let app = ImageApp::start().await;
    let (place, database) = (app.folder.path(), &app.database);
    let pet = app.pet("Rex").await;
    app.image(pet, &png(10, 10)).await;
    join_all((0..8).map(async |_| {
        for _ in 0..10 {
            sweep(database, place).await;
        }
    }))
    .await;
    assert!(!marker_in(place).ends_with("/shared"));
}

#[tokio::test(flavor = "multi_thread")]
async fn sweep_continues_after_a_blob_that_cannot_be_deleted() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let image = app.image(pet, &png(10, 10)).await;
    // A folder cannot be deleted as a file, and this key is the first in order.
    let stuck = "00/00000000000000000000000000000000";
    fs::create_dir_all(app.folder.path().join(stuck)).expect("a folder");
    let insert = format!("insert into image_leftovers values ('{stuck}')");
    app.database.run(&insert).await;
    app.delete(&format!("/pet/{pet}/images/{image}"))
        .is(200)
        .await;
    app.wait_for_files(0).await;
    let leftovers = "select count(*) from image_leftovers";
    eventually(async || app.database.number(leftovers).await == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn image_folder_is_created_by_the_first_upload() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path().join("some where/images");
    let url = url_of(&folder).replace(' ', "%20");
    let app = TestApp::with(&[("PET_INVENTORY__IMAGES__URL", &url)]).await;
    let pet = app.pet("Rex").await;
    app.get(&format!("/pet/{pet}/images")).is(200).await;
    assert!(!folder.exists());
    app.upload(pet, png(10, 10)).is(200).await;
    // Only the user of the service can read it.
    let [file] = &files_in(&folder)[..] else {
        panic!("{:?}", files_in(&folder));
    };
    let mode = |path: &Path| {
        let metadata = fs::metadata(path).expect("metadata");
        format!("{:o}", metadata.permissions().mode() & 0o777)
    };
    let directory = file.parent().expect("a folder");
    for directory in [folder.parent().expect("a folder"), &folder, directory] {
        assert_eq!(mode(directory), "700", "{}", directory.display());
    }
    for file in [file, &folder.join(MARKER)] {
        assert_eq!(mode(file), "600", "{}", file.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unwritable_store_is_503_for_uploads_only() {
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("file");
    fs::write(&file, "in the way").expect("a file");
    let app = TestApp::with(&[("PET_INVENTORY__IMAGES__URL", &url_of(&file))]).await;
    let pet = app.pet("Rex").await;
    let response = app.upload(pet, png(10, 10)).await;
    response.problem(503);
    assert!(!response.text().contains("file"), "{response}");
    app.get(&format!("/pet/{pet}")).is(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_blob_is_404() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let image = app.image(pet, &png(100, 10)).await;
    for path in app.files() {
        fs::remove_file(path).expect("removed");
    }
    let path = format!("/pet/{pet}/images/{image}");
    for path in [path.clone(), format!("{path}?width=16")] {
        let response = app.get(&path).await;
        response.problem(404);
        assert_eq!(
            response.optional_header("cache-control"),
            None,
            "{response}"
        );
    }
    // An image with missing bytes can be deleted.
    app.delete(&format!("/pet/{pet}/images/{image}"))
        .is(200)
        .await;
    let leftovers = "select count(*) from image_leftovers";
    eventually(async || app.database.number(leftovers).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rendering_with_a_missing_blob_is_made_again() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let image = app.image(pet, &png(100, 100)).await;
    let original = app.files();
    let small = async || {
        let request = app.image_of(pet, &image).query(&[("width", 16)]);
        request.is(200).await
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
    app.wait_for_files(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn image_deleted_during_requests_is_200_or_404() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    for side in 20..40 {
        let image = app.image(pet, &png(side, side)).await;
        let reads = send_all((0..16).map(|width| {
            let request = app.image_of(pet, &image);
            match width {
                0..8 => request,
                _ => request.query(&[("width", 16)]),
            }
        }));
        let deleting = app.delete(&format!("/pet/{pet}/images/{image}"));
        let (responses, deleted) = tokio::join!(reads, deleting);
        deleted.is(200);
        for response in responses {
            assert!([200, 404].contains(&response.status), "{response}");
        }
    }
    app.assert_nothing_stored().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rendering_that_cannot_be_stored_is_sent() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let image = app.image(pet, &png(100, 10)).await;
    // Files in place of the folders of all keys but this image's.
    for number in 0..=u8::MAX {
        let _ = File::create_new(app.folder.path().join(format!("{number:02x}")));
    }
    let path = format!("/pet/{pet}/images/{image}?width=16");
    let whole = app.get(&path).is(200).await;
    assert_eq!(whole.header("content-type"), "image/png");
    let part = app.get(&path).header("range", "bytes=2-11").is(206).await;
    assert_eq!(part.body, whole.body.slice(2..12));
    let etag = whole.header("etag");
    assert_eq!(part.header("etag"), etag);
    app.get(&path).header("if-none-match", etag).is(304).await;
}
