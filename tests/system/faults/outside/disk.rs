//! Row 16: the disk under PostgreSQL is full.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command},
};

use test_support::*;

use crate::{checker, stage::*};

/// A small tmpfs, unmounted when dropped.
///
/// Mounting takes root or a user namespace. In a namespace the mount lasts as long as one of its processes, and other
/// processes of the same user reach it through `/proc/PID/root`. Root runs PostgreSQL as another user, which may not
/// use that path, so root mounts the file system for all processes.
struct SmallDisk {
    folder: tempfile::TempDir,
    /// Process that keeps the mount's namespace alive.
    holder: Child,
}

impl SmallDisk {
    fn mount(megabytes: u32) -> Self {
        const SCRIPT: &str = "mount -t tmpfs -o \"$1\" tmpfs \"$2\" && echo mounted && exec cat";
        let folder = tempfile::Builder::new()
            .prefix("pet-inventory-faults-")
            .tempdir()
            .expect("a folder");
        let mut command = if geteuid().is_root() {
            Command::new("sh")
        } else {
            let mut unshare = Command::new("unshare");
            unshare.args(["--map-root-user", "--mount", "sh"]);
            unshare
        };
        command
            .args(["-c", SCRIPT, "sh", &format!("size={megabytes}m")])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut holder = command.spawn().expect("unshare: run .ci/setup --all");
        let mut line = String::new();
        let output = holder.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert_eq!(
            line, "mounted\n",
            "row 16 mounts a tmpfs, which takes root or a user namespace"
        );
        Self { folder, holder }
    }

    fn path(&self) -> PathBuf {
        let folder = self.folder.path();
        if geteuid().is_root() {
            return folder.to_owned();
        }
        PathBuf::from(format!(
            "/proc/{}/root{}",
            self.holder.id(),
            folder.display()
        ))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if geteuid().is_root() {
            let _ = Command::new("umount")
                .arg("-l")
                .arg(self.folder.path())
                .status();
        }
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Adds large pets until `count` have been refused, for up to 30 s; returns the refusals.
async fn refused_writes(stage: &Stage, count: usize) -> Vec<TimedResponse> {
    let mut refused = Vec::new();
    let started = Instant::now();
    let mut number = 0_u64;
    while refused.len() < count && started.elapsed() < Duration::from_secs(30) {
        let photos: Vec<_> = (0..7)
            .map(|_| {
                number += 1;
                format!("/{}", incompressible(number))
            })
            .collect();
        let pet = json!({"name": "large", "photoUrls": photos});
        let response =
            TimedResponse::of(stage.target.request(Method::POST, "/pet").json(&pet)).await;
        if !response.is_success() {
            refused.push(response);
        }
    }
    refused
}

#[tokio::test(flavor = "multi_thread")]
async fn row_16_full_disk_refuses_writes_until_there_is_space() {
    let mut row = Row::begin(16, "disk full under PostgreSQL").await;
    let disk = SmallDisk::mount(256);
    let folder = disk.path().join("cluster");
    fs::create_dir(&folder).expect("a folder");
    chown_to_postgres(&folder);
    let cluster = Cluster::start_in(folder, &["max_wal_size=48MB", "min_wal_size=32MB"]).await;
    let url = cluster.url();
    let mut stage = Stage::on(cluster, &url, &[]).await;
    let load = Load::start(&stage.target, 4).await;
    load.success_after(Instant::now()).await;
    // A file takes up all but 4 MiB of the free space.
    let ballast = disk.path().join("ballast");
    let free = nix::sys::statvfs::statvfs(&disk.path()).expect("its size");
    let free = free.blocks_available() * free.fragment_size();
    let taken = usize::try_from(free.saturating_sub(4 << 20)).expect("a size");
    fs::write(&ballast, vec![1; taken]).expect("ballast");
    let refused = refused_writes(&stage, 20).await;
    row.at_least(
        &format!("refused writes ({})", by_status(&refused)),
        refused.len(),
        20,
    );
    let live = TimedResponse::of(stage.target.bare(Method::GET, "/livez")).await;
    row.check("alive", live.status == Some(200));
    fs::remove_file(&ballast).expect("room");
    let room = Instant::now();
    // PostgreSQL may have stopped after a failed write. Then the operator starts it again.
    if stage.cluster.has_ended() {
        row.note("PostgreSQL itself stopped and was started again");
        stage.cluster.resume().await;
    }
    stage.cluster.accepts().await;
    let accepts = room.elapsed();
    until(201, || {
        stage
            .target
            .request(Method::POST, "/pet")
            .json(&json!({"name": "small"}))
    })
    .await;
    row.longest_within(
        "well after there is room and it accepts",
        &mut [room.elapsed().saturating_sub(accepts)],
        Duration::from_secs(1),
    );
    let (log, responses) = load.stop().await;
    row.note(by_status(&responses));
    let fine = |response: &&TimedResponse| {
        response.is_success()
            || (matches!(response.status, Some(503 | 507)) && response.retry_after)
    };
    let unexpected = responses
        .iter()
        .chain(&refused)
        .filter(|response| !fine(response));
    row.none("responses other than 2xx, 503 and 507", unexpected);
    row.none(
        "lost",
        checker::breaches(
            &log,
            &found(&mut stage.cluster.connect().await)
                .await
                .into_iter()
                .filter(|record| !["large", "small"].contains(&record.marker.as_str()))
                .collect::<Vec<_>>(),
        ),
    );
    row.end();
}

/// Returns 2,000 characters that PostgreSQL cannot compress.
fn incompressible(seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        format!("{state:016x}")
    });
    words.take(125).collect()
}
