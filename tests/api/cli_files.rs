//! Tests of `import` and `export`: an import is all or nothing, and exported files can be imported again.

use nix::sys::signal::kill;
use std::fmt::Write as _;
use test_support::*;

use super::cli::Commands;

/// Returns commands on a database without pets.
async fn empty_store() -> Commands {
    Commands::on(TestDatabase::migrated().await)
}

/// Returns the number of stored pets.
async fn count(store: &Commands) -> i64 {
    store.database.number("select count(*) from pets").await
}

/// Returns pets with values that are easily lost in conversion: control characters, quotes, separators, absent fields.
fn unusual_pets() -> Vec<Value> {
    vec![
        json!({"id": 7, "category": {"id": 1, "name": "Dogs, \"big\"\nones"}, "name": "Rex\t\\N\\.",
               "photoUrls": ["https://example.com/a,b.jpg?c=d", "/x,y"],
               "tags": [{"id": 1, "name": "a\u{1}\u{2}b"}, {"name": "\\."}, {}], "status": "sold"}),
        json!({"id": 9, "category": {}, "name": "Äda 🦊 \r\n", "photoUrls": [], "tags": [], "status": "pending"}),
        json!({"id": 9_007_199_254_740_991_i64, "name": "null", "photoUrls": ["NULL"], "tags": [{"id": 5}], "status": "available"}),
    ]
}

fn ndjson(pets: &[Value]) -> String {
    pets.iter().fold(String::new(), |mut text, pet| {
        writeln!(text, "{pet}").expect("a line");
        text
    })
}

fn by_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn import_refuses_a_pet_above_16_kib() {
    let store = empty_store().await;
    let pets = [16 << 10, (16 << 10) + 1].map(|size| pet_of_size("large", size));
    store.write("pets.ndjson", &ndjson(&pets));
    let refused = store.run(&["import", "pets.ndjson"]).await;
    let expected = "line 2: must have at most 16384 bytes as JSON\n";
    assert!(refused.stderr.ends_with(expected), "{refused:?}");
    assert_eq!(count(&store).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn import_skips_a_byte_order_mark() {
    let store = empty_store().await;
    let pet = r#"{"id": 5, "name": "first"}"#;
    store.write(
        "json.ndjson",
        &format!("\u{feff}{pet}\n{{\"name\": \"second\"}}\n"),
    );
    store.run(&["import", "json.ndjson"]).await.is(0);
    store.write("heading.csv", "\u{feff}id,name\n6,third\n");
    store.run(&["import", "heading.csv"]).await.is(0);
    store.write("blank.ndjson", "\u{feff}\n{\"name\": \"fourth\"}\n");
    store.run(&["import", "blank.ndjson"]).await.is(0);
    let app = TestApp::on(store.database.shared(), &[]).await;
    assert_eq!(app.get("/pet/5").is(200).await.json()["name"], "first");
    assert_eq!(app.count().await, 4);
    // Within the file, it is no white space.
    store.write("within.ndjson", &format!("{pet}\n\u{feff}{pet}\n"));
    store.refuses(&["import", "within.ndjson"], "line 2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn export_and_import_round_trip_every_field() {
    let store = empty_store().await;
    store.write("pets.ndjson", &ndjson(&unusual_pets()));
    let output = store.run(&["import", "pets.ndjson"]).await.is(0);
    output.stdout_has("added 3 pets");

    let app = TestApp::on(store.database.shared(), &[]).await;
    for pet in unusual_pets() {
        let response = app.get(&format!("/pet/{}", pet["id"])).is(200).await;
        assert_eq!(response.json(), pet);
    }
    for (format, file) in [("ndjson", "out.ndjson"), ("csv", "out.csv")] {
        store.run(&["export", file]).await.is(0);
        let text = fs::read_to_string(store.path().join(file)).expect("a file");
        let to_stdout = match format {
            "ndjson" => store.run(&["export"]).await.is(0),
            _ => store.run(&["export", "-", "--format", format]).await.is(0),
        };
        assert_eq!(to_stdout.stdout, text);
        let other = empty_store().await;
        other.write(file, &text);
        other.run(&["import", file]).await.is(0);
        let again = other.run(&["export", "--format", "ndjson"]).await.is(0);
        assert_eq!(by_lines(&again.stdout), unusual_pets(), "{format}");
    }
    store.refuses(&["export", "out.csv"], "out.csv").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn export_tells_how_many_pets_an_import_refuses() {
    let store = empty_store().await;
    // The largest pet that clients can store, and one that is larger by a byte.
    for (id, size) in [(1, 16 << 10), (2, (16 << 10) + 1)] {
        let mut urls = vec!["y".repeat(2_000); 8];
        let details =
            |urls: &[String]| json!({"name": "a", "photoUrls": urls, "tags": []}).to_string();
        let others = r#""id":9007199254740991,,"status":"sold""#.len();
        urls.push("y".repeat(size - others - details(&urls).len() - r#","""#.len()));
        let details = details(&urls);
        let add = format!(
            "insert into pets (id, status, details, folded_name) values ({id}, 'sold', '{details}', 'a')"
        );
        store.database.run(&add).await;
    }
    let output = store.run(&["export", "out.ndjson"]).await.is(0);
    output.stderr_has("1 of the pets have more than 16384 bytes");
    store.database.run("delete from pets").await;
    store
        .refuses(&["import", "out.ndjson"], "at most 16384 bytes")
        .await;
}

/// A part of a file could be taken for all of it.
#[tokio::test(flavor = "multi_thread")]
async fn export_that_fails_leaves_no_file() {
    let store = empty_store().await;
    store
        .database
        .run("alter table pets rename details to gone")
        .await;
    // What an interrupted export has left.
    store.write("out.csv.partial", "");
    store.run(&["export", "out.csv"]).await.is(1);
    for name in ["out.csv", "out.csv.partial"] {
        assert!(!store.path().join(name).exists(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_to_a_full_disk_is_an_error_that_names_stdout() {
    let store = empty_store().await;
    store.run(&["seed"]).await.is(0);
    for arguments in ["export -", "backup -", "callers list", "--json audit"] {
        let script = "exec \"$0\" \"$@\" >/dev/full";
        let command = store.in_shell(script, arguments.split(' '));
        let output = Output::of(command).await.is(1);
        output.stderr_has("stdout: No space left on device");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn import_with_invalid_lines_names_them_and_adds_nothing() {
    let store = empty_store().await;
    store.write(
        "pets.ndjson",
        "{\"name\": \"good\"}\n\n{\"name\": \"\", \"status\": \"gone\"}\nno json\n[]\n{\"id\": -1, \"name\": \"a\"}\n\u{0}\n",
    );
    let output = store.run(&["import", "pets.ndjson"]).await.is(1);
    for words in [
        "line 3: name must",
        "status must be",
        "line 4: ",
        "line 5: ",
        "line 6: id ",
        "line 7: ",
    ] {
        output.stderr_has(words);
    }
    assert!(
        !output.stderr.contains("line 1:") && !output.stderr.contains("line 2:"),
        "{output:?}"
    );

    let csv =
        "name,id,tags\nRex,1,\"[{\"\"name\"\": \"\"a\"\"}]\"\nAda,x,\nLo,2,no json\nTo,3\n,4,\n";
    store.write("pets.csv", csv);
    let output = store.run(&["import", "pets.csv"]).await.is(1);
    for words in [
        "line 3: id must be an integer",
        "line 4: tags must be JSON",
        "line 5: ",
        "line 6: name is required",
    ] {
        output.stderr_has(words);
    }
    store.write("other.csv", "name,colour\nRex,red\n");
    store.refuses(&["import", "other.csv"], "colour").await;
    assert_eq!(count(&store).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn import_names_taken_ids_and_generates_free_ones() {
    let store = empty_store().await;
    store.write(
        "first.ndjson",
        "{\"id\": 5, \"name\": \"a\"}\n{\"id\": 3, \"name\": \"b\"}\n",
    );
    store.run(&["import", "first.ndjson"]).await.is(0);
    store.write(
        "second.ndjson",
        "{\"name\": \"c\"}\n{\"id\": 3, \"name\": \"d\"}\n{\"id\": 8, \"name\": \"e\"}\n{\"id\": 8, \"name\": \"f\"}\n",
    );
    let output = store.run(&["import", "second.ndjson"]).await.is(1);
    output.stderr_has("line 2: id 3 is already used by a stored pet");
    output.stderr_has("line 4: id 8 is already used by an earlier line");
    assert!(!output.stderr.contains("line 3:"), "{output:?}");
    assert_eq!(count(&store).await, 2);

    // Six pets without an id; ids 3 and 5 are taken in the database and 4 in the file.
    let mut third = "{\"id\": 4, \"name\": \"chosen\"}\n".to_owned();
    third.push_str(&"{\"name\": \"given\"}\n".repeat(6));
    store.write("third.ndjson", &third);
    store.run(&["import", "third.ndjson"]).await.is(0);
    let exported = store.run(&["export", "--format", "ndjson"]).await.is(0);
    let pets = by_lines(&exported.stdout);
    assert_eq!(pets.len(), 9);
    let chosen: Vec<_> = pets
        .iter()
        .filter(|pet| pet["name"] != "given")
        .map(|pet| pet["id"].as_i64())
        .collect();
    assert_eq!(chosen, [Some(3), Some(4), Some(5)]);

    // The sequence is behind the ids of the file, so that no client has to skip them.
    let next: i64 = pets
        .iter()
        .filter_map(|pet| pet["id"].as_i64())
        .max()
        .expect("a pet")
        + 1;
    let lines = (next..next + 50).map(|id| format!("{{\"id\": {id}, \"name\": \"e\"}}\n"));
    store.write("fourth.ndjson", &lines.collect::<String>());
    store.run(&["import", "fourth.ndjson"]).await.is(0);
    let reached = store
        .database
        .number("select last_value from pet_ids")
        .await;
    assert_eq!(reached, next + 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn import_that_is_killed_leaves_nothing_and_runs_again() {
    const PETS: usize = 60_000;
    const RUNNING: &str = "select count(*) from pg_stat_activity
        where datname = current_database() and query like 'insert into imported%'";
    let store = empty_store().await;
    let file: String = (0..PETS).fold(String::new(), |mut text, n| {
        writeln!(text, "{{\"name\": \"pet {n}\"}}").expect("a line");
        text
    });
    store.write("pets.ndjson", &file);
    let mut child = store
        .command(["import", "pets.ndjson"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program");
    eventually(async || store.database.number(RUNNING).await > 0).await;
    child.kill().await.expect("a kill");
    assert_eq!(count(&store).await, 0, "nothing can be seen before its end");
    let output = store.run(&["import", "pets.ndjson"]).await.is(0);
    assert!(output.stdout.contains("added 60000 pets"), "{output:?}");
    assert_eq!(count(&store).await, 60_000);
    let names = store
        .database
        .number("select count(distinct details ->> 'name') from pets");
    assert_eq!(names.await, 60_000);
    let tables = "select count(*) from pg_class where relname like '%import%'";
    assert_eq!(store.database.number(tables).await, 0);
    let app = TestApp::on(store.database.shared(), &[]).await;
    app.post("/pet", &json!({"name": "next"})).is(201).await;
}

/// A file is read once, so that it may be a pipe.
#[tokio::test(flavor = "multi_thread")]
async fn import_reads_a_pipe() {
    let store = empty_store().await;
    let mut child = store
        .command(["import", "-", "--format", "ndjson"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut stdin = child.stdin.take().expect("a pipe");
    let pets = ndjson(&unusual_pets());
    stdin.write_all(pets.as_bytes()).await.expect("room");
    drop(stdin);
    let output = child.wait_with_output().await.expect("its output");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("added 3 pets"), "{output:?}");
    store.refuses(&["import", "-"], "--format").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_import_says_that_nothing_was_added() {
    let store = empty_store().await;
    let mut child = store
        .command(["import", "-", "--format", "ndjson", "--json"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut stdin = child.stdin.take().expect("a pipe");
    let pets = "{\"name\":\"Rex\"}\n".repeat(100_000);
    // More than the pipe takes: the import reads.
    stdin.write_all(pets.as_bytes()).await.expect("room");
    let pid = Pid::from_raw(child.id().expect("it runs").cast_signed());
    kill(pid, Signal::SIGINT).expect("it runs");
    let output = child.wait_with_output().await.expect("its output");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("interrupted: no pets were added"),
        "{stderr}"
    );
    assert_eq!(count(&store).await, 0);
    drop(stdin);
}

/// `POST /pet` refuses a member that is given twice, and ignores unknown ones, however deep they are.
#[tokio::test(flavor = "multi_thread")]
async fn import_reads_records_as_the_api_reads_bodies() {
    let store = empty_store().await;
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    store.write(
        "deep.ndjson",
        &format!("{{\"name\": \"a\", \"unknown\": {deep}}}\n"),
    );
    store.run(&["import", "deep.ndjson"]).await.is(0);
    for (name, text, problem) in [
        (
            "twice.ndjson",
            "{\"name\": \"a\"}\n{\"name\": \"a\", \"name\": \"b\"}\n".to_owned(),
            "line 2: must be a JSON object without duplicate fields",
        ),
        (
            "cell.csv",
            "name,tags\na,\"[{\"\"name\"\": \"\"a\"\", \"\"name\"\": \"\"b\"\"}]\"\n".to_owned(),
            "line 2: must be a JSON object without duplicate fields",
        ),
        (
            "members.csv",
            "name,tags\na,\"[], \"\"status\"\": \"\"sold\"\"\"\n".to_owned(),
            "line 2: tags must be JSON",
        ),
        ("empty.csv", String::new(), "line 1: the heading is missing"),
        (
            "heading.csv",
            "name,name\na,b\n".to_owned(),
            "line 1: column \"name\" is given twice",
        ),
    ] {
        store.write(name, &text);
        store.refuses(&["import", name], problem).await;
    }
    assert_eq!(count(&store).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn import_counts_the_lines_of_csv_and_reports_taken_ids_with_other_problems() {
    let store = empty_store().await;
    store.write("first.ndjson", "{\"id\": 5, \"name\": \"a\"}\n");
    store.run(&["import", "first.ndjson"]).await.is(0);
    for end in ["\n", "\r\n", "\r"] {
        let lines = [
            "id,name",
            "",
            "1,\"two",
            "lines\"",
            "",
            "5,taken",
            "x,invalid",
            "6",
            "7,b",
            "7,c",
        ];
        store.write("lines.csv", &(lines.join(end) + end));
        let refused = store.run(&["import", "lines.csv"]).await.is(1).stderr;
        let problems: Vec<_> = refused
            .lines()
            .filter(|it| it.starts_with("line "))
            .collect();
        assert_eq!(
            problems,
            [
                "line 6: id 5 is already used by a stored pet",
                "line 7: id must be an integer",
                "line 8: must have as many fields as the heading",
                "line 10: id 7 is already used by an earlier line",
            ],
            "{end:?}"
        );
    }
    assert_eq!(count(&store).await, 1);
}

/// A quote that is not closed takes all rows that follow into its cell, or hides that the file was cut off.
#[tokio::test(flavor = "multi_thread")]
async fn import_refuses_csv_with_misplaced_quotes() {
    const OPEN: &str = "line 3: has a quote (\") that is not closed before the end of the file";
    const BEHIND: &str = "line 3: has text behind a closing quote (\")";
    let store = empty_store().await;
    let heading = "id,status,name";
    for end in ["\n", "\r\n", "\r"] {
        for rest in [
            "",
            end,
            "\n4,sold,d",
            &format!("{end}4,sold,d{end}5,sold,e{end}"),
        ] {
            for (row, problem) in [
                ("\"2", OPEN),
                ("2,\"sold", OPEN),
                ("2,sold,\"b", OPEN),
                ("2,sold,\"", OPEN),
                ("2,sold,\"b\"\"", OPEN),
                ("\"2\"3,sold,b", BEHIND),
                ("2,sold,\"b\"c", BEHIND),
            ] {
                store.write(
                    "pets.csv",
                    &format!("{heading}{end}1,sold,a{end}{row}{rest}"),
                );
                let refused = store.run(&["import", "pets.csv"]).await.is(1);
                assert!(
                    refused.stderr.contains(problem),
                    "{row:?} {rest:?}: {refused:?}"
                );
            }
        }
        let closed = [
            "2,sold,\"b\"",
            "\"2\",\"sold\",\"b\"\"\"",
            "2,sold,a \"b\" c",
        ];
        for (number, row) in (10..).zip(closed) {
            let row = row.replace('2', &format!("{number}{}", end.len()));
            store.write("pets.csv", &format!("{heading}{end}{row}"));
            store.run(&["import", "pets.csv"]).await.is(0);
            let delete = format!("delete from pets where id = {number}{}", end.len());
            store.database.run(&delete).await;
        }
    }
    store.write("pets.csv", "id,\"name\n1,a\n");
    store
        .refuses(&["import", "pets.csv"], "line 1: the heading has a quote")
        .await;
    store.write("pets.csv", "id,name\n1.23457E+11,Rex\n123457000000.0,Rex\n");
    let refused = store.run(&["import", "pets.csv"]).await.is(1);
    refused
        .stderr_has("line 2: id must be an integer: Excel wrote a long one in scientific notation");
    refused.stderr_has("line 3: id must be an integer\n");
    assert_eq!(count(&store).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn spreadsheet_safe_export_has_no_cell_that_is_a_formula() {
    let store = empty_store().await;
    let names = [
        "a\n=1", "a\r=1", "a;\"=1", "a;=1", "a\t+1", "\t\t-1", "=1;=2", "=1+1", "+1", "-1",
        "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "＋1", "－1", "＠1", "a=1", "'", "Rex",
    ];
    let pets: Vec<Value> = (1..)
        .zip(names)
        .map(|(id, name)| {
            json!({"id": id, "name": name, "category": {"name": ";=1"}, "photoUrls": ["/;=1"], "tags": [{"name": ";@1"}],
                   "status": "available"})
        })
        .collect();
    store.write("pets.ndjson", &ndjson(&pets));
    store.run(&["import", "pets.ndjson"]).await.is(0);
    let export = ["export", "--format", "csv", "--spreadsheet-safe"];
    let safe = store.run(&export).await.is(0).stdout;
    let mut reader = csv::Reader::from_reader(safe.as_bytes());
    let records: Vec<_> = reader.records().map(|it| it.expect("a record")).collect();
    assert_eq!(records.len(), names.len());
    for (record, name) in records.iter().zip(names) {
        // In other locales, a semicolon or a tab separates cells, and a line break rows.
        for cell in record
            .iter()
            .flat_map(|cell| cell.split([';', '\t', '\r', '\n']))
        {
            let first = cell.trim_start_matches('"').chars().next().unwrap_or('\'');
            assert!(!"=+-@\t\r\n＝＋－＠".contains(first), "{record:?}");
        }
        assert_eq!(record[1].replace('\'', ""), name.replace('\'', ""));
    }
    // Without the option, a file can be imported again.
    let exact = store.run(&export[..3]).await.is(0).stdout;
    assert!(exact.contains("\n9,+1,"), "{exact}");
    let refused = store.run(&["export", "a.ndjson", "--spreadsheet-safe"]);
    let refused = refused.await.is(1);
    assert!(refused.stderr.contains("--format csv"), "{refused:?}");
}
