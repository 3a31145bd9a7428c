//! `audit`, and the record of changes of accounts, callers and credentials.

use test_support::*;

use super::cli::Commands;

impl Commands {
    async fn audit(&self, arguments: &[&str]) -> Output {
        self.run(&[&["audit"], arguments].concat()).await
    }

    /// Returns the changes that match, as `kind action`, with their identifiers and facts.
    async fn changes(&self, arguments: &[&str]) -> Vec<(String, String, Value)> {
        let printed = self.audit(&[arguments, &["--json"]].concat()).await.is(0);
        let changes = printed.stdout.lines().map(|line| {
            let change: Value = serde_json::from_str(line).expect("JSON");
            let text = |name: &str| change[name].as_str().expect("a text").to_owned();
            (
                format!("{} {}", text("kind"), text("action")),
                text("resource"),
                change["data"].clone(),
            )
        });
        changes.collect()
    }
}

/// Returns the facts of the changes of a kind.
fn facts<'a>(changes: &'a [(String, String, Value)], what: &str) -> Vec<&'a Value> {
    let matching = changes.iter().filter(|(change, _, _)| change == what);
    matching.map(|(_, _, data)| data).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_by_commands_are_recorded_as_those_of_the_operator() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let run = async |arguments: &[&str]| commands.json(&[arguments, &["--json"]].concat()).await;
    let key = run(&["keys", "create", "--caller", "acme", "--plan", "free"]).await;
    let rotated = run(&["keys", "rotate", &key["id"].to_string()]).await;
    run(&["keys", "revoke", &rotated["id"].to_string()]).await;
    let client = run(&["clients", "create", "--caller", "acme"]).await;
    run(&["callers", "set-plan", "acme", "pro"]).await;
    // These change nothing.
    run(&["callers", "set-plan", "acme", "pro"]).await;
    run(&["callers", "enable", "acme"]).await;
    run(&["callers", "set-scopes", "acme", "read:pets"]).await;
    run(&["callers", "disable", "acme"]).await;
    run(&["callers", "delete", "acme"]).await;
    commands.run(&["callers", "delete", "acme"]).await.is(1);
    let two = "{\"name\": \"Rex\", \"id\": 7}\n{\"name\": \"Max\", \"id\": 9}\n";
    for pets in [two, ""] {
        commands.write("pets.ndjson", pets);
        run(&["import", "pets.ndjson"]).await;
    }

    let replaced = rotated["replaced"]["expiresAt"].clone();
    let [key, rotated, client] = [&key["id"], &rotated["id"], &client["id"]].map(Value::to_string);
    let of_caller = json!({"caller": 1});
    let all = json!(["read:pets", "write:pets", "read:orders", "write:orders"]);
    let new = json!({"caller": 1, "scopes": all});
    let ends = json!({"caller": 1, "expiresAt": replaced});
    let scopes = json!([
        ["read:pets", "write:pets", "read:orders", "write:orders"],
        ["read:pets"]
    ]);
    let expected = [
        (
            "caller created",
            "1",
            json!({"plan": [null, "free"], "scopes": all}),
        ),
        ("key created", &key, new.clone()),
        ("key changed", &key, ends),
        ("key created", &rotated, new.clone()),
        ("key deleted", &rotated, of_caller.clone()),
        ("client created", &client, new),
        ("caller changed", "1", json!({"plan": ["free", "pro"]})),
        ("caller changed", "1", json!({"scopes": scopes})),
        ("caller changed", "1", json!({"disabled": [false, true]})),
        ("key deleted", &key, of_caller.clone()),
        ("client deleted", &client, of_caller),
        ("caller deleted", "1", Value::Null),
        ("import created", "7", json!({"pets": 2, "ids": [7, 9]})),
    ];
    let expected = expected.map(|(what, id, data)| (what.to_owned(), id.to_owned(), data));
    assert_eq!(commands.changes(&["--caller", "operator"]).await, expected);
    // No caller may have that name.
    let reserved = ["keys", "create", "--caller", "operator", "--plan", "free"];
    commands
        .refuses(&reserved, "must be neither operator")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_accounts_are_recorded() {
    let app = TestApp::start().await;
    let commands = Commands::on(app.database.shared());
    let account = json!({"username": "lovelace", "password": PASSWORD});
    let signed_up = app.anonymous(Method::POST, "/user").json(&account);
    let ada = signed_up
        .header("x-request-id", "sign-up-1")
        .is(201)
        .await
        .id();
    let log_in = async || app.log_in("lovelace").await;
    // A session that its own account ends is not recorded.
    let session = log_in().await;
    let change = app.anonymous(Method::PUT, "/user/lovelace").json(&account);
    change.bearer_auth(&session).is(200).await;
    log_in().await;
    app.request(Method::PUT, "/user/lovelace")
        .json(&account)
        .is(200)
        .await;
    app.request(Method::PUT, "/user/lovelace")
        .json(&json!({"firstName": "Augusta"}))
        .is(200)
        .await;
    log_in().await;
    let sessions = commands.json(&["sessions", "list", "--json"]).await;
    let sessions = sessions.as_array().expect("sessions");
    let live = sessions
        .iter()
        .find(|it| it["revokedAt"].is_null())
        .expect("a session");
    commands
        .run(&["sessions", "revoke", &live["id"].to_string()])
        .await
        .is(0);
    log_in().await;
    let list = json!([{"username": "turing"}, {"username": "noether"}]);
    app.post("/user/createWithList", &list).is(200).await;
    app.post("/user/createWithList", &list).is(409).await;
    app.delete("/user/lovelace").is(200).await;
    app.delete("/user/lovelace").is(404).await;

    let changes = commands
        .changes(&["--resource", &format!("user/{ada}")])
        .await;
    let actions: Vec<_> = changes.iter().map(|(what, _, _)| what.as_str()).collect();
    let update = "user changed";
    assert_eq!(
        actions,
        ["user created", update, update, update, "user deleted"]
    );
    // One was ended by the administrator's password, one by a command, one with the account.
    let changes = commands.changes(&["--kind", "session"]).await;
    assert_eq!(facts(&changes, "session deleted").len(), 3, "{changes:?}");
    let caller = facts(&changes, "session deleted")[0]["caller"].to_string();
    let changes = commands
        .changes(&["--resource", &format!("caller/{caller}")])
        .await;
    let scopes = json!(["read:pets", "read:orders", "write:orders"]);
    let free = json!({"plan": [null, "free"], "scopes": scopes});
    let expected = [("caller created", free), ("caller deleted", Value::Null)];
    let expected = expected.map(|(what, data)| (what.to_owned(), caller.clone(), data));
    assert_eq!(changes, expected);
    let users = commands
        .changes(&["--kind", "user", "--caller", "tester"])
        .await;
    assert_eq!(facts(&users, "user created").len(), 2, "{users:?}");
    // Neither a name nor a secret.
    let printed = commands.audit(&["--json"]).await.is(0).stdout;
    for secret in ["lovelace", "turing", "Augusta", PASSWORD, "argon2"] {
        assert!(!printed.contains(secret), "{secret}: {printed}");
    }
    assert!(printed.contains("sign-up-1"), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_see_changes_of_their_own_account() {
    let app = TestApp::start().await;
    for name in ["ada", "bob"] {
        app.sign_up(name).await;
    }
    // The scope is in no default: the operator grants it.
    let ada = "update callers set scopes = scopes || '{read:changes}' where name = 'user:1'";
    app.database.run(ada).await;
    let token = app.log_in("ada").await;
    let changes = app.anonymous(Method::GET, "/changes").bearer_auth(token);
    let seen = changes.is(200).await.changes();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!([&seen[0]["kind"], &seen[0]["resource"]], ["user", "1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_prints_a_table_in_the_local_time_zone() {
    let app = TestApp::start().await;
    let commands = Commands::on(app.database.shared());
    for id in 1..=3 {
        let pet = json!({"id": id, "name": "Rex", "status": "pending"});
        app.post("/pet", &pet)
            .header("x-request-id", format!("add-{id}"))
            .is(201)
            .await;
    }
    app.patch("/pet/2", &json!({"status": "sold"}))
        .is(200)
        .await;
    app.database
        .run(
            "update new_changes set at = '2026-01-31T12:00:00Z' where request_id = 'add-2';
              update changes set at = '2026-01-31T12:00:00Z' where request_id = 'add-2'",
        )
        .await;
    let audit = ["audit", "--resource", "pet/2"];
    let printed = commands.run_with(&audit, &[("TZ", "Asia/Kolkata")]).await;
    let printed = printed.is(0).stdout;
    let lines: Vec<Vec<&str>> = printed
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        lines[0],
        [
            "TIME", "RESOURCE", "ACTION", "CALLER", "VERSION", "FACTS", "REQUEST"
        ]
    );
    let [day, time, resource, action, caller, _, facts @ .., request] = &lines[1][..] else {
        panic!("{printed}");
    };
    assert_eq!([day, time], [&"2026-01-31", &"17:30:00"], "{printed}");
    assert_eq!(
        [resource, action, caller, request],
        [&"pet/2", &"created", &"tester", &"add-2"]
    );
    assert_eq!(facts, ["name", "Rex,", "status", "pending"]);
    assert!(printed.contains("status pending → sold"), "{printed}");
    assert_eq!(lines.len(), 3, "{printed}");

    let count = async |arguments: &[&str]| commands.changes(arguments).await.len();
    assert_eq!(count(&["--kind", "pet", "--since", "1h"]).await, 3);
    assert_eq!(
        count(&["--kind", "pet", "--since", "2026-01-31T12:00:00Z"]).await,
        4
    );
    assert_eq!(count(&["--kind", "pet", "--until", "2026-02-01"]).await, 1);
    assert_eq!(
        count(&["--kind", "pet", "--kind", "image", "--caller", "nobody"]).await,
        0
    );
    assert_eq!(count(&["--resource", "pet/4"]).await, 0);
    for (arguments, words) in [
        (["--since", "yesterday"], "2h, 7d, 2026-01-31"),
        (["--resource", "7"], "pet/7"),
        (["--resource", "dog/7"], "must be pet, image"),
        (["--kind", "dog"], "must be pet, image"),
    ] {
        let refused = commands.audit(&arguments).await.is(2);
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_follows_new_changes_until_it_is_interrupted() {
    let app = TestApp::start().await;
    let commands = Commands::on(app.database.shared());
    app.add_pet(1_000).await;
    let mut command = commands.command(["audit", "--follow", "--kind", "pet", "--json"]);
    let mut follower = command.stdout(Stdio::piped()).spawn().expect("the program");
    let output = follower.stdout.take().expect("an output");
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(output));
    // It begins with the changes that follow its start.
    let mut last = 0;
    let first = tokio::select! {
        first = lines.next_line() => first.expect("an output").expect("a line"),
        () = async {
            loop {
                last += 1;
                app.add_pet(last).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        } => unreachable!(),
    };
    let first: Value = serde_json::from_str(&first).expect("JSON");
    let first: i64 = first["resource"]
        .as_str()
        .expect("an id")
        .parse()
        .expect("a number");
    assert!((1..=last).contains(&first), "{first}");
    for id in first + 1..=last + 3 {
        if id > last {
            app.add_pet(id).await;
        }
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
        let line = line
            .expect("a line in time")
            .expect("an output")
            .expect("a line");
        let change: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(change["resource"], id.to_string());
    }
    let pid = i32::try_from(follower.id().expect("a process")).expect("an id");
    nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGINT).expect("a signal");
    let exit = tokio::time::timeout(PATIENCE, follower.wait()).await;
    assert!(exit.expect("an exit in time").expect("an exit").success());

    let mut command = commands.command([
        "audit", "--follow", "--since", "1h", "--kind", "pet", "--json",
    ]);
    let mut follower = command.stdout(Stdio::piped()).spawn().expect("the program");
    let output = follower.stdout.take().expect("an output");
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(output));
    let line = lines.next_line().await.expect("an output").expect("a line");
    let change: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(change["resource"], "1000");
    follower.kill().await.expect("it runs");
}
