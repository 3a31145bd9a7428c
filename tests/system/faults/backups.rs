//! Row 28: everything is lost, and restored from a backup that was made under write load.

use futures_util::{StreamExt as _, stream};
use test_support::*;

use crate::stage::*;

/// Maximum duration of the backup, and of the restore.
const PROMISED: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(30)];

/// Runs a command of the program on another database of the stage's server, and returns its duration.
async fn run(home: &Home, arguments: [&str; 2], variables: &[(&str, String)]) -> Duration {
    let mut command = home.command(arguments);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    let started = Instant::now();
    let output = command.output().await.expect("the program");
    let elapsed = started.elapsed();
    assert!(output.status.success(), "{output:?}");
    elapsed
}

/// Adds pets, and an image each to the first of them.
async fn fill(stage: &Stage, pets: u32, images: u32) {
    let insert = format!(
        r#"insert into pets (id, status, details)
           select nextval('pet_ids'), 'available',
                  json_build_object('category', '{{"id": 1, "name": "Dogs"}}'::json,
                                    'name', 'Rex ' || number, 'photoUrls', '[]'::json,
                                    'tags', '[{{"id": 1, "name": "friendly"}}, {{"name": "big"}}]'::json)
           from generate_series(1, {pets}) as number"#
    );
    stage.cluster.run(&insert).await;
    let upload = async |number: u32| {
        let path = format!("/pet/{}/uploadImage", number + 1);
        let upload = stage.target.request(Method::POST, &path);
        let bytes = png(100 + number % 100, 100 + number / 100);
        upload.body(bytes).is(200).await;
    };
    stream::iter(0..images).for_each_concurrent(8, upload).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn row_28_lost_database_and_images_are_restored_from_a_backup() {
    let mut row = Row::begin(
        28,
        "loss of the database and all images; restore of a backup",
    )
    .await;
    let (pets, images) = (100_000, 1_000);
    let folder = tempfile::tempdir().expect("a folder");
    let url_of = |name: &str| format!("file://{}/{name}", folder.path().display());
    let stage = Stage::start(&[("IMAGES__URL", &url_of("images"))]).await;
    fill(&stage, pets, images).await;

    let home = Home::new();
    let archive = folder.path().join("backup.tar");
    let name = archive.to_str().expect("text");
    let of = |url: String, images: &str| {
        [
            ("DATABASE_URL", url),
            ("PET_INVENTORY__IMAGES__URL", url_of(images)),
        ]
    };
    let original = of(stage.cluster.url(), "images");
    let writes = async {
        loop {
            let add = stage.target.request(Method::POST, "/pet");
            add.json(&json!({"name": "meanwhile"})).is(201).await;
        }
    };
    let backed_up = tokio::select! {
        time = run(&home, ["backup", name], &original) => time,
        () = writes => Duration::MAX,
    };
    stage.cluster.run("create database copy").await;
    let copy = of(url_at(stage.cluster.address, "copy"), "copy");
    let restored = run(&home, ["restore", name], &copy).await;
    let size = fs::metadata(&archive).expect("a file").len() >> 20;
    row.note(format!("{pets} pets, {images} images, {size} MiB"));
    row.within("backup", backed_up, PROMISED[0]);
    row.within("restore", restored, PROMISED[1]);

    let mut command = home.command(["serve"]);
    command.envs(copy.iter().map(|(name, value)| (name, value)));
    let service = Service::start(&home, command).await;
    let mut missing = Vec::new();
    for pet in 1..=images {
        let get = |path: &str| service.request(Method::GET, path, &stage.target.key);
        let list = get(&format!("/pet/{pet}/images")).await.is(200).json();
        let id = list[0]["id"].as_str().unwrap_or_default();
        let image = get(&format!("/pet/{pet}/images/{id}")).await;
        missing.extend((image.status != 200).then_some(pet));
    }
    row.none("missing images", missing);
    let mut export = home.command(["export", "--format", "ndjson"]);
    export.envs(copy.iter().map(|(name, value)| (name, value)));
    let exported = Output::of(export).await.is(0).stdout.lines().count();
    row.at_least(
        "restored pets",
        exported,
        usize::try_from(pets).expect("a number"),
    );
    service.stop().await;
    row.end();
}
