//! Embedded PostgreSQL: its holder or its postmaster is killed at any moment.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use pet_inventory::embedded_postgres::{Durability, EmbeddedPostgres, Error};
use sqlx::ConnectOptions;

use crate::support::{
    Holder, Home, TIMEOUT, names, options, postmaster_of, processes_using, query_number, run,
    run_on, search, start, wait_until_unused,
};

#[tokio::test]
async fn dropped_handle_stops_postgres() {
    let home = Home::new();
    drop(start(&home.path).await);
    wait_until_unused(&home.path).await;
}

#[tokio::test]
async fn killed_holder_stops_postgres_and_the_next_start_finds_the_data() {
    let home = Home::new();
    let mut holder = Holder::spawn(&home.path, "server");
    let socket = holder.ready();
    run(&options(&socket), "CREATE TABLE pets AS SELECT 7 AS n").await;
    // A client in the middle of a query.
    let mut client = options(&socket).connect().await.unwrap();
    let query = tokio::spawn(async move {
        sqlx::query("SELECT pg_sleep(100)")
            .execute(&mut client)
            .await
    });
    holder.kill();
    let started = Instant::now();
    let postgres = start(&home.path).await;
    eprintln!(
        "start right after kill -9 of the holder {:?}",
        started.elapsed()
    );
    assert_eq!(
        query_number(&postgres.connect_options(), "SELECT n FROM pets").await,
        7
    );
    assert!(query.await.unwrap().is_err());
    assert!(!socket.exists());
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn killed_holder_leaves_no_process_and_no_socket() {
    let home = Home::new();
    let mut holder = Holder::spawn(&home.path, "server");
    let socket = holder.ready();
    holder.kill();
    wait_until_unused(&home.path).await;
    let started = Instant::now();
    while socket.exists() {
        assert!(started.elapsed() < TIMEOUT, "{} is left", socket.display());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn holder_killed_at_any_moment_leaves_a_startable_folder() {
    let home = Home::new();
    for moment in [
        5, 50, 150, 300, 500, 700, 800, 850, 900, 950, 20, 30, 35, 40, 45, 60, 70,
    ] {
        let mut holder = Holder::spawn(&home.path, "server");
        tokio::time::sleep(Duration::from_millis(moment)).await;
        holder.kill();
    }
    let postgres = start(&home.path).await;
    assert_eq!(
        query_number(&postgres.connect_options(), "SELECT 7").await,
        7
    );
    let unfinished = names(&home.path)
        .into_iter()
        .filter(|name| name.contains("unfinished"))
        .count();
    assert_eq!(unfinished, 0);
    postgres.stop().await.unwrap();
    wait_until_unused(&home.path).await;
}

#[tokio::test]
async fn killed_postmaster_is_not_restarted_and_the_next_start_finds_the_data() {
    let home = Home::new();
    let mut postgres = start(&home.path).await;
    run(
        &postgres.connect_options(),
        "CREATE TABLE pets AS SELECT 7 AS n",
    )
    .await;
    for _ in 0..3 {
        // A busy backend does not notice that its postmaster is gone until its statement ends.
        let mut client = postgres.connect_options().connect().await.unwrap();
        run_on(&mut client, "SET statement_timeout = '2s'").await;
        let busy = "DO 'BEGIN LOOP PERFORM 1; END LOOP; END'";
        let query = tokio::spawn(async move { sqlx::query(busy).execute(&mut client).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        kill(Pid::from_raw(postmaster_of(&home.path)), Signal::SIGKILL).unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(postgres.connect_options().connect().await.is_err());
        // The holder keeps the directory locked.
        let error = EmbeddedPostgres::start(&home.path, &search(), Durability::Durable)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        let started = Instant::now();
        postgres.stop().await.unwrap();
        eprintln!("stop with a busy orphan {:?}", started.elapsed());
        assert!(query.await.unwrap().is_err());
        assert!(processes_using(&home.path).is_empty());
        postgres = start(&home.path).await;
        assert_eq!(
            query_number(&postgres.connect_options(), "SELECT n FROM pets").await,
            7
        );
    }
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn command_does_not_join_a_killed_postmaster() {
    let home = Home::new();
    let postgres = start(&home.path).await;
    kill(Pid::from_raw(postmaster_of(&home.path)), Signal::SIGKILL).unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    // postmaster.pid still names the socket directory.
    let joined = EmbeddedPostgres::join_or_start(&home.path, &search()).await;
    assert!(matches!(joined, Err(Error::Busy { .. })), "{joined:?}");
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn orphaned_backend_blocks_the_next_start_until_it_ends() {
    let home = Home::new();
    let mut holder = Holder::spawn(&home.path, "server");
    let socket = holder.ready();
    run(&options(&socket), "CREATE TABLE pets AS SELECT 7 AS n").await;
    let mut client = options(&socket).connect().await.unwrap();
    run_on(&mut client, "SET statement_timeout = '2s'").await;
    let busy = "DO 'BEGIN LOOP PERFORM 1; END LOOP; END'";
    let query = tokio::spawn(async move { sqlx::query(busy).execute(&mut client).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    kill(Pid::from_raw(postmaster_of(&home.path)), Signal::SIGKILL).unwrap();
    holder.kill();
    let postgres = start(&home.path).await;
    assert!(query.is_finished());
    assert_eq!(
        query_number(&postgres.connect_options(), "SELECT n FROM pets").await,
        7
    );
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn postmaster_pid_of_another_process_is_ignored() {
    let home = Home::new();
    start(&home.path).await.stop().await.unwrap();
    let mut other = Command::new("sleep");
    other.arg("100");
    if geteuid().is_root() {
        let owner = User::from_name("postgres").unwrap().unwrap();
        other.uid(owner.uid.as_raw());
    }
    let mut other = other.spawn().unwrap();
    let stale = format!(
        "{}\n/proc/self/fd/3\n1\n5432\n/tmp/x\n\n  1 1\nready   \n",
        other.id()
    );
    fs::write(home.path.join("postgres/postmaster.pid"), stale).unwrap();
    start(&home.path).await.stop().await.unwrap();
    assert!(other.try_wait().unwrap().is_none());
    other.kill().unwrap();
    other.wait().unwrap();
}
