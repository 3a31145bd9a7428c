//! `config/kubernetes.yaml` and the systemd units: checked by their tools, and against the service.

use test_support::*;
use tokio::process::Command;

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/kubernetes.yaml");
const UNIT: &str = include_str!("../../../config/pet-inventory.service");
const GUIDE: &str = include_str!("../../../config/README.md");
const SOCKET: &str = include_str!("../../../config/pet-inventory.socket");
/// Maximum exposure of the unit, in tenths: 10 points are unprotected.
const MAX_EXPOSURE: u32 = 15;

fn tool(name: &str) -> Command {
    let tools = repository().join("target/outside-tools/bin");
    Command::new(tools.join(name))
}

/// Validates a manifest against the schemas of a version of Kubernetes.
async fn validate(manifest: &Path, version: &str) -> Output {
    let mut command = tool("kubernetes-validate");
    command.args(["--strict", "-k", version]).arg(manifest);
    Output::of(command).await
}

/// Returns the resources of the manifest by `KIND/NAME`.
async fn resources() -> BTreeMap<String, Value> {
    const TO_JSON: &str = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(open(sys.argv[1]))), sys.stdout)";
    // kubernetes-validate depends on the yaml module.
    let mut python = tool("python3");
    python.args(["-c", TO_JSON, MANIFEST]);
    let json = Output::of(python).await.is(0).stdout;
    let resources: Vec<Value> = serde_json::from_str(&json).expect("JSON");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let by_name = |it: Value| {
        let name = text(&it["metadata"]["name"]);
        (format!("{}/{name}", text(&it["kind"])), it)
    };
    let number = resources.len();
    let resources: BTreeMap<String, Value> = resources.into_iter().map(by_name).collect();
    assert_eq!(resources.len(), number);
    resources
}

#[tokio::test]
async fn kubernetes_manifest_is_valid() {
    for version in ["1.30.0", "1.37.0"] {
        let output = validate(Path::new(MANIFEST), version).await.is(0);
        assert_eq!(output.stdout.matches("passed for").count(), 8, "{output:?}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let wrong = folder.path().join("wrong.yaml");
    let manifest = fs::read_to_string(MANIFEST).expect("a file");
    fs::write(
        &wrong,
        manifest.replace("readinessProbe:", "readinessProb:"),
    )
    .expect("a file");
    validate(&wrong, "1.37.0").await.is(1);
}

/// The profile `restricted` of Kubernetes' pod security standards.
#[tokio::test]
async fn kubernetes_pods_are_restricted_and_replaced_without_interruption() {
    let resources = resources().await;
    let deployment = &resources["Deployment/pet-inventory"]["spec"];
    let pod = &deployment["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    let of_pod = &pod["securityContext"];
    assert_eq!(of_pod["runAsNonRoot"], true);
    assert_eq!(of_pod["runAsUser"], 10001);
    assert_eq!(of_pod["seccompProfile"]["type"], "RuntimeDefault");
    let container = &pod["containers"][0];
    let restricted = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
    });
    assert_eq!(container["securityContext"], restricted);
    for volume in pod["volumes"].as_array().expect("volumes") {
        assert!(volume.get("emptyDir").is_some(), "{volume}");
    }
    assert_eq!(deployment["strategy"]["rollingUpdate"]["maxUnavailable"], 0);
    let stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        .as_u64()
        .expect("seconds");
    // The default of server.shutdown_grace is 8 s.
    assert!(pod["terminationGracePeriodSeconds"].as_u64() > Some(stop + 8));
    let labels = &deployment["template"]["metadata"]["labels"];
    for selected in [
        &deployment["selector"]["matchLabels"],
        &resources["Service/pet-inventory"]["spec"]["selector"],
        &resources["Service/pet-inventory-operations"]["spec"]["selector"],
        &resources["NetworkPolicy/pet-inventory"]["spec"]["podSelector"]["matchLabels"],
        &resources["PodDisruptionBudget/pet-inventory"]["spec"]["selector"]["matchLabels"],
    ] {
        assert_eq!(selected, labels);
    }
    let scaler = &resources["HorizontalPodAutoscaler/pet-inventory"]["spec"];
    assert_eq!(
        scaler["scaleTargetRef"]["name"],
        resources["Deployment/pet-inventory"]["metadata"]["name"]
    );
    assert!(deployment.get("replicas").is_none() && scaler["minReplicas"].as_u64() >= Some(2));
    assert_eq!(
        resources["PodDisruptionBudget/pet-inventory"]["spec"]["maxUnavailable"],
        1
    );
}

#[tokio::test]
async fn kubernetes_services_and_policy_lead_to_the_ports_of_the_container() {
    let resources = resources().await;
    let container =
        &resources["Deployment/pet-inventory"]["spec"]["template"]["spec"]["containers"][0];
    let ports = json!([
        {"name": "http", "containerPort": 8080}, {"name": "operations", "containerPort": 9090},
    ]);
    assert_eq!(container["ports"], ports);
    for (service, port) in [
        ("pet-inventory", "http"),
        ("pet-inventory-operations", "operations"),
    ] {
        let ports = &resources[&format!("Service/{service}")]["spec"]["ports"];
        let target = [&ports[0]["name"], &ports[0]["targetPort"], &ports[1]];
        assert_eq!(target, [&json!(port), &json!(port), &Value::Null]);
    }
    let policy = &resources["NetworkPolicy/pet-inventory"]["spec"];
    assert_eq!(policy["policyTypes"], json!(["Ingress"]));
    let allowed = |namespace: &str, port: &str| {
        let labels = json!({"kubernetes.io/metadata.name": namespace});
        json!({"from": [{"namespaceSelector": {"matchLabels": labels}}], "ports": [{"port": port}]})
    };
    let ingress = json!([
        allowed("ingress-nginx", "http"),
        allowed("monitoring", "operations")
    ]);
    assert_eq!(policy["ingress"], ingress);
}

/// The sum stays below PostgreSQL's default of 100 connections, 3 of which are for superusers.
#[tokio::test]
async fn connections_of_all_kubernetes_replicas_fit_the_default_of_postgresql() {
    let resources = resources().await;
    let setting = |name: &str| -> u64 {
        let value = &resources["ConfigMap/pet-inventory"]["data"][name];
        value.as_str().expect("text").parse().expect("a number")
    };
    let of_replica = setting("PET_INVENTORY__DATABASE__MAX_CONNECTIONS")
        + 13 * setting("PET_INVENTORY__SERVER__WORKERS")
        + 1;
    let scaler = &resources["HorizontalPodAutoscaler/pet-inventory"]["spec"];
    let update = &resources["Deployment/pet-inventory"]["spec"]["strategy"]["rollingUpdate"];
    let replicas = scaler["maxReplicas"]
        .as_u64()
        .zip(update["maxSurge"].as_u64());
    let (replicas, more) = replicas.expect("numbers");
    assert!((replicas + more) * of_replica <= 97, "{of_replica}");
}

#[tokio::test(flavor = "multi_thread")]
async fn service_has_the_probes_and_accepts_the_settings_of_the_kubernetes_manifest() {
    let resources = resources().await;
    let container =
        &resources["Deployment/pet-inventory"]["spec"]["template"]["spec"]["containers"][0];
    let home = Home::new();
    let mut command = home.command(["config", "show"]);
    let settings = resources["ConfigMap/pet-inventory"]["data"]
        .as_object()
        .expect("settings");
    for (name, value) in settings {
        command.env(name, value.as_str().expect("text"));
    }
    let mut secrets = Vec::new();
    for variable in container["env"].as_array().expect("variables") {
        let name = variable["name"].as_str().expect("a name");
        command.env(name, "p@ss/w:rd 0123456789abcdef0123456789");
        secrets.push(name);
    }
    let expected = [
        "PET_INVENTORY__DATABASE__PASSWORD",
        "BOOTSTRAP_API_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    ];
    assert_eq!(secrets, expected);
    let shown = Output::of(command).await.is(0).stdout;
    assert!(
        shown.contains("s3://example-pets/images") && shown.contains("10.0.3.0/28"),
        "{shown}"
    );
    assert!(
        !shown.contains("p%40ss") && !shown.contains("p@ss"),
        "{shown}"
    );

    let service: Service = home.serve().await;
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let get = &container[probe]["httpGet"];
        assert_eq!(get["port"], "operations", "{probe}");
        let path = get["path"].as_str().expect("a path");
        let url = format!("http://{}{path}", service.operations);
        client().get(url).is(200).await;
    }
    service.stop().await;
}

fn systemd_analyze(arguments: &[&str], files: &[&Path]) -> Command {
    let mut command = Command::new("systemd-analyze");
    command.args(arguments).args(files);
    command
}

#[tokio::test]
async fn systemd_units_are_valid_and_sandboxed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (unit, socket) = (
        folder.path().join("pet-inventory.service"),
        folder.path().join("pet-inventory.socket"),
    );
    // The program is not installed here.
    let program = "ExecStart=/usr/local/bin/pet-inventory ";
    assert!(UNIT.contains(program));
    let write = |text: &str| {
        fs::write(&unit, text.replace(program, "ExecStart=/bin/true ")).expect("a file");
    };
    write(UNIT);
    fs::write(&socket, SOCKET).expect("a file");
    let files = [&*unit, &*socket];
    // It reports unknown settings without failing.
    let verified = Output::of(systemd_analyze(&["verify", "--man=no"], &files))
        .await
        .is(0);
    assert!(!verified.stderr.contains("pet-inventory"), "{verified:?}");
    // The variant with a Unix socket.
    let variant = SOCKET
        .replace("\nListenStream", "\n#")
        .replace("\nNoDelay", "\n#");
    let variant = variant.replace("\n#ListenStream", "\nListenStream");
    let variant = variant.replace("\n#Socket", "\nSocket");
    assert!(
        variant.contains("\nSocketGroup=caddy\nSocketMode=0660\n"),
        "{variant}"
    );
    fs::write(&socket, variant).expect("a file");
    let verified = Output::of(systemd_analyze(&["verify", "--man=no"], &files));
    let verified = verified.await.is(0);
    assert!(!verified.stderr.contains("pet-inventory"), "{verified:?}");
    let threshold = format!("--threshold={MAX_EXPOSURE}");
    let security = ["security", "--offline=true", "--no-pager", &threshold];
    Output::of(systemd_analyze(&security, &files[..1]))
        .await
        .is(0);

    write(&UNIT.replace("ProtectSystem=strict", "ProtectSystm=strict"));
    let wrong = Output::of(systemd_analyze(&["verify", "--man=no"], &files)).await;
    assert!(wrong.stderr.contains("ProtectSystm"), "{wrong:?}");
    write(
        &UNIT
            .replace("CapabilityBoundingSet=\n", "")
            .replace("ProtectSystem=strict", ""),
    );
    let weak = Output::of(systemd_analyze(&security, &files[..1])).await;
    assert_ne!(weak.code, Some(0), "{weak:?}");
}

/// The service runs with the variables of the unit, where `%S` stands for a folder.
#[tokio::test(flavor = "multi_thread")]
async fn service_accepts_the_settings_of_the_systemd_unit() {
    let home = Home::new();
    fs::write(
        home.path().join("database_url"),
        "postgres://pets@db.example.com/pets\n",
    )
    .expect("a file");
    // The guide shows this file.
    let file = "[images]\nurl = \"file:///var/lib/pet-inventory/images\"\n";
    assert!(GUIDE.contains(file));
    fs::write(home.path().join("config.toml"), file).expect("a file");
    let mut command = home.command(["--config", "config.toml", "config", "show"]);
    for line in UNIT
        .lines()
        .filter_map(|line| line.strip_prefix("Environment="))
    {
        for variable in line.split(' ') {
            let (name, value) = variable.split_once('=').expect("a value");
            let folder = home.path().to_str().expect("text");
            let value = value.replace("/etc/pet-inventory", folder);
            command.env(name, value.replace("%S", "/var/lib"));
        }
    }
    let shown = Output::of(command).await.is(0).stdout;
    for setting in [
        "postgres://pets@db.example.com/pets",
        "file:///var/lib/pet-inventory/images",
    ] {
        assert!(shown.contains(setting), "{shown}");
    }
}
