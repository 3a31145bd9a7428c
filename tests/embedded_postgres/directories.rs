//! Embedded PostgreSQL: supported data directories and users.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use pet_inventory::embedded_postgres::{Durability, EmbeddedPostgres, Error, SearchPath};

use crate::support::{
    Holder, Home, options, postmaster_of, processes_using, query_number, run, search, socket_of,
    start, wait_until_unused,
};

#[tokio::test]
async fn data_directory_may_have_any_path() {
    let home = Home::new();
    let long = "a long path with ' and \" and $(x) and ü/".repeat(40);
    assert!(long.len() > 1024);
    for path in [
        home.path.join("with space, ' and \" \n\\ $HOME"),
        home.path.join(long),
    ] {
        let postgres = start(&path).await;
        assert_eq!(
            query_number(&postgres.connect_options(), "SELECT 7").await,
            7
        );
        assert!(socket_of(&path).as_os_str().len() < 80);
        postgres.stop().await.unwrap();
    }
}

#[tokio::test]
async fn data_directory_may_be_relative() {
    let home = tempfile::tempdir_in(".").unwrap();
    let relative = Path::new(home.path().file_name().unwrap()).join("./x");
    let postgres = start(&relative).await;
    assert_eq!(
        query_number(&postgres.connect_options(), "SELECT 7").await,
        7
    );
    postgres.stop().await.unwrap();
    assert!(relative.join("postgres/PG_VERSION").exists());
}

#[tokio::test]
async fn data_directory_of_root_may_be_inaccessible_to_others() {
    if !geteuid().is_root() {
        return eprintln!("skipped: not root");
    }
    let home = tempfile::tempdir_in("/root").unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let path = home.path().join("clone/data");
    let mut holder = Holder::spawn(&path, "server");
    let socket = holder.ready();
    run(&options(&socket), "CREATE TABLE pets AS SELECT 7 AS n").await;
    holder.kill();
    let postgres = start(&path).await;
    kill(Pid::from_raw(postmaster_of(&path)), Signal::SIGKILL).unwrap();
    postgres.stop().await.unwrap();
    let postgres = start(&path).await;
    // These open further files: another database, a sort that spills, a checkpoint.
    run(&postgres.connect_options(), "CREATE DATABASE other").await;
    let spill = "SELECT count(*)::int FROM (SELECT g FROM generate_series(1, 1000000) g ORDER BY g::text) s";
    assert_eq!(
        query_number(&postgres.connect_options(), spill).await,
        1_000_000
    );
    assert_eq!(
        query_number(&postgres.connect_options().database("other"), "SELECT 7").await,
        7
    );
    assert_eq!(
        query_number(&postgres.connect_options(), "SELECT n FROM pets").await,
        7
    );
    run(&postgres.connect_options(), "CHECKPOINT").await;
    postgres.stop().await.unwrap();
    wait_until_unused(&path).await;
}

#[tokio::test]
async fn embedded_postgres_runs_as_an_unprivileged_user() {
    if !geteuid().is_root() {
        return eprintln!("skipped: every other test shows it");
    }
    let home = Home::new();
    chown(&home.path, Some(65534), Some(65534)).unwrap();
    // Other users may not be able to read the target folder.
    let program = home.path.join("tests");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let data = home.path.join("data");
    let mut holder = Holder::run(Command::new(program).uid(65534).gid(65534), &data, "server");
    assert_eq!(query_number(&options(&holder.ready()), "SELECT 7").await, 7);
    holder.end();
    wait_until_unused(&data).await;
    // Root starts it without changing the owner of the files.
    let postgres = start(&data).await;
    assert_eq!(
        query_number(&postgres.connect_options(), "SELECT 7").await,
        7
    );
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn inaccessible_programs_are_reported() {
    if !geteuid().is_root() {
        return eprintln!("skipped: not root");
    }
    let home = Home::new();
    let closed = tempfile::tempdir().unwrap();
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o700)).unwrap();
    for program in ["initdb", "postgres"] {
        fs::copy("/bin/true", closed.path().join(program)).unwrap();
    }
    let search = SearchPath {
        bin_dir: Some(closed.path().to_owned()),
        path: None,
    };
    let error = EmbeddedPostgres::start(&home.path, &search, Durability::Durable)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NotRunnable { .. }), "{error}");
    // The failed start leaves nothing that disturbs the next one.
    start(&home.path).await.stop().await.unwrap();
}

#[tokio::test]
async fn start_errors_name_the_cause() {
    let home = Home::new();
    let empty = SearchPath {
        bin_dir: Some(home.path.clone()),
        path: None,
    };
    let error = EmbeddedPostgres::start(&home.path, &empty, Durability::Durable)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NotInBinDir { .. }), "{error}");

    start(&home.path).await.stop().await.unwrap();
    fs::write(home.path.join("postgres/PG_VERSION"), "9\n").unwrap();
    let error = EmbeddedPostgres::start(&home.path, &search(), Durability::Durable)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("postgres.log") && error.contains("PostgreSQL version 9"),
        "{error}"
    );
    assert!(processes_using(&home.path).is_empty());
    eprintln!("{error}\n{}", Error::NotFound);
}
