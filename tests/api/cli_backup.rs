//! Tests of `backup` and `restore`: a restore drill under load, damaged archives, refusals, and images that are deleted
//! meanwhile.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use pet_inventory::db::schema::{OMITTED, SEQUENCES, TABLES};
use sha2::{Digest as _, Sha256};
use test_support::*;
use tokio::process::Command;

/// Database and image folder, and the folder in which commands on them run.
struct Store {
    home: Home,
    database: TestDatabase,
}

impl Store {
    /// Creates a store without the schema.
    async fn empty() -> Self {
        let database = TestDatabase::empty().await;
        let home = Home::on(database.url());
        let images = format!("file://{}/images", home.path().display());
        let home = home.with("PET_INVENTORY__IMAGES__URL", images);
        Self { home, database }
    }

    fn images(&self) -> PathBuf {
        self.home.path().join("images")
    }

    async fn serve(&self) -> TestApp {
        let images = format!("file://{}", self.images().display());
        let settings = [("PET_INVENTORY__IMAGES__URL", images.as_str())];
        TestApp::on(self.database.shared(), &settings).await
    }

    /// Backs up, and returns the path of the archive.
    async fn back_up(&self) -> String {
        let archive = self.home.path().join("backup.tar");
        let archive = archive.to_str().expect("text").to_owned();
        let output = self.home.run(&["backup", &archive]).await.is(0);
        let size = fs::metadata(&archive).expect("a file").len();
        assert!(
            output
                .stdout
                .starts_with(&format!("wrote {size} bytes with ")),
            "{output:?}"
        );
        archive
    }

    /// Returns the names of the files of images.
    fn files(&self) -> BTreeSet<String> {
        let folders = fs::read_dir(self.images()).into_iter().flatten();
        let folders = folders.map(|entry| entry.expect("an entry").path());
        let folders = folders.filter(|path| path.is_dir());
        let files = folders.flat_map(|folder| fs::read_dir(folder).expect("a folder"));
        files
            .map(|file| file.expect("an entry").file_name())
            .map(|name| name.into_string().expect("text"))
            .collect()
    }

    fn marker(&self) -> String {
        fs::read_to_string(self.images().join(MARKER)).expect("a marker")
    }

    /// Checks that the store has no rows and no images.
    async fn assert_empty(&self) {
        let has_schema = "select count(*) from pg_tables where tablename = 'pets'";
        if self.database.number(has_schema).await > 0 {
            for table in TABLES.iter().filter(|table| !OMITTED.contains(table)) {
                // The record of changes begins with a row.
                let first = i64::from(["changes", "changes_clock"].contains(table));
                let count = format!("select count(*) from {table}");
                assert_eq!(self.database.number(&count).await, first, "{table}");
            }
        }
        assert_eq!(self.files(), BTreeSet::new());
        assert!(!self.images().join(MARKER).exists());
    }
}

/// Uploads an image and returns its path.
async fn image(app: &TestApp, pet: i64, bytes: Vec<u8>) -> String {
    app.upload(pet, bytes).is(200).await.image_path()
}

/// Adds pets with an image and an order each, and deletes a second image of each, until `stop`.
async fn write(app: Arc<TestApp>, writer: u32, stop: Arc<AtomicBool>) -> u32 {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let pet = app.pet("Rex").await;
        image(&app, pet, png(100 + writer, 20 + number)).await;
        let order = app.post("/store/order", &json!({ "petId": pet }));
        order.is(201).await;
        let second = image(&app, pet, png(200 + writer, 20 + number)).await;
        app.delete(&second).is(200).await;
        number += 1;
    }
    number
}

/// A table has an entry for every 4 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn restored_record_of_changes_has_every_change() {
    const DIGEST: &str =
        "select hashtext(string_agg(changes::text, '' order by position))::bigint from changes";
    let original = Store::empty().await;
    original.home.run(&["migrate"]).await.is(0);
    original
        .database
        .run(
            "with added as (
                 insert into changes (position, at, kind, resource, action, version, actor, request_id, data)
                 select clock.position + number, now(), 'pet', number, 'updated', number, 'acme', repeat('x', 64), jsonb_build_object('x', repeat('x', 130))
                 from changes_clock clock, generate_series(1, 40000) number
                 returning position
             )
             update changes_clock set position = (select max(position) from added)",
        )
        .await;
    let archive = original.back_up().await;
    let mut list = Command::new("tar");
    list.args(["--list", "--file", &archive]);
    let list = Output::of(list).await.is(0).stdout;
    let parts = list.lines().filter(|it| it.starts_with("tables/changes/"));
    assert!(parts.count() >= 3);

    let copy = Store::empty().await;
    copy.home.run(&["restore", &archive]).await.is(0);
    assert_eq!(
        copy.database.number(DIGEST).await,
        original.database.number(DIGEST).await
    );
    let service = copy.serve().await;
    let read = service.get("/changes?after=0&limit=1000").is(200).await;
    assert_eq!(read.changes().len(), 1_000);
}

#[expect(clippy::print_stdout, reason = "the times of the drill")]
#[tokio::test(flavor = "multi_thread")]
async fn restore_drill_under_write_load_restores_one_point_in_time() {
    const IMAGES: &str = "select count(*) from images";
    let original = Store::empty().await;
    let app = Arc::new(original.serve().await);
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        writers.spawn(write(app.clone(), writer, stop.clone()));
    }
    eventually(async || original.database.number(IMAGES).await >= 8).await;
    let started = Instant::now();
    let archive = original.back_up().await;
    let backed_up = started.elapsed();
    stop.store(true, Ordering::Relaxed);
    let written: u32 = writers.join_all().await.into_iter().sum();
    let mode = fs::metadata(&archive).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let copy = Store::empty().await;
    let started = Instant::now();
    let output = copy.home.run(&["restore", &archive]).await.is(0);
    let restored = started.elapsed();
    let size = fs::metadata(&archive).expect("a file").len() >> 10;
    let summary = output.stdout.trim();
    println!(
        "drill: backup {backed_up:.0?} ({size} KiB, {written} pets in the end), restore {restored:.0?}: {summary}"
    );

    // A transaction adds an image and its URL, another one an order and the status of the pet.
    for torn in [
        "select (select sum(json_array_length(details -> 'photoUrls')) from pets) - (select count(*) from images)",
        "select (select count(*) from pets where status = 'pending') - (select count(*) from orders)",
        "select (select sum(pets)::bigint from inventory_changes) - (select count(*) from pets)",
        "select count(*) from orders where held_pet is null or held_pet <> pet_id",
    ] {
        assert_eq!(copy.database.number(torn).await, 0, "{torn}");
    }
    let images = copy.database.number(IMAGES).await;
    // Each of the four writers may have deleted one since there were eight.
    assert!((4..=i64::from(written) * 2).contains(&images), "{images}");
    assert!(copy.files().is_disjoint(&original.files()));
    assert_ne!(copy.marker(), original.marker());
    let service = copy.serve().await;
    for pet in service
        .get("/pet/findByStatus?status=pending,available")
        .is(200)
        .await
        .ids()
    {
        let list = service.get(&format!("/pet/{pet}/images")).is(200).await;
        for image in list.json().as_array().expect("a list") {
            let path = format!("/pet/{pet}/images/{}", image["id"].as_str().expect("an id"));
            service.get(&path).is(200).await;
        }
    }
    let check = copy.home.run(&["check"]).await.is(0).stdout;
    assert!(!check.contains("FAILED"), "{check}");
}

/// Returns the record of changes, published or not.
async fn recorded(database: &TestDatabase) -> String {
    let record = "with change as (
                      select at, kind, resource, action from changes
                      union all select at, kind, resource, action from new_changes
                  )
                  select string_agg(concat_ws(' ', kind, resource, action), ', ' order by at) from change";
    let query = sqlx::query_scalar(record);
    let mut connection = database.connect().await;
    query.fetch_one(&mut connection).await.expect("a record")
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_service_goes_on_where_the_backup_was_made() {
    let original = Store::empty().await;
    let app = original.serve().await;
    let pet = json!({"id": 70, "name": "Rex\t\\N\\.\u{1}", "tags": [{"name": "big"}], "status": "available",
                     "category": {"id": 1, "name": "Dogs\n"}, "photoUrls": ["/x,y"]});
    app.post("/pet", &pet).is(201).await;
    let retried = |app: &TestApp| {
        let request = app
            .anonymous(Method::POST, "/pet")
            .json(&json!({"name": "Max"}));
        request.header("idempotency-key", "k")
    };
    let first = retried(&app).header("api_key", &app.key).is(201).await;
    for year in ["0001", "1600", "1969", "2255", "9999"] {
        let date = format!("{year}-12-31T23:59:59.999999Z");
        let order = json!({"petId": app.pet("ordered").await, "shipDate": date});
        app.post("/store/order", &order).is(201).await;
    }
    app.sign_up("ada").await;
    let session = app.log_in("ada").await;
    let image = image(&app, 70, png(300, 200)).await;
    app.get(&format!("{image}?width=64")).is(200).await;
    let before = app.get("/pet/70").is(200).await;

    let webhook = json!({"url": "https://example.com/", "kinds": ["session"]});
    app.post("/admin/webhooks", &webhook).is(201).await;

    let archive = original.back_up().await;
    let key = &app.key;
    let copy = Store::empty().await;
    let printed = copy.home.run(&["restore", &archive]).await.is(0).stdout;
    assert!(printed.contains("Disabled 1 webhook"), "{printed}");
    let [record, restored_record] = [
        recorded(&original.database).await,
        recorded(&copy.database).await,
    ];
    assert!(record.contains("pet 70 created,"), "{record}");
    // The restore is recorded as one change.
    let rest = restored_record.strip_prefix(&record).expect("the record");
    assert!(
        rest.starts_with(", restore 20") && rest.ends_with("Z created"),
        "{rest}"
    );
    let restored = copy.serve().await;

    for (app, is_enabled) in [(&app, true), (&restored, false)] {
        let webhook = app.anonymous(Method::GET, "/admin/webhooks/1");
        let webhook = webhook.header("api_key", key).is(200).await;
        assert_eq!(webhook.json()["enabled"], is_enabled);
    }
    let after = restored
        .anonymous(Method::GET, "/pet/70")
        .header("api_key", key)
        .is(200)
        .await;
    assert_eq!((after.json(), after.etag()), (before.json(), before.etag()));
    let again = retried(&restored).header("api_key", key).is(201).await;
    assert_eq!(again.json(), first.json());
    // Sessions are left out.
    for (app, status) in [(&app, 200), (&restored, 401)] {
        let with_session = app.anonymous(Method::GET, "/limits");
        let response = with_session.bearer_auth(&session).await;
        response.is(status);
    }
    restored.log_in("ada").await;
    for path in [
        "/pet/findByTags?tags=big",
        "/store/inventory",
        "/store/orders",
    ] {
        let before = app.get(path).is(200).await;
        let after = restored.anonymous(Method::GET, path);
        let after = after.header("api_key", key).is(200).await;
        assert_eq!(after.json(), before.json(), "{path}");
    }
    let bytes = restored.get(&image).is(200).await.body;
    assert!(bytes == png(300, 200), "other bytes");
    restored.get(&format!("{image}?width=64")).is(200).await;
    let next = restored.pet("next").await;
    assert!(next > first.id(), "{next}");
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_service_reuses_no_version_and_deletes_no_bytes_of_the_original() {
    let original = Store::empty().await;
    let app = original.serve().await;
    let pet = app.pet("Rex").await;
    let (image, path) = (image(&app, pet, png(30, 20)).await, format!("/pet/{pet}"));
    let archive = original.back_up().await;
    let rename = json!({"name": "after the backup"});
    let lost = app.patch(&path, &rename).is(200).await;
    let added = app.pet("after the backup").await;
    let copy = Store::empty().await;
    copy.home.run(&["restore", &archive]).await.is(0);
    let restored = copy.serve().await;

    let another = Store::empty().await;
    another.home.run(&["restore", &archive]).await.is(0);
    let in_another = another.serve().await;
    let in_another = in_another.patch(&path, &rename).is(200).await;

    // A client that knows a version from after the backup must not overwrite another change of the same number.
    let changed = restored.patch(&path, &rename).is(200).await;
    assert_ne!(changed.etag(), lost.etag());
    assert_ne!(changed.etag(), in_another.etag());
    let stale = restored
        .patch(&path, &rename)
        .header("if-match", lost.etag());
    stale.await.problem(412);
    assert!(restored.pet("Max").await > added);

    let kept = original.files();
    restored.get(&image).is(200).await;
    restored.delete(&path).is(200).await;
    eventually(async || copy.files().is_empty()).await;
    assert_eq!(original.files(), kept);
    app.get(&image).is(200).await;
}

/// Returns the archive of a store with pets and two images.
async fn sample() -> Vec<u8> {
    let original = Store::empty().await;
    let app = original.serve().await;
    for (name, side) in [("Rex", 30), ("Max", 40)] {
        let pet = app.pet(name).await;
        image(&app, pet, png(side, side)).await;
    }
    fs::read(original.back_up().await).expect("a file")
}

/// Returns the offset and the size of each entry's content.
fn entries(archive: &[u8]) -> Vec<(String, usize, usize)> {
    let mut archive = tar::Archive::new(archive);
    let entries = archive.entries().expect("a tar file").map(|entry| {
        let entry = entry.expect("an entry");
        let path = entry
            .path()
            .expect("a path")
            .to_str()
            .expect("text")
            .to_owned();
        let number = |number: u64| usize::try_from(number).expect("a small file");
        (
            path,
            number(entry.raw_file_position()),
            number(entry.size()),
        )
    });
    entries.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_or_incomplete_archive_leaves_nothing() {
    let archive = sample().await;
    let entries = entries(&archive);
    let find = |kind: &str| {
        let found = entries.iter().find(|(path, ..)| path.starts_with(kind));
        found.unwrap_or_else(|| panic!("no {kind} in {entries:?}"))
    };
    let mut damaged = vec![Vec::new(), b"no tar file".to_vec(), vec![b'x'; 4096]];
    for kind in [
        "header/",
        "tables/pets/",
        "tables/images/",
        "images/",
        "manifest/",
    ] {
        let (_, offset, size) = *find(kind);
        // In the content, in the name, before the entry, and within it.
        for changed in [offset + size / 2, offset - 512 + 10] {
            let mut copy = archive.clone();
            copy[changed] ^= 1;
            damaged.push(copy);
        }
        damaged.push(archive[..offset - 512].to_vec());
        damaged.push(archive[..offset + size / 2].to_vec());
        let end = (offset + size).next_multiple_of(512);
        damaged.push([&archive[..offset - 512], &archive[end..]].concat());
        damaged.push([&archive[..end], &archive[offset - 512..]].concat());
    }
    let store = Store::empty().await;
    let file = store.home.path().join("damaged.tar");
    let restore = ["restore", "damaged.tar"];
    for (number, bytes) in damaged.iter().enumerate() {
        fs::write(&file, bytes).expect("a file");
        let output = store.home.run(&restore).await.is(1);
        assert!(output.stderr.starts_with("error: "), "{number}: {output:?}");
        store.assert_empty().await;
    }
    fs::write(&file, &archive).expect("a file");
    let output = store.home.run(&restore).await.is(0);
    assert!(
        output
            .stdout
            .starts_with("restored 2 pets and 2 images, as of 20")
            && output.stdout.contains("keys revoke"),
        "{output:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_refuses_a_store_in_use_and_another_schema() {
    const EXPORT: &str = "restore it with that program into another database, then export its pets";
    let archive = sample().await;
    let refused = async |store: &Store, archive: &[u8], reason: &str| {
        store.home.write("a.tar", archive);
        store.home.refuses(&["restore", "a.tar"], reason).await;
    };
    // Rows, another program's table, and the schema of an older program.
    let used = Store::empty().await;
    let app = used.serve().await;
    app.pet("Rex").await;
    refused(&used, &archive, "the database is not empty").await;
    assert_eq!(app.count().await, 1);
    let foreign = Store::empty().await;
    foreign.database.run("create table pets (id int)").await;
    refused(
        &foreign,
        &archive,
        "tables of another program (pets): use an empty one",
    )
    .await;
    let tables = "select count(*) from pg_tables where schemaname = 'public'";
    assert_eq!(foreign.database.number(tables).await, 1);

    // Images without a marker, and the store of another database.
    let store = Store::empty().await;
    let orphan = store.images().join("ab/ab000000000000000000000000000000");
    fs::create_dir_all(orphan.parent().expect("a folder")).expect("a folder");
    fs::write(&orphan, "x").expect("a file");
    refused(&store, &archive, "the image store is not empty").await;
    fs::remove_file(&orphan).expect("removed");
    fs::write(store.images().join(MARKER), "another").expect("a file");
    refused(
        &store,
        &archive,
        "the image store belongs to another database",
    )
    .await;
    assert_eq!(store.marker(), "another");
    fs::remove_file(store.images().join(MARKER)).expect("removed");
    store.assert_empty().await;

    for (format, schema, next) in [
        (3, 212, EXPORT),
        // Tables and columns had no names.
        (2, 309, EXPORT),
        (3, 9999, "restore it with that program, or a later one"),
    ] {
        let header = json!({
            "format": format, "schema": schema, "program": "0.0.9", "createdAt": "2026-01-01T00:00:00Z",
        });
        let other = pack(&vec![(
            "header".to_owned(),
            header.to_string().into_bytes(),
        )]);
        let archive = format!("the archive is of pet-inventory 0.0.9 with schema {schema:04}");
        refused(&store, &other, &archive).await;
        refused(&store, &other, next).await;
    }

    used.database.run("insert into _sqlx_migrations select 9999, description, now(), success, checksum, 1 from _sqlx_migrations limit 1").await;
    // After going back by one release.
    used.home.run(&["backup", "newer.tar"]).await.is(0);
    let exists = "a.tar exists already; choose another name, or remove it";
    used.home.refuses(&["backup", "a.tar"], exists).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn image_deleted_during_a_backup_is_in_it() {
    let original = Store::empty().await;
    let app = original.serve().await;
    let pet = app.pet("Rex").await;
    let mut images = Vec::new();
    for size in [3_000_000, 4_000_000] {
        images.push(image(&app, pet, large_jpeg(size)).await);
    }
    // The pipe is full before the first image is read completely.
    let mut backup = original
        .home
        .command(["backup", "-"])
        .spawn()
        .expect("the program");
    let mut stdout = backup.stdout.take().expect("piped");
    let locks = "select count(*) from pg_locks join pg_database on pg_database.oid = database
                 where datname = current_database() and mode = 'RowShareLock' and relation = 'image_leftovers'::regclass";
    eventually(async || original.database.number(locks).await == 1).await;
    for image in &images {
        app.delete(image).is(200).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(original.files().len(), 2);
    let mut archive = Vec::new();
    stdout.read_to_end(&mut archive).await.expect("the archive");
    let output = backup.wait_with_output().await.expect("its end");
    let log = String::from_utf8(output.stderr).expect("text");
    assert!(
        output.status.success() && log.contains("1 pet and 2 images"),
        "{log}"
    );

    // The next deletion also deletes what was kept.
    let another = image(&app, pet, png(9, 9)).await;
    app.delete(&another).is(200).await;
    eventually(async || original.files().is_empty()).await;

    let copy = Store::empty().await;
    copy.home.write("a.tar", &archive);
    let file = fs::File::open(copy.home.path().join("a.tar")).expect("a file");
    let mut restore = copy.home.command(["restore", "-"]);
    restore.stdin(Stdio::from(file));
    Output::of(restore).await.is(0);
    let restored = copy.serve().await;
    for image in &images {
        restored.get(image).is(200).await;
    }
}

/// Kind and content of each entry.
type Entries = Vec<(String, Vec<u8>)>;

/// Returns the entries of an archive, of which the first with this kind is changed.
fn changed(entries: &Entries, kind: &str, change: impl FnOnce(&mut Vec<u8>)) -> Entries {
    let mut changed = entries.clone();
    let content = changed.iter_mut().find(|(found, _)| found == kind);
    change(&mut content.expect("an entry").1);
    changed
}

fn append(archive: &mut Vec<u8>, kind: tar::EntryType, name: &str, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_path(name).expect("a short name");
    header.set_size(content.len() as u64);
    header.set_cksum();
    archive.extend(header.as_bytes());
    archive.extend(content);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

fn name(kind: &str, content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    format!("{kind}/{:x}", Bytes::copy_from_slice(&digest))
}

fn pack(entries: &Entries) -> Vec<u8> {
    let mut archive = Vec::new();
    for (kind, content) in entries {
        append(
            &mut archive,
            tar::EntryType::Regular,
            &name(kind, content),
            content,
        );
    }
    archive.resize(archive.len() + 1_024, 0);
    archive
}

/// Returns variants of an archive with correct SHA-256s and counts.
fn forged(archive: &[u8], parts: &Entries) -> Vec<(&'static str, Vec<u8>)> {
    let images: Vec<usize> = (0..parts.len())
        .filter(|&part| parts[part].0 == "images")
        .collect();
    let mut same_image = parts.clone();
    same_image[images[1]] = same_image[images[0]].clone();
    let mut unknown_image = parts.clone();
    unknown_image[images[1]].1.push(0);
    let of_size = |size: &str| {
        pack(&changed(parts, "tables/image_contents", |rows| {
            let text = String::from_utf8(rows.clone()).expect("text");
            let mut columns: Vec<&str> = text.split('\t').collect();
            columns[3] = size;
            *rows = columns.join("\t").into_bytes();
        }))
    };
    let sequence = |name: &str, value: Value| {
        pack(&changed(parts, "manifest", |json| {
            let mut manifest: Value = serde_json::from_slice(json).expect("JSON");
            manifest["sequences"][name] = value;
            *json = manifest.to_string().into_bytes();
        }))
    };
    let without_sequence = changed(parts, "manifest", |json| {
        let text = String::from_utf8(json.clone()).expect("text");
        *json = text.replace("\"user_ids\":0,", "").into_bytes();
    });
    let first = &archive[..512];
    let extended = |kind, content: &[u8]| {
        let mut extended = Vec::new();
        append(&mut extended, kind, "extension", content);
        [&extended, archive].concat()
    };
    let long_name = format!("{}\0", name(&parts[0].0, &parts[0].1));
    let mut link = tar::Header::from_byte_slice(first).clone();
    link.set_entry_type(tar::EntryType::Link);
    link.set_cksum();
    let large = changed(parts, "header", |json| json.resize(2 << 20, b' '));
    let clock = |position: &str| {
        pack(&changed(parts, "tables/changes_clock", |rows| {
            *rows = format!("t\t{position}\n").into_bytes();
        }))
    };
    vec![
        ("clock behind", clock("1")),
        ("clock ahead", clock("9007199254740990")),
        ("negative clock", clock("-5")),
        ("one image twice", pack(&same_image)),
        ("image without a row", pack(&unknown_image)),
        ("smaller size", of_size("1")),
        ("larger size", of_size("1000000")),
        ("unknown sequence", sequence("another_ids", 1.into())),
        ("largest value", sequence("pet_ids", i64::MAX.into())),
        ("largest version", sequence("pet_versions", i64::MAX.into())),
        ("negative value", sequence("pet_ids", (-1).into())),
        ("missing sequence", pack(&without_sequence)),
        (
            "long name",
            extended(tar::EntryType::GNULongName, long_name.as_bytes()),
        ),
        (
            "attributes",
            extended(tar::EntryType::XHeader, b"11 uid=100\n"),
        ),
        ("sparse", extended(tar::EntryType::GNUSparse, b"")),
        ("link", [&link.as_bytes()[..], &archive[512..]].concat()),
        ("large header", pack(&large)),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_archive_leaves_nothing() {
    let archive = sample().await;
    let parts = entries(&archive).into_iter().map(|(path, offset, size)| {
        let kind = path.rsplit_once('/').expect("a SHA-256").0.to_owned();
        (kind, archive[offset..offset + size].to_vec())
    });
    let parts: Entries = parts.collect();
    let store = Store::empty().await;
    let restore = async |archive: &[u8]| {
        store.home.write("a.tar", archive);
        store.home.run(&["restore", "a.tar"]).await
    };
    for (what, archive) in forged(&archive, &parts) {
        let output = restore(&archive).await;
        assert_eq!(output.code, Some(1), "{what}: {output:?}");
        let known = ["the archive is damaged", "this is not a backup"];
        assert!(
            known.iter().any(|it| output.stderr.contains(it)),
            "{what}: {output:?}"
        );
        store.assert_empty().await;
    }
    let other_program = changed(&parts, "header", |json| {
        *json = json!({"format": 3, "schema": 1, "program": "1\u{1b}[2J", "createdAt": "2026-01-01T00:00:00Z"})
            .to_string()
            .into_bytes();
    });
    let of_column = |name: &str| {
        changed(&parts, "header", |json| {
            let mut header: Value = serde_json::from_slice(json).expect("JSON");
            header["tables"][0]["columns"][0] = name.into();
            *json = header.to_string().into_bytes();
        })
    };
    let column = of_column("id) from stdin; drop table pets; copy pets (id");
    for forged in [other_program, of_column("\u{1b}[2J"), column] {
        let output = restore(&pack(&forged)).await.is(1);
        assert!(!output.stderr.contains('\u{1b}'), "{output:?}");
        store.assert_empty().await;
    }
    restore(&pack(&parts)).await.is(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_backups_leave_no_file() {
    let store = Store::empty().await;
    let app = store.serve().await;
    app.pet("Rex").await;
    let mut lock = store.database.lock("users").await;
    let path = |name: &str| store.home.path().join(name);
    let [file, partial, other] = ["a.tar", "a.tar.partial", "monday.tar.partial"].map(path);
    let [mut first, mut second, mut running] = ["a.tar", "monday.tar", "running.tar"].map(|name| {
        let mut backup = store.home.command(["backup", name]);
        backup.spawn().expect("the program")
    });
    let has_begun = |file: &Path| fs::metadata(file).is_ok_and(|file| file.len() > 0);
    eventually(async || {
        has_begun(&partial) && has_begun(&other) && has_begun(&path("running.tar.partial"))
    })
    .await;
    let mode = fs::metadata(&partial).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    for backup in [&mut first, &mut second] {
        backup.kill().await.expect("it runs");
    }
    assert!(!file.exists());
    fs::write(path("another.partial"), "of another program").expect("a file");
    fs::write(path("short.partial"), "").expect("a file");
    let output = store.home.run(&["backup", "missing/a.tar"]).await.is(1);
    output.stderr_has("missing/a.tar.partial: No such file or directory");
    let next = store.home.run(&["backup", "b.tar"]);
    let (output, ()) = tokio::join!(next, async {
        eventually(async || has_begun(&path("b.tar.partial"))).await;
        lock.execute("rollback").await.expect("no lock");
    });
    let removed = "monday.tar.partial, which an interrupted backup had left";
    output.is(0).stderr_has(removed);
    assert!(running.wait().await.expect("its end").success());
    assert!(path("running.tar").exists() && !partial.exists() && !other.exists());
    assert!(path("another.partial").exists() && path("short.partial").exists());

    fs::write(&partial, vec![b'x'; 1 << 20]).expect("a file");
    let written = fs::File::open(&partial).expect("a file");
    written.lock().expect("a lock");
    let refused = "a.tar.partial: another command or user writes it";
    store.home.refuses(&["backup", "a.tar"], refused).await;
    assert!(partial.exists());
    drop(written);
    store.home.run(&["backup", "a.tar"]).await.is(0);
    assert!(file.exists() && !partial.exists());
    assert!(fs::metadata(&file).expect("a file").len() < 1 << 20);
}

fn change_one_byte(file: &Path) {
    let mut bytes = fs::read(file).expect("a file");
    bytes[20] ^= 1;
    fs::write(file, bytes).expect("written");
}

/// Damages a file of an image; returns whether the service can tell without reading all of it.
type Damage = fn(&Path) -> bool;

#[tokio::test(flavor = "multi_thread")]
async fn lost_and_damaged_images_are_listed_left_out_and_404() {
    const IMAGES: u32 = 30;
    let store = Store::empty().await;
    let app = store.serve().await;
    let pet = app.pet("Rex").await;
    let mut images = Vec::new();
    for side in 1..=IMAGES {
        images.push(image(&app, pet, png(side, 10)).await);
    }
    let all = store.files().len();
    assert_eq!(all, images.len());
    let (folder, away) = (store.images(), store.home.path().join("away"));
    let check_store = async |intact: usize, is_noticed: bool| {
        let output = store.home.run(&["check", "--images"]).await.is(1);
        let listed = output
            .stdout
            .matches(&format!("an image of pet {pet} is "))
            .count();
        assert_eq!(listed, all - intact, "{output:?}");
        output.stdout_has(&format!("{listed} of {IMAGES} are missing or damaged"));
        let archive = ["backup", "a.tar"];
        store
            .home
            .refuses(&archive, &format!("an image of pet {pet}"))
            .await;
        for name in ["a.tar", "a.tar.partial"] {
            assert!(!store.home.path().join(name).exists());
        }
        let archive = ["backup", "a.tar", "--without-missing-images", "--json"];
        let output = store.home.run(&archive).await.is(0);
        assert_eq!(
            output.stderr.matches("left out: an image of pet").count(),
            listed
        );
        let summary: Value = serde_json::from_str(&output.stdout).expect("JSON");
        assert_eq!(summary["images"], intact);
        assert_eq!(summary["imagesLeftOut"], listed);

        let archive = store.home.path().join("a.tar");
        let copy = Store::empty().await;
        copy.home
            .run(&["restore", archive.to_str().expect("text")])
            .await
            .is(0);
        fs::remove_file(archive).expect("removed");
        let restored = copy.serve().await;
        let (mut found, mut kept) = (0, 0);
        for image in &images {
            let original = app.get(image).await.status;
            let copied = restored.get(image).await.status;
            assert!([200, 404].contains(&original), "{original}");
            assert!([200, 404].contains(&copied), "{copied}");
            found += usize::from(original == 200);
            kept += usize::from(copied == 200);
        }
        assert_eq!(kept, intact);
        assert_eq!(found, if is_noticed { intact } else { all });
    };
    fs::rename(&folder, &away).expect("moved");
    check_store(0, true).await;
    let lost = "the image store has neither its marker (.database) nor the images of this database";
    store.home.refuses(&["serve"], lost).await;
    let output = store.home.run(&["check"]).await.is(1);
    output.stdout_has(&format!("FAILED  images         {lost}"));
    store.home.run(&["claim-images"]).await.is(0);
    store.home.run(&["check"]).await.is(0);
    let service = store.home.serve().await;
    let get = service.request(Method::GET, &images[0], &app.key);
    get.is(404).await;
    service.stop().await;
    fs::remove_dir_all(&folder).expect("removed");
    fs::rename(&away, &folder).expect("moved");

    let name = store.files().pop_first().expect("a file");
    let file = folder.join(&name[..2]).join(&name);
    let bytes = fs::read(&file).expect("a file");
    let damages: [Damage; 4] = [
        |file| fs::remove_file(file).is_ok(),
        |file| fs::write(file, "").is_ok(),
        |file| fs::write(file, "x").is_ok(),
        |file| {
            change_one_byte(file);
            false
        },
    ];
    for damage in damages {
        let is_noticed = damage(&file);
        check_store(all - 1, is_noticed).await;
        fs::write(&file, &bytes).expect("written");
    }
    let output = store.home.run(&["check", "--images"]).await.is(0);
    output.stdout_has("30, all of them intact");
    store.home.run(&["backup", "a.tar"]).await.is(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn schema_has_the_known_tables_and_sequences_and_what_a_backup_omits() {
    let database = TestDatabase::migrated().await;
    let mut connection = database.connect().await;
    let mut names = async |query: &'static str| -> Vec<String> {
        let query = sqlx::query_scalar(query).fetch_one(&mut connection);
        query.await.expect("names")
    };
    let tables = "select array_agg(tablename::text order by tablename::text collate \"C\") from pg_tables where schemaname = 'public'";
    assert_eq!(names(tables).await, TABLES, "add it to db::schema");
    let sequences = "select array_agg(sequencename::text order by sequencename) from pg_sequences
                     where sequencename <> 'new_changes_seq_seq'";
    assert_eq!(names(sequences).await, SEQUENCES, "add it to db::schema");
    let columns =
        "select array_agg(table_name || '.' || column_name) from information_schema.columns
                   where table_schema = 'public' and is_generated = 'NEVER'";
    let columns = names(columns).await;
    for omitted in OMITTED {
        let exists = TABLES.contains(&omitted) || columns.iter().any(|column| column == omitted);
        assert!(exists, "{omitted}");
    }
}

/// Every other column is in the archive, those that nobody told the program of included.
#[tokio::test(flavor = "multi_thread")]
async fn backup_has_added_columns_and_tables() {
    const ADDED: &str = "alter table pets add note text;
        alter table orders add \"Paid, at\" timestamptz default '2026-01-31T12:00:00Z';
        create table chips (pet_id bigint references pets, chip text);
        create table a_reading (chip_of bigint, at int, twice int generated always as (at * 2) stored)";
    let original = Store::empty().await;
    let app = original.serve().await;
    let pet = app.pet("Rex").await;
    app.post("/store/order", &json!({"petId": pet}))
        .is(201)
        .await;
    original.database.run(ADDED).await;
    let rows = format!(
        "update pets set note = E'tab\\t'; insert into chips values ({pet}, 'c'); insert into a_reading values (1, 21)"
    );
    original.database.run(&rows).await;
    let archive = original.back_up().await;

    let copy = Store::empty().await;
    let restore = ["restore", &archive];
    let refused = copy.home.run(&restore).await.is(1);
    refused.stderr_has("the archive has a_reading, which the schema of this program lacks");
    copy.assert_empty().await;
    copy.home.run(&["migrate"]).await.is(0);
    copy.database.run(ADDED).await;
    copy.database.run("alter table pets drop note").await;
    let refused = copy.home.run(&restore).await.is(1);
    refused.stderr_has("the archive has pets.note, which");
    copy.database.run("alter table pets add note text").await;
    copy.home.run(&restore).await.is(0);
    let restored = "select count(*) from pets join chips on pet_id = pets.id join orders on orders.pet_id = pets.id
                    cross join a_reading
                    where note = E'tab\\t' and chip = 'c' and \"Paid, at\" = '2026-01-31T12:00:00Z' and twice = 42";
    assert_eq!(copy.database.number(restored).await, 1);

    let long = format!("create table {} (id int)", "long_name_".repeat(3));
    original.database.run(&long).await;
    let refused = "the name of the table long_name_long_name_long_name_ is too long";
    original.home.refuses(&["backup", "b.tar"], refused).await;
}
