//! Three machines with etcd, Patroni and PostgreSQL, and HAProxy before them, with the files of `config/cluster`.
//!
//! Each machine is a network namespace with a process namespace: it can be cut off, and if its first process ends, all of
//! them do.

use std::{
    io::Write as _,
    os::unix::fs::MetadataExt as _,
    process::{Child, Command},
};

use nix::sys::signal::kill;
use test_support::postgres::spawn_cleaner;
use test_support::*;
use tokio::time::{sleep, timeout};

use crate::stage::*;

/// Network of the machines; this host has the address .254 in it.
const NETWORK: &str = "10.213.77";
const BRIDGE: &str = "pets0";
/// First process of a machine: it ends with its input, and bash reaps processes that have lost their parents.
const INIT: &str = "while read -r _; do :; done";
/// Names of the processes of a machine.
pub const POSTGRES: &str = "postgres";
pub const PATRONI: &str = "python3";
pub const ETCD: &str = "etcd";
pub const ALL: [&str; 3] = [PATRONI, POSTGRES, ETCD];

/// The machines and HAProxy, ended when dropped.
pub struct Machines {
    all: Vec<Machine>,
    haproxy: Child,
    /// Address of HAProxy, which leads to the primary.
    primary: SocketAddr,
    client: Client,
    /// Deletes the network and the folder once its input ends.
    cleaner: Child,
}

/// A machine, ended when dropped.
pub struct Machine {
    number: usize,
    folder: PathBuf,
    /// Runs the first process of the machine, which ends when its input does.
    holder: Child,
    first: i32,
    variables: Vec<(String, String)>,
}

/// A member of the cluster, as Patroni describes it.
#[derive(Debug)]
pub struct Member {
    machine: usize,
    role: String,
    state: String,
    /// Incremented by each promotion; `None` if its PostgreSQL does not respond.
    timeline: Option<u64>,
}

impl Member {
    /// Returns true if this is a primary that was promoted after `earlier` was.
    fn follows(&self, earlier: &Self) -> bool {
        self.machine != earlier.machine
            || (self.timeline.zip(earlier.timeline)).is_some_and(|(own, before)| own > before)
    }
}

impl Machines {
    /// Starts the machines, and waits until two standbys follow the primary.
    pub async fn start() -> Self {
        assert!(
            geteuid().is_root(),
            "row 32 makes network namespaces, which takes root: skip it with --skip row_32"
        );
        let folder = tempfile::Builder::new()
            .prefix("pet-inventory-faults-")
            .tempdir();
        let folder = folder.expect("a folder").keep();
        let cleaner = spawn_cleaner(
            "trap '' INT TERM; read -r _; sleep 0.5; ip link delete pets0; umount -l \"$1\"; rm -rf \"$1\"",
            &folder,
        );
        // Processes die in this test, the machine does not: it need not wait for a disk.
        run(&format!("mount -t tmpfs tmpfs {}", folder.display()));
        prepare(&folder);
        // Leftovers of a run before, whose namespaces may still be about to end.
        run(&format!(
            "for link in {BRIDGE} {BRIDGE}-1 {BRIDGE}-2 {BRIDGE}-3; do ip link delete $link 2>/dev/null || :; done"
        ));
        run(&format!(
            "ip link add {BRIDGE} type bridge && ip address add {NETWORK}.254/24 dev {BRIDGE} && ip link set {BRIDGE} up"
        ));
        let machines: Vec<_> = (1..=3)
            .map(|number| Machine::start(number, &folder))
            .collect();
        let primary = free_address();
        let mut haproxy = Command::new("/usr/sbin/haproxy");
        haproxy
            .args(["-db", "-f"])
            .arg(folder.join("haproxy.cfg"))
            .env("LISTEN", primary.to_string());
        for machine in &machines {
            let name = format!("NODE_{}", machine.number);
            haproxy.env(name, machine.address());
        }
        let machines = Self {
            all: machines,
            haproxy: logged(&mut haproxy, &folder.join("haproxy.log")),
            primary,
            client: client(),
            cleaner,
        };
        machines.are_complete().await;
        machines.accepts().await;
        machines
    }

    pub fn machine(&self, number: usize) -> &Machine {
        &self.all[number - 1]
    }

    pub fn all(&self) -> impl Iterator<Item = &Machine> {
        self.all.iter()
    }

    /// Returns a folder in memory, which is deleted after the machines have ended.
    pub fn folder(&self) -> &Path {
        &self.all[0].folder
    }

    /// Returns the URL of the database of the service.
    pub fn url(&self) -> String {
        let (password, at) = (self.all[0].variable("PETS_PASSWORD"), self.primary);
        format!("postgres://pets:{password}@{at}/pets?sslmode=disable")
    }

    /// Connects to the primary through HAProxy.
    pub async fn connect(&self) -> PgConnection {
        let connected = PgConnection::connect(&self.url()).await;
        connected.expect("a primary")
    }

    async fn accepts(&self) {
        let started = Instant::now();
        while PgConnection::connect(&self.url()).await.is_err() {
            assert!(started.elapsed() < PATIENCE, "no primary accepts");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asks the machines for the members of the cluster.
    pub async fn members(&self) -> Vec<Member> {
        for machine in &self.all {
            let url = format!("http://{}:8008/cluster", machine.address());
            let request = self.client.get(url).timeout(Duration::from_secs(1));
            let Ok(response) = request.send().await else {
                continue;
            };
            let Ok(cluster) = response.json::<Value>().await else {
                continue;
            };
            let text = |member: &Value, name: &str| member[name].as_str().map(str::to_owned);
            let members = cluster["members"].as_array().into_iter().flatten();
            let members = members.filter_map(|member| {
                let name = text(member, "name")?;
                Some(Member {
                    machine: name.strip_prefix("node-")?.parse().ok()?,
                    role: text(member, "role")?,
                    state: text(member, "state")?,
                    timeline: member["timeline"].as_u64(),
                })
            });
            return members.collect();
        }
        Vec::new()
    }

    /// Returns the primary.
    async fn primary(&self) -> Option<Member> {
        let mut members = self.members().await.into_iter();
        members.find(|member| member.role == "leader")
    }

    /// Waits until `change` has made another primary, or the same one anew, which Patroni may do if the standbys do not respond
    /// at that moment.
    pub async fn after_promotion(&self, change: impl Future<Output = ()>) {
        let before = self.primary().await.expect("a primary");
        change.await;
        eventually(async || {
            sleep(Duration::from_millis(100)).await;
            let primary = self.primary().await;
            primary.is_some_and(|it| it.follows(&before))
        })
        .await;
    }

    /// Returns the number of the machine with the primary, and of one with a standby.
    pub async fn roles(&self) -> (usize, usize) {
        let started = Instant::now();
        loop {
            let members = self.members().await;
            let of_role = |role: &str| members.iter().find(|member| member.role == role);
            if let Some((primary, standby)) = of_role("leader").zip(of_role("quorum_standby")) {
                return (primary.machine, standby.machine);
            }
            assert!(started.elapsed() < PATIENCE, "no roles: {members:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns the number of the machine with the leader of etcd.
    pub async fn etcd_leader(&self) -> usize {
        for machine in &self.all {
            let url = format!("http://{}:2379/metrics", machine.address());
            let metrics = self.client.get(url).send().await.expect("etcd");
            let metrics = metrics.text().await.expect("text");
            if metrics
                .lines()
                .any(|line| line == "etcd_server_is_leader 1")
            {
                return machine.number;
            }
        }
        panic!("etcd has no leader");
    }

    /// Waits until two standbys follow the primary and could replace it: a fault before would meet another one.
    pub async fn are_complete(&self) {
        let started = Instant::now();
        loop {
            let members = self.members().await;
            let standbys = members
                .iter()
                .filter(|member| member.role == "quorum_standby" && member.state == "streaming");
            if standbys.count() == 2 {
                return;
            }
            assert!(
                started.elapsed() < 2 * PATIENCE,
                "the cluster is not complete: {members:?}"
            );
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Prints what Patroni and HAProxy have logged last: the folder is gone when a failure is looked into.
    fn print_logs(&self) {
        let machines = self.all.iter();
        let patroni = machines.map(|machine| format!("patroni-{}.log", machine.number));
        for name in patroni.chain(["haproxy.log".to_owned()]) {
            let log = fs::read_to_string(self.folder().join(&name)).unwrap_or_default();
            // What Patroni logs in each of its loops says nothing.
            let lines = log.lines().filter(|line| !line.contains("no action."));
            let lines: Vec<_> = lines.filter(|line| !line.contains("Lock owner")).collect();
            for line in &lines[lines.len().saturating_sub(25)..] {
                println!("{name}: {line}");
            }
        }
    }

    /// Makes a standby the primary. Patroni refuses, with exit code 0, while it does not reach the standby.
    pub async fn switch_over(&self) {
        for _ in 0..3 {
            let (from, to) = self.roles().await;
            let [from, to] = [from, to].map(|number| format!("node-{number}"));
            let arguments = ["--leader", &from, "--candidate", &to];
            let said = self.patronictl("switchover", &arguments).await;
            if said.contains("witched over to") {
                return;
            }
            println!("{said}");
            self.are_complete().await;
        }
        panic!("Patroni refuses to switch over");
    }

    /// Runs patronictl to its end, on a machine, with a command on the cluster. Returns its output.
    pub async fn patronictl(&self, command: &str, arguments: &[&str]) -> String {
        let machine = &self.all[0];
        let ctl = [
            "/usr/bin/python3",
            "-c",
            "from patroni.ctl import ctl; ctl()",
        ];
        let mut ctl = machine.command(&ctl);
        ctl.arg("-c")
            .arg(machine.folder.join("patroni.yaml"))
            .args([command, "--force", "pets"])
            .args(arguments);
        let output = timeout(PATIENCE, tokio::process::Command::from(ctl).output()).await;
        let output = output.expect("the end of patronictl").expect("patronictl");
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
        }
        let _ = self.haproxy.kill();
        let _ = self.haproxy.wait();
        self.all.clear();
        // The next run has a network with the same name.
        drop(self.cleaner.stdin.take());
        let _ = self.cleaner.wait();
    }
}

impl Machine {
    fn start(number: usize, folder: &Path) -> Self {
        let mut unshare = Command::new("unshare");
        unshare
            .args(["--net", "--pid", "--mount-proc", "--fork"])
            .args(["--kill-child=SIGKILL", "bash", "-c", INIT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let holder = unshare.spawn().expect("unshare");
        let mut machine = Self {
            number,
            folder: folder.to_owned(),
            first: first_process(&holder),
            holder,
            variables: Vec::new(),
        };
        run(&format!(
            "ip link add {BRIDGE}-{number} type veth peer name eth0 netns {first} &&
             ip link set {BRIDGE}-{number} master {BRIDGE} up &&
             nsenter --target {first} --net sh -c 'ip link set lo up && ip link set eth0 up &&
                 ip address add {address}/24 dev eth0'",
            first = machine.first,
            address = machine.address(),
        ));
        machine.variables = machine.environment();
        machine.start_all();
        machine
    }

    pub fn address(&self) -> String {
        format!("{NETWORK}.{}", self.number)
    }

    fn variable(&self, name: &str) -> &str {
        let found = self.variables.iter().find(|(it, _)| it == name);
        found.map_or_else(|| panic!("no {name} in patroni.env"), |(_, value)| value)
    }

    /// Returns the variables of `etcd.env` and `patroni.env` for this machine.
    fn environment(&self) -> Vec<(String, String)> {
        let files = concat!(
            include_str!("../../../../config/cluster/etcd.env"),
            include_str!("../../../../config/cluster/patroni.env")
        );
        let own = self.folder.join(self.number.to_string());
        let lines = files.lines().filter(|line| !line.starts_with('#'));
        let lines = lines.filter_map(|line| line.split_once('='));
        let variables = lines.map(|(name, value)| {
            let value = match name {
                "ETCD_NAME" | "PATRONI_NAME" => format!("node-{}", self.number),
                "ETCD_DATA_DIR" => format!("{}/etcd", own.display()),
                "PATRONI_POSTGRESQL_DATA_DIR" => format!("{}/data", own.display()),
                "PATRONI_POSTGRESQL_PGPASS" => format!("{}/pgpass", own.display()),
                "PATRONI_POSTGRESQL_BIN_DIR" => {
                    let postgres = PathBuf::from(program("postgres").get_program());
                    postgres.parent().expect("a folder").display().to_string()
                }
                "ETCD_INITIAL_CLUSTER" | "PATRONI_ETCD3_HOSTS" => {
                    value.replace("10.0.5.", &format!("{NETWORK}."))
                }
                _ => value.replace("10.0.5.1:", &format!("{}:", self.address())),
            };
            (name.to_owned(), value)
        });
        variables.collect()
    }

    /// Returns a command that runs a program with arguments on this machine, as the user of PostgreSQL.
    fn command(&self, program: &[&str]) -> Command {
        let user = owner().expect("a user for PostgreSQL");
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.first.to_string()])
            .args(["--net", "--pid", "--mount"])
            .args(["--setuid", &user.uid.to_string()])
            .args(["--setgid", &user.gid.to_string()])
            .args(program)
            .env_clear()
            .envs(self.variables.iter().cloned())
            .env("PATH", "/usr/sbin:/usr/bin:/bin")
            .env("LANG", "C.UTF-8")
            .env("PYTHONPATH", self.folder.join("patroni"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir("/");
        command
    }

    /// Starts etcd and Patroni, which starts PostgreSQL.
    pub fn start_all(&self) {
        self.start_etcd();
        let settings = self.folder.join("patroni.yaml").display().to_string();
        self.run_detached("patroni", &["/usr/bin/python3", "-m", "patroni", &settings]);
    }

    pub fn start_etcd(&self) {
        self.run_detached("etcd", &["etcd"]);
    }

    /// Runs a program as a child of the first process, so that no process outside waits for it.
    fn run_detached(&self, name: &str, program: &[&str]) {
        let program = [&["setsid", "--fork"], program].concat();
        let log = self.folder.join(format!("{name}-{}.log", self.number));
        let started = logged(&mut self.command(&program), &log).wait();
        assert!(started.is_ok_and(|status| status.success()), "{name}");
    }

    /// Sends a signal to the processes with these names, of which there is at least one each.
    pub fn signal(&self, names: &[&str], signal: Signal) {
        let namespace = |pid: i32| fs::metadata(format!("/proc/{pid}/ns/net")).map(|it| it.ino());
        let own = namespace(self.first).expect("the namespace");
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let ours = numbers.filter(|pid| namespace(*pid).is_ok_and(|it| it == own));
        let mut met = HashSet::new();
        for pid in ours {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if let Some(name) = names.iter().find(|it| **it == name.trim()) {
                met.insert(name);
                let _ = kill(Pid::from_raw(pid), signal);
            }
        }
        assert_eq!(met.len(), names.len(), "of {names:?} only {met:?} run");
    }

    /// Undoes the effect of a signal to the processes with these names. Patroni starts PostgreSQL again itself.
    pub fn undo(&self, names: &[&str], signal: Signal) {
        match signal {
            Signal::SIGSTOP => self.signal(names, Signal::SIGCONT),
            _ if names == ALL => self.start_all(),
            _ => {}
        }
    }

    /// Cuts the machine off from all others, or connects it again.
    pub fn connect(&self, connected: bool) {
        let state = if connected { "up" } else { "down" };
        run(&format!("ip link set {BRIDGE}-{} {state}", self.number));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.first), Signal::SIGKILL);
        let _ = self.holder.wait();
    }
}

/// Waits for the first process of the namespaces.
fn first_process(holder: &Child) -> i32 {
    let children = format!("/proc/{0}/task/{0}/children", holder.id());
    let started = Instant::now();
    loop {
        let child = fs::read_to_string(&children).unwrap_or_default();
        let child = child.trim().parse().unwrap_or_default();
        let name = fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        if name == "bash\n" {
            return child;
        }
        assert!(started.elapsed() < PATIENCE, "no namespaces");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Puts the files of `config/cluster` and Patroni where the user of PostgreSQL can read them.
fn prepare(folder: &Path) {
    let created = folder.join("create-database");
    let patroni = include_str!("../../../../config/cluster/patroni.yaml");
    let theirs = "/etc/pet-inventory/create-database";
    assert!(patroni.contains(theirs), "no {theirs} in patroni.yaml");
    let patroni = patroni.replace(theirs, &created.display().to_string());
    fs::write(folder.join("patroni.yaml"), patroni).expect("a file");
    let haproxy = include_str!("../../../../config/cluster/haproxy.cfg");
    fs::write(folder.join("haproxy.cfg"), haproxy).expect("a file");
    let packages = repository().join("target/outside-tools/patroni");
    assert!(
        packages.join("patroni").is_dir(),
        "Patroni is missing: run .ci/setup --all"
    );
    run(&format!(
        "cd {folder} && chmod 755 . && cp -r {packages} patroni && mkdir 1 2 3 && chown {owner} 1 2 3 &&
         install --mode 755 {repository}/config/cluster/create-database .",
        folder = folder.display(),
        packages = packages.display(),
        owner = owner().expect("a user for PostgreSQL").uid,
        repository = repository().display(),
    ));
}

/// Runs a shell command to its end.
fn run(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status();
    assert!(status.expect("a shell").success(), "{command}");
}

/// Starts a command, and appends its output to a file.
fn logged(command: &mut Command, log: &Path) -> Child {
    let file = fs::File::options().create(true).append(true).open(log);
    let mut file = file.expect("a log");
    writeln!(file, "{command:?}").expect("written");
    let output = file.try_clone().expect("a log");
    let started = command
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(file)
        .spawn();
    started.expect("a program: run .ci/setup --all")
}
