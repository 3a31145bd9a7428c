//! Tests that need programs other than PostgreSQL's, installed by `.ci/setup --all`.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test panics with the reason"
)]

mod alerts;
mod all_operations;
mod browser;
mod caddy;
mod compose;
mod console;
mod console_administration;
mod console_edits;
mod console_keyboard;
mod console_look;
mod console_new_pets;
mod console_orders;
mod console_pets;
mod console_place;
mod deployment;
mod event_sources;
mod haproxy;
mod images;
mod nginx;
mod other_origins;
mod pages;
mod prometheus;
mod proxies;
mod systemd;
mod webhooks;

use test_support::*;

/// Creates wrappers of PostgreSQL's programs in `folder` that set the server's clock to 20 s before midnight (UTC).
///
/// Preloads the library, since the command `faketime` stays as a process between the service and the server.
fn before_midnight(folder: &Path) -> PathBuf {
    let library = fs::read_dir("/usr/lib")
        .expect("/usr/lib")
        .flatten()
        .map(|entry| entry.path().join("faketime/libfaketime.so.1"))
        .find(|library| library.exists())
        .expect("faketime is missing: run .ci/setup --all");
    let programs = folder.join("bin");
    fs::create_dir(&programs).expect("a folder");
    // Counted from the start of the server: what comes before it takes longer than that on a busy machine.
    let faked = format!(
        "FAKETIME=\"$(printf %+d $((86380 - $(date +%s) % 86400)))s\" LD_PRELOAD='{}' exec",
        library.display()
    );
    for (name, run) in [("postgres", faked.as_str()), ("initdb", "exec")] {
        let real = real_program(name);
        let script = format!("#!/bin/sh\n{run} '{}' \"$@\"\n", real.display());
        let path = programs.join(name);
        fs::write(&path, script).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("its mode");
    programs
}

fn real_program(name: &str) -> PathBuf {
    let mut folders: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .expect("Debian's PostgreSQL: run .ci/setup")
        .flatten()
        .map(|version| version.path().join("bin"))
        .collect();
    folders.sort();
    let folder = folders.pop().expect("a version of PostgreSQL");
    folder.join(name)
}

/// The quota day is that of the database's clock.
#[tokio::test(flavor = "multi_thread")]
async fn daily_limit_resets_at_midnight_of_the_database_clock() {
    let home = Home::new();
    let mut command = home.command(["serve"]);
    command
        .env("POSTGRES_BIN_DIR", before_midnight(home.path()))
        .env("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "unlimited")
        .env("PET_INVENTORY__PLANS__FREE__PER_DAY", "5");
    let service = Service::start(&home, command).await;
    let send = async || service.request(Method::GET, "/pet/1", "free-key").await;
    for _ in 0..5 {
        send().await.is(404);
    }
    let refused = send().await.is(429);
    let wait: u64 = refused
        .header("retry-after")
        .parse()
        .expect("whole seconds");
    assert!((1..=20).contains(&wait), "{refused}");
    tokio::time::sleep(Duration::from_secs(wait)).await;
    for _ in 0..5 {
        send().await.is(404);
    }
    send().await.is(429);
    service.stop().await;
}
