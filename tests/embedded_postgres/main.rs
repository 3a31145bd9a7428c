//! Embedded PostgreSQL, run for real: nothing but the data is left when it has stopped.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a failed step fails its test, the holder that the others kill prints, and no runtime waits"
)]

mod directories;
mod kills;
mod support;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pet_inventory::embedded_postgres::{Durability, EmbeddedPostgres, Error};

use support::{
    Holder, Home, options, processes_using, query_number, run, search, socket_of, start,
    wait_until_unused,
};

#[tokio::test]
async fn data_survives_a_restart() {
    let home = Home::new();
    let started = Instant::now();
    let postgres = start(&home.path).await;
    eprintln!("cold start {:?}", started.elapsed());
    run(
        &postgres.connect_options(),
        "CREATE TABLE pets AS SELECT 7 AS n",
    )
    .await;
    let socket = socket_of(&home.path);
    postgres.stop().await.unwrap();
    assert!(!socket.exists());
    assert!(processes_using(&home.path).is_empty());

    let started = Instant::now();
    let postgres = start(&home.path).await;
    eprintln!("warm start {:?}", started.elapsed());
    assert_eq!(
        query_number(&postgres.connect_options(), "SELECT n FROM pets").await,
        7
    );
    let setting = "SELECT (current_setting('fsync') = 'on' AND current_setting('listen_addresses') = '' \
                   AND current_setting('TimeZone') = 'UTC')::int";
    assert_eq!(query_number(&postgres.connect_options(), setting).await, 1);
    let started = Instant::now();
    postgres.stop().await.unwrap();
    eprintln!("stop {:?}", started.elapsed());
}

#[tokio::test]
async fn second_server_is_refused_and_a_command_joins() {
    let home = Home::new();
    let mut holder = Holder::spawn(&home.path, "server");
    // The holder has locked the folder and is still starting.
    while !fs::read_to_string(home.path.join("lock")).is_ok_and(|line| line.starts_with("server "))
    {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let joined = EmbeddedPostgres::join_or_start(&home.path, &search())
        .await
        .unwrap();
    assert!(joined.is_joined());
    assert_eq!(query_number(&joined.connect_options(), "SELECT 7").await, 7);
    joined.stop().await.unwrap();
    let error = EmbeddedPostgres::start(&home.path, &search(), Durability::Durable)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::InUse { pid, .. } if pid == holder.child.id()));
    let expected = format!(
        "another pet-inventory (process {}) already serves from {}: stop it, or set another directory with \
         PET_INVENTORY__LOCAL_POSTGRES__DIRECTORY",
        holder.child.id(),
        home.path.display()
    );
    assert_eq!(error.to_string(), expected);
    let socket = holder.ready();
    assert_eq!(query_number(&options(&socket), "SELECT 7").await, 7);
    holder.end();
    wait_until_unused(&home.path).await;
}

#[tokio::test]
async fn commands_run_one_at_a_time_and_a_server_waits_for_them() {
    let home = Home::new();
    let first = EmbeddedPostgres::join_or_start(&home.path, &search())
        .await
        .unwrap();
    assert!(!first.is_joined());
    assert_eq!(query_number(&first.connect_options(), "SELECT 7").await, 7);
    let path = home.path.clone();
    let second =
        tokio::spawn(async move { EmbeddedPostgres::join_or_start(&path, &search()).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!second.is_finished());
    first.stop().await.unwrap();
    let second = second.await.unwrap().unwrap();
    let path = home.path.clone();
    let server = tokio::spawn(async move { start(&path).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!server.is_finished());
    second.stop().await.unwrap();
    server.await.unwrap().stop().await.unwrap();
}

#[tokio::test]
async fn server_start_gives_up_waiting_for_a_command() {
    let home = Home::new();
    let command = EmbeddedPostgres::join_or_start(&home.path, &search())
        .await
        .unwrap();
    let error = EmbeddedPostgres::start(&home.path, &search(), Durability::Durable)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Busy { holder, seconds: 10, .. } if holder.starts_with("command")),
        "{error}"
    );
    command.stop().await.unwrap();
}

#[tokio::test]
async fn four_servers_start_concurrently_in_separate_folders() {
    let homes: Vec<Home> = (0..4).map(|_| Home::new()).collect();
    let started = Instant::now();
    let starts: Vec<_> = homes
        .iter()
        .map(|home| home.path.clone())
        .map(|path| {
            tokio::spawn(async move {
                EmbeddedPostgres::start(&path, &search(), Durability::Throwaway).await
            })
        })
        .collect();
    for start in starts {
        let postgres = start.await.unwrap().unwrap();
        let off = "SELECT (current_setting('fsync') = 'off')::int";
        assert_eq!(query_number(&postgres.connect_options(), off).await, 1);
        postgres.stop().await.unwrap();
    }
    eprintln!(
        "four cold starts at once, and stops {:?}",
        started.elapsed()
    );
}

/// Not a test: `Holder` runs this in a process that tests kill.
#[tokio::test]
#[ignore = "run by the other tests"]
async fn holder() {
    let home = PathBuf::from(std::env::var_os("HOLD").unwrap());
    let postgres = match std::env::var("ROLE").unwrap().as_str() {
        "server" => start(&home).await,
        _ => EmbeddedPostgres::join_or_start(&home, &search())
            .await
            .unwrap(),
    };
    println!("\nready {}", socket_of(&home).display());
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()))
        .await
        .unwrap()
        .unwrap();
    postgres.stop().await.unwrap();
}
