//! Webhooks with names that resolve to addresses of this machine: in a network with a name server of its own.

use test_support::*;
use tokio::process::Command;

/// Runs a command on the database, and returns its JSON.
async fn run(home: &Home, database: &TestDatabase, arguments: &[&str]) -> Value {
    let mut command = home.command([&["--json"], arguments].concat());
    command.env("DATABASE_URL", database.url());
    let output = Output::of(command).await.is(0);
    serde_json::from_str(&output.stdout).expect("JSON")
}

/// Records a change of a pet, and returns the reason why its delivery failed.
async fn failure(home: &Home, database: &TestDatabase, webhook: &str, pet: &str) -> String {
    let change = format!(
        "insert into new_changes (kind, resource, action) values ('pet', '{pet}', 'changed')"
    );
    database.run(&change).await;
    let mut reason = String::new();
    eventually(async || {
        let deliveries = run(home, database, &["webhooks", "deliveries", webhook]).await;
        let mut all = deliveries.as_array().expect("a list").iter();
        let found = all.find(|it| it["resource"] == pet);
        let found = found.and_then(|it| it["lastError"].as_str());
        found.unwrap_or_default().clone_into(&mut reason);
        !reason.is_empty()
    })
    .await;
    reason
}

#[tokio::test(flavor = "multi_thread")]
async fn names_with_private_addresses_are_refused_also_if_they_change() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let connections = home.path().join("connections");
    fs::write(&connections, "").expect("a file");
    let resolver = home.path().join("resolv.conf");
    fs::write(
        &resolver,
        "nameserver 127.0.0.1\noptions timeout:1 attempts:2\n",
    )
    .expect("a file");
    let names = repository().join("tests/system/outside_tools/names.py");
    let program = home.command(["serve"]);
    let program = program.as_std();
    let mut service = Command::new("unshare");
    if !nix::unistd::Uid::effective().is_root() {
        service.arg("--map-root-user");
    }
    service
        .args(["--mount", "--net", "sh", "-c"])
        .arg(r#"mount --bind "$1" /etc/resolv.conf && shift && exec python3 "$@""#)
        .arg("sh")
        .args([&resolver, &names, &connections])
        .arg(program.get_program())
        .arg("serve")
        .env_clear()
        .envs(
            program
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .env("DATABASE_URL", database.url())
        .current_dir(home.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true);
    let mut service = service.spawn().expect("unshare: run .ci/setup --all");

    run(
        &home,
        &database,
        &["webhooks", "create", "https://mixed.test/", "--kind", "pet"],
    )
    .await;
    run(
        &home,
        &database,
        &[
            "webhooks",
            "create",
            "https://rebinding.test/",
            "--kind",
            "pet",
        ],
    )
    .await;
    let reason = failure(&home, &database, "1", "mixed").await;
    assert!(
        reason.contains("mixed.test has an address that is not public"),
        "{reason}"
    );
    // Every other response is public. A second question before the connection would get the other one.
    let (mut refused, mut attempted) = (0, 0);
    for pet in ["1", "2", "3", "4", "5", "6"] {
        let reason = failure(&home, &database, "2", pet).await;
        refused += usize::from(reason.contains("rebinding.test has an address that is not public"));
        attempted += usize::from(reason.contains("connect"));
    }
    assert!(
        refused > 0 && attempted > 0 && refused + attempted == 6,
        "{refused} {attempted}"
    );
    assert_eq!(fs::read_to_string(&connections).expect("the file"), "");
    service.start_kill().expect("it runs");
    let _ = tokio::time::timeout(Duration::from_secs(5), service.wait()).await;
}
