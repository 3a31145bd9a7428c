//! Images on a full disk and in an S3 bucket.

use nix::unistd::getuid;
use pet_inventory::blob_store::BlobStore;
use test_support::images::size;
use test_support::*;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
};

/// Returns a command for the program with a file system of 1 MB mounted on `folder`.
///
/// Mounting takes root or a user namespace. The program runs as the current user.
fn on_small_disk(home: &Home, folder: &Path) -> Command {
    const SCRIPT: &str = "mount -t tmpfs -o size=1m,mode=777 tmpfs \"$1\" && shift && exec \"$@\"";
    let program = home.command(["serve"]);
    let program = program.as_std();
    let mut command = Command::new("unshare");
    let back = [format!("--map-user={}", getuid()), "--user".into()];
    if geteuid().is_root() {
        command
            .args(["--mount", "sh", "-c", SCRIPT, "sh"])
            .arg(folder);
    } else {
        command.args(["--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh"]);
        command.arg(folder).arg("unshare").args(back);
    }
    let environment = program.get_envs();
    command
        .arg(program.get_program())
        .args(program.get_args())
        .current_dir(home.path())
        .env_clear()
        .envs(environment.filter_map(|(name, value)| Some((name, value?))))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn image_upload_to_a_full_disk_gets_507_without_effect_on_other_requests() {
    let home = Home::new();
    let folder = home.path().join("small disk");
    fs::create_dir(&folder).expect("a folder");
    let mut command = on_small_disk(&home, &folder);
    let url = format!("file://{}", folder.display()).replace(' ', "%20");
    command.env("PET_INVENTORY__IMAGES__URL", url);
    let service = Service::start(&home, command).await;
    let request = |method: Method, path: &str| service.request(method, path, "special-key");
    let added = request(Method::POST, "/pet").json(&serde_json::json!({"id": 5, "name": "Rex"}));
    added.is(201).await;
    let upload = async |bytes: &[u8]| {
        let upload = request(Method::POST, "/pet/5/uploadImage");
        upload.body(bytes.to_owned()).await
    };
    // The file system is mounted in the program's namespace only.
    let mounted = PathBuf::from(format!("/proc/{}/root{}", service.pid(), folder.display()));

    let (half, other_half) = (large_jpeg(700_000), png(800, 600));
    let first = upload(&half).await.is(200);
    let large = large_jpeg(900_000);
    for _ in 0..3 {
        let refused = upload(&large).await;
        refused.problem(507);
        assert!(!refused.text().contains("small disk"), "{refused}");
        request(Method::GET, "/pet/5").is(200).await;
        let changed = request(Method::POST, "/pet/5?name=Max").await;
        assert_eq!(
            changed.is(200).json()["photoUrls"].as_array().map(Vec::len),
            Some(1)
        );
        eventually(async || files_in(&mounted).len() == 1).await;
    }
    let list = async || request(Method::GET, "/pet/5/images").is(200).await.json();
    assert_eq!(list().await.as_array().map(Vec::len), Some(1));

    // Uploads succeed again once there is space.
    request(Method::DELETE, &first.image_path()).is(200).await;
    eventually(async || files_in(&mounted).is_empty()).await;
    upload(&large).await.is(200);
    upload(&other_half[..100]).await.problem(400);
    eventually(async || files_in(&mounted).len() == 1).await;
    service.stop().await;
}

const ACCESS_KEY: &str = "AKIAEXAMPLE";
const SECRET_KEY: &str = "w@J/a:l#r%41 X\"'\\$U+=example";

/// An S3 server that checks signatures and stores objects as files.
struct S3 {
    child: Child,
    address: SocketAddr,
}

impl S3 {
    async fn start(folder: &Path, address: SocketAddr) -> Self {
        let program = repository().join("target/outside-tools/bin/s3s-fs");
        let child = Command::new(program)
            .args(["--host", &address.ip().to_string()])
            .args(["--port", &address.port().to_string()])
            .args(["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY])
            .arg(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("s3s-fs is missing: run .ci/setup --all");
        eventually(async || TcpStream::connect(address).await.is_ok()).await;
        Self { child, address }
    }

    async fn stop(mut self) -> SocketAddr {
        self.child.kill().await.expect("it runs");
        self.address
    }
}

fn settings(address: SocketAddr, secret: &str) -> [(&'static str, String); 5] {
    [
        (
            "PET_INVENTORY__IMAGES__URL",
            "s3://pets/images/of".to_owned(),
        ),
        ("AWS_ENDPOINT_URL", format!("http://{address}")),
        ("AWS_REGION", "eu-central-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", secret.to_owned()),
    ]
}

async fn app_with(address: SocketAddr, secret: &str) -> TestApp {
    let settings = settings(address, secret);
    TestApp::with(&settings.each_ref().map(|(name, value)| (*name, &**value))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_stored_in_an_s3_bucket() {
    let folder = tempfile::tempdir().expect("a folder");
    let bucket = folder.path().join("pets");
    fs::create_dir(&bucket).expect("a bucket");
    let s3 = S3::start(folder.path(), free_address()).await;
    let objects = || {
        let files = files_in(&bucket).into_iter();
        let is_object = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.len() == 32)
        };
        files.filter(is_object).count()
    };
    // The server rejects a wrong signature.
    let unauthorized = app_with(s3.address, "another").await;
    let pet = unauthorized.pet("Rex").await;
    unauthorized.upload(pet, png(20, 20)).await.problem(503);
    assert_eq!(objects(), 0);

    let app = app_with(s3.address, SECRET_KEY).await;
    let (pet, other) = (app.pet("Rex").await, app.pet("Max").await);
    // One upload in a single request and one in parts, which have at least 5 MiB in S3.
    let (small, large) = (jpeg(400, 300), large_jpeg(9_000_000));
    for bytes in [&small, &large] {
        let response = app.upload(pet, bytes.clone()).is(200).await;
        let path = response.image_path();
        let get = || app.anonymous(Method::GET, &path);
        assert!(get().is(200).await.body == bytes, "other bytes");
        let part = get().header("range", "bytes=1000-1999").is(206).await;
        assert!(part.body == bytes[1_000..2_000], "other bytes");
    }
    assert_eq!(objects(), 2);
    let again = app.upload(other, small).is(200).await;
    assert_eq!(objects(), 2, "the same bytes are there once");
    let path = again.image_path();
    let width = app.anonymous(Method::GET, &format!("{path}?width=50"));
    // The next narrower width of renderings is 48.
    assert_eq!(size(&width.is(200).await.body), (48, 36));
    assert_eq!(objects(), 3);

    // With the bucket unreachable, only image bytes are unavailable.
    let address = s3.stop().await;
    app.anonymous(Method::GET, &path).await.problem(503);
    app.upload(other, png(9, 9)).await.problem(503);
    app.get(&format!("/pet/{pet}/images")).is(200).await;
    app.delete(&format!("/pet/{other}")).is(200).await;
    let _s3 = S3::start(folder.path(), address).await;
    app.upload(pet, png(9, 9)).is(200).await;
    app.delete(&format!("/pet/{pet}")).is(200).await;
    eventually(async || objects() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn older_state_of_the_database_deletes_no_images_of_a_bucket() {
    let folder = tempfile::tempdir().expect("a folder");
    let bucket = folder.path().join("pets");
    fs::create_dir(&bucket).expect("a bucket");
    let s3 = S3::start(folder.path(), free_address()).await;
    let app = app_with(s3.address, SECRET_KEY).await;
    let marker = bucket.join("images/of/.database");
    let content = || fs::read_to_string(&marker).expect("a marker");
    let objects = || {
        let files = files_in(&bucket).into_iter();
        let names = files.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
        names.filter(|name| name.len() == 32).count()
    };
    let pet = async |name, side| {
        let pet = app.pet(name).await;
        app.upload(pet, png(side, side)).is(200).await;
        pet
    };
    let delete = async |pet: i64| {
        let delete = app.delete(&format!("/pet/{pet}"));
        delete.is(200).await;
    };
    let (first, second) = (pet("Rex", 20).await, pet("Max", 21).await);
    assert_eq!(objects(), 2);
    let unclaimed = content();
    delete(first).await;
    eventually(async || objects() == 1).await;
    let claimed = content();
    assert!(
        claimed.starts_with(&format!("{unclaimed}/")),
        "{unclaimed} {claimed}"
    );

    // The bucket honours `If-Match`: of two writers that have read the same marker, the first one wins.
    let environment = settings(s3.address, SECRET_KEY);
    let environment = environment
        .each_ref()
        .map(|(name, value)| (*name, &**value));
    let blobs = BlobStore::new(&config(&app.database.url(), &environment)).expect("a store");
    let read = async || blobs.marker().await.expect("an answer").expect("a marker");
    let replace = async |marker, owner: &str| {
        let replaced = blobs.replace_marker(marker, owner.to_owned()).await;
        replaced.expect("an answer")
    };
    let (one, other) = (read().await, read().await);
    assert!(replace(one, "first").await);
    assert!(!replace(other, "second").await);
    assert_eq!(content(), "first");
    assert!(replace(read().await, &claimed).await);

    let older = "update image_place set nonce = gen_random_uuid(), next_nonce = null";
    app.database.run(older).await;
    delete(second).await;
    eventually(async || content() == format!("{unclaimed}/shared")).await;
    assert_eq!(objects(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_of_a_bucket_is_restored_into_another_prefix() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("pets")).expect("a bucket");
    let s3 = S3::start(folder.path(), free_address()).await;
    let app = app_with(s3.address, SECRET_KEY).await;
    let pet = app.pet("Rex").await;
    // The second one is sent in parts.
    let (small, large) = (png(20, 20), large_jpeg(9_000_000));
    let mut images = Vec::new();
    for bytes in [&small, &large] {
        let stored = app.upload(pet, bytes.clone()).is(200).await.json();
        images.push(stored["imageId"].as_str().expect("an id").to_owned());
    }
    let (home, copy) = (Home::new(), TestDatabase::empty().await);
    let run = async |arguments: [&str; 2], url: String, prefix: &str| {
        let mut command = home.command(arguments);
        command
            .envs(settings(s3.address, SECRET_KEY))
            .env("DATABASE_URL", url)
            .env("PET_INVENTORY__IMAGES__URL", format!("s3://pets/{prefix}"));
        Output::of(command).await
    };
    run(["backup", "a.tar"], app.database.url(), "images/of")
        .await
        .is(0);
    // The store of the original is refused, and kept.
    let refused = run(["restore", "a.tar"], copy.url(), "images/of")
        .await
        .is(1);
    assert!(refused.stderr.contains("the image store"), "{refused:?}");
    run(["restore", "a.tar"], copy.url(), "copy").await.is(0);
    let again = run(
        ["restore", "a.tar"],
        TestDatabase::empty().await.url(),
        "copy",
    )
    .await
    .is(1);
    assert!(
        again
            .stderr
            .contains("the image store belongs to another database"),
        "{again:?}"
    );

    let mut environment = settings(s3.address, SECRET_KEY);
    environment[0].1 = "s3://pets/copy".to_owned();
    let environment = environment
        .each_ref()
        .map(|(name, value)| (*name, &**value));
    let service = TestApp::on(copy, &environment).await;
    for (image, bytes) in images.iter().zip([&small, &large]) {
        let get = service.get(&format!("/pet/{pet}/images/{image}"));
        assert!(get.is(200).await.body == *bytes, "other bytes");
    }
    // The copy deletes its own bytes only.
    service.delete(&format!("/pet/{pet}")).is(200).await;
    let of_copy = folder.path().join("pets/copy");
    let is_blob = |path: &PathBuf| path.file_name().is_some_and(|name| name.len() == 32);
    eventually(async || !files_in(&of_copy).iter().any(is_blob)).await;
    for image in &images {
        let get = app.get(&format!("/pet/{pet}/images/{image}"));
        get.is(200).await;
    }
}
