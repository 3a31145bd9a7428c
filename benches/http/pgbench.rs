//! Runs pgbench: the statement of a request, prepared, without HTTP.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::load::{Numbers, Run};

/// Returns the duration of a run, which includes opening the connections. The rate does not.
pub fn duration(seconds: u32, clients: u32) -> u32 {
    seconds + clients / 64
}

/// A pgbench script. In its statements, `:n` is the number of the transaction.
#[derive(Debug)]
pub struct Script {
    file: PathBuf,
    socket: PathBuf,
    database: String,
}

impl Script {
    pub fn new(
        folder: &Path,
        (socket, database): (PathBuf, &str),
        name: &str,
        numbers: Numbers,
        statements: &str,
    ) -> Self {
        let number = match numbers {
            Numbers::Random(last) => format!("\\set n random(1, {last})"),
            Numbers::Consecutive => {
                "\\set n :first + :client_id + :next * :clients\n\\set next :next + 1".to_owned()
            }
        };
        let file = folder.join(format!("{}.sql", name.replace(['/', ' '], "_")));
        fs::write(&file, format!("{number}\n{statements}\n")).expect("written");
        Self {
            file,
            socket,
            database: database.to_owned(),
        }
    }

    /// Runs the script. `first` is the first of consecutive numbers.
    pub async fn run(&self, clients: u32, seconds: u32, first: u32) -> Run {
        let duration = duration(seconds, clients);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let output = tokio::process::Command::new("pgbench")
            .args([
                "-n", "-M", "prepared", "-U", "postgres", "-p", "5432", "-D", "next=0",
            ])
            .args(["-D", &format!("first={first}")])
            .args(["-D", &format!("clients={clients}")])
            .args(["-j", &threads.min(clients as usize).to_string()])
            .args(["-c", &clients.to_string(), "-T", &duration.to_string()])
            .arg("-h")
            .arg(&self.socket)
            .arg("-f")
            .arg(&self.file)
            .arg(&self.database)
            .output()
            .await
            .expect("pgbench, which is installed with PostgreSQL's server");
        let text = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        let script = self.file.display();
        assert!(output.status.success(), "{script}: pgbench: {text}{error}");
        let of = |name: &str, unit: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.trim().split(unit).next()?.trim().parse().ok());
            number.unwrap_or_else(|| panic!("{script}: pgbench: {text}{error}"))
        };
        let rate: f64 = of("tps =", " (");
        Run {
            requests: rate * f64::from(duration),
            rate,
            p50: of("latency average =", " ms"),
            ..Run::default()
        }
    }
}
