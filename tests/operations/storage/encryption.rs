//! Encryption at rest: what is in the file and in backups, lost and replaced keys, and a KMS plugin in a process of its own.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::pilothouse;
use crate::support::compare::{revision, text};
use crate::support::server::temp_directory;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
/// Two keys of 32 bytes.
const KEYS: [(&str, &str); 2] = [
    ("one", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="),
    ("two", "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA="),
];

/// A configuration in a file, and the flag that names it.
struct Configuration {
    path: PathBuf,
    flag: String,
}

impl Configuration {
    fn new(directory: &Path, providers: &Value) -> Configuration {
        let path = directory.join("encryption.json");
        let flag = format!("--encryption-provider-config={}", path.display());
        let configuration = Configuration { path, flag };
        configuration.change(providers);
        configuration
    }

    fn change(&self, providers: &Value) {
        let file = json!({"kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1",
            "resources": [{"resources": ["secrets", "kites.toys.example"], "providers": providers}]});
        // Whole at every moment: a server may read it now.
        let unfinished = self.path.with_extension("new");
        fs::write(&unfinished, file.to_string()).expect("the configuration");
        fs::rename(unfinished, &self.path).expect("the configuration");
    }
}

fn aesgcm(keys: &[(&str, &str)]) -> Value {
    let keys: Vec<Value> =
        keys.iter().map(|(name, secret)| json!({"name": name, "secret": secret})).collect();
    json!({"aesgcm": {"keys": keys}})
}

fn secret(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"owner": "captain-hush"}}, "stringData": {"password": value}})
}

/// The names of all secrets.
fn names(admin: &mut Client) -> Vec<String> {
    let list = admin.get(SECRETS).ok();
    let items = list["items"].as_array().expect("items").iter();
    items.map(|item| text(item, "/metadata/name").to_owned()).collect()
}

/// Whether the bytes contain a text, as it is or in base64.
fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn file_and_backups_show_nothing_of_a_secret() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let configuration = Configuration::new(directory.path(), &json!([aesgcm(&KEYS[..1]), {"identity": {}}]));
    let server = Server::start_on_file(&data, &[&configuration.flag]);
    let mut admin = server.admin();
    admin.post(SECRETS, &secret("treasure-map", "x-marks-the-spot")).ok();
    admin.post(SECRETS, &secret("sunken", "old-value")).ok();
    admin.delete(&format!("{SECRETS}/sunken")).ok();
    let backup = admin.get("/backup").body;
    let metrics = admin.get("/metrics");
    let metrics = String::from_utf8_lossy(&metrics.body);
    let counted = "apiserver_storage_transformation_operations_total{resource=\"secrets\",status=\"OK\",\
                   transformation_type=\"to_storage\",transformer_prefix=\"k8s:enc:aesgcm:v1:\"}";
    assert!(metrics.contains(counted), "{metrics}");
    server.stop();
    let store = fs::read(data.join("pilothouse.redb")).expect("the store");
    for hidden in ["treasure-map", "x-marks-the-spot", "eC1tYXJrcy10aGUtc3BvdA", "captain-hush", "sunken"] {
        assert!(!holds(&store, hidden), "the store has {hidden}");
        assert!(!holds(&backup, hidden), "the backup has {hidden}");
    }
    assert!(holds(&store, "k8s:enc:aesgcm:v1:one:") && holds(&backup, "k8s:enc:aesgcm:v1:one:"));

    let file = directory.path().join("backup");
    fs::write(&file, &backup).expect("the backup");
    let inspect = |flags: &[&str]| {
        let file = file.to_string_lossy();
        let output = pilothouse(&[&["inspect", &*file, "--resource=secrets"], flags].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(inspect(&["--objects", &configuration.flag]).contains(r#""name":"treasure-map""#));
    assert!(inspect(&[]).contains("cannot be read: it is encrypted"));

    let server = Server::start_on_file(&data, &[&configuration.flag]);
    let read = server.admin().get(&format!("{SECRETS}/treasure-map")).ok();
    assert_eq!(read["data"]["password"], "eC1tYXJrcy10aGUtc3BvdA==");
    assert_eq!(read["metadata"]["labels"]["owner"], "captain-hush");
}

#[test]
fn object_whose_key_is_missing_is_an_error_and_comes_back_with_the_key() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let configuration = Configuration::new(directory.path(), &json!([aesgcm(&KEYS[..1])]));
    let server = Server::start_on_file(&data, &[&configuration.flag]);
    let mut admin = server.admin();
    admin.post(SECRETS, &secret("kept", "value")).ok();
    server.stop();

    configuration.change(&json!([aesgcm(&KEYS[1..])]));
    let server = Server::start_on_file(&data, &[&configuration.flag]);
    let mut admin = server.admin();
    let error = admin.get(&format!("{SECRETS}/kept")).expect_error(500, "InternalError");
    let message = text(&error, "/message");
    assert!(message.contains("/registry/secrets/default/kept"), "{message}");
    assert!(message.contains("data from the storage is not transformable"), "{message}");
    assert!(message.contains("no matching key was found for the provided AES transformer"), "{message}");
    admin.get(SECRETS).expect_error(500, "StorageReadError");
    admin.post(SECRETS, &secret("kept", "other")).expect_error(409, "AlreadyExists");
    admin.post(SECRETS, &secret("new", "other")).ok();
    admin.get(&format!("{SECRETS}/new")).ok();
    admin.get("/api/v1/namespaces/default/configmaps").ok();
    let ready = admin.get("/readyz?verbose");
    let warning =
        "[+]storage-decryption ok: warning: objects that could not be decrypted at the start: 1 of secrets";
    assert!(ready.status == 200 && ready.text().contains(warning), "{}", ready.text());
    server.stop();

    configuration.change(&json!([aesgcm(&KEYS)]));
    let server = Server::start_on_file(&data, &[&configuration.flag]);
    assert_eq!(names(&mut server.admin()), ["kept", "new"]);
}

#[test]
fn key_is_replaced_while_the_server_runs() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let configuration = Configuration::new(directory.path(), &json!([{"identity": {}}, aesgcm(&KEYS[..1])]));
    let reload = "--encryption-provider-config-automatic-reload";
    let server = Server::start_in(&data, &[&configuration.flag, reload]);
    let mut admin = server.admin();
    admin.post(SECRETS, &secret("clear", "value")).ok();
    for providers in [
        json!([aesgcm(&KEYS[..1]), {"identity": {}}]),
        json!([aesgcm(&[KEYS[1], KEYS[0]]), {"identity": {}}]),
    ] {
        configuration.change(&providers);
        // An update that changes nothing is written once the new key is in use, and not again after that.
        let path = format!("{SECRETS}/clear");
        let before = admin.get(&path).ok();
        let rewritten = || {
            let unchanged = admin.get(&path).ok();
            let now = admin.put(&path, &unchanged).ok();
            (now["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]).then_some(now)
        };
        let rewritten = poll(TIMEOUT, rewritten).expect("the secret is written with the new key");
        let again = admin.put(&path, &rewritten).ok();
        assert_eq!(again["metadata"]["resourceVersion"], rewritten["metadata"]["resourceVersion"]);
    }
    for (providers, reason) in [
        (json!([{"unknown": {}}]), "error while parsing file"),
        (json!([aesgcm(&KEYS[..1])]), "1 of secrets need a key or KMS plugin that it does not have"),
    ] {
        configuration.change(&providers);
        poll(TIMEOUT, || server.log().contains(reason).then_some(())).expect("a refusal");
        assert!(server.log().contains("the previous one stays in use"));
    }
    admin.post(SECRETS, &secret("later", "value")).ok();
    server.stop();

    configuration.change(&json!([aesgcm(&KEYS[1..])]));
    let server = Server::start_in(&data, &[&configuration.flag]);
    assert_eq!(server.admin().get(SECRETS).ok()["items"].as_array().map(Vec::len), Some(2));
}

#[test]
fn migration_writes_all_objects_with_the_new_key() {
    // By the command alone, and by a StorageVersionMigration that it asks for.
    let migrator: [&str; 3] = [
        "--controllers=storage-version-migrator-controller",
        "--feature-gates=StorageVersionMigrator=true",
        "--runtime-config=storagemigration.k8s.io/v1alpha1=true",
    ];
    for (flags, report) in [(&[][..], "objects are current"), (&migrator, "migrated by the server")] {
        let directory = temp_directory();
        let data = directory.path().join("data");
        let configuration =
            Configuration::new(directory.path(), &json!([aesgcm(&KEYS[..1]), {"identity": {}}]));
        let server = Server::start_in(&data, &[]);
        server.admin().post(SECRETS, &secret("clear", "value")).ok();
        server.stop();
        let server = Server::start_in(&data, &[&configuration.flag]);
        let mut admin = server.admin();
        admin.post(SECRETS, &secret("old", "value")).ok();
        server.stop();
        configuration.change(&json!([aesgcm(&[KEYS[1], KEYS[0]]), {"identity": {}}]));
        let server = Server::start_in(&data, &[flags, &[&configuration.flag]].concat());
        let mut admin = server.admin();
        let current = revision(&admin.post(SECRETS, &secret("current", "value")).ok());
        let output = pilothouse(&["migrate", "secrets", "--data-dir", &data.to_string_lossy()]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains(report), "{output:?}");
        let written =
            |admin: &mut Client, name: &str| revision(&admin.get(&format!("{SECRETS}/{name}")).ok());
        assert_eq!(written(&mut admin, "current"), current, "it was encrypted with the new key already");
        for name in ["clear", "old"] {
            assert!(written(&mut admin, name) > current, "{name} is written again");
        }
        server.stop();
        // With the new key alone.
        configuration.change(&json!([aesgcm(&KEYS[1..])]));
        let server = Server::start_in(&data, &[&configuration.flag]);
        assert_eq!(names(&mut server.admin()), ["clear", "current", "old"]);
    }
}

#[test]
fn object_whose_key_is_lost_can_be_deleted_by_its_name() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let configuration = Configuration::new(directory.path(), &json!([aesgcm(&KEYS[..1])]));
    let server = Server::start_in(&data, &[&configuration.flag]);
    let mut admin = server.admin();
    for name in ["lost", "other"] {
        admin.post(SECRETS, &secret(name, "value")).ok();
    }
    server.stop();
    configuration.change(&json!([aesgcm(&KEYS[1..])]));
    let gate = "--feature-gates=AllowUnsafeMalformedObjectDeletion=true";
    let server = Server::start_in(&data, &[&configuration.flag, gate]);
    let mut admin = server.admin();
    let path = format!("{SECRETS}/lost");
    admin.delete(&path).expect_error(500, "InternalError");
    let unsafe_path = format!("{path}?ignoreStoreReadErrorWithClusterBreakingPotential=true");
    assert_eq!(admin.delete(&unsafe_path).ok()["details"], json!({"name": "lost", "kind": "Secret"}));
    admin.get(&path).expect_error(404, "NotFound");
    admin.get(&format!("{SECRETS}/other")).expect_error(500, "InternalError");
    admin.post(SECRETS, &secret("lost", "again")).ok();
    server.stop();

    configuration.change(&json!([aesgcm(&KEYS)]));
    let server = Server::start_in(&data, &[&configuration.flag]);
    let mut admin = server.admin();
    assert_eq!(names(&mut admin), ["lost", "other"]);
    assert_eq!(admin.get(&path).ok()["data"]["password"], "YWdhaW4=", "not the one that was deleted");
}

/// A KMS plugin in a process of its own, which is killed at the end.
struct Plugin {
    process: Child,
}

impl Plugin {
    fn start(directory: &Path) -> Plugin {
        let program =
            Path::new(env!("CARGO_BIN_EXE_pilothouse")).with_file_name("examples").join("kms-plugin");
        assert!(program.exists(), "build the plugin first: cargo build --workspace --examples");
        let socket = directory.join("kms.sock");
        let _absent = fs::remove_file(&socket);
        let mut process = Command::new(program)
            .args(["--key-id=first", "--socket"])
            .arg(socket)
            .arg("--state")
            .arg(directory.join("kms.keys"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the plugin");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Plugin { process }
    }

    fn kill(&mut self) {
        self.process.kill().expect("the plugin runs");
        self.process.wait().expect("the plugin ends");
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ended = (self.process.kill(), self.process.wait());
    }
}

#[test]
fn kms_plugin_may_be_killed_and_restarted_under_load() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let endpoint = format!("unix://{}", directory.path().join("kms.sock").display());
    let kms = json!([{"kms": {"apiVersion": "v2", "name": "local", "endpoint": endpoint, "timeout": "1s"}}]);
    let configuration = Configuration::new(directory.path(), &kms);
    let mut plugin = Plugin::start(directory.path());
    let server = Server::start_in(&data, &[&configuration.flag]);
    let mut admin = server.admin();
    assert_eq!(admin.get("/healthz/kms-providers").status, 200);
    for round in 0..3 {
        for index in 0..20 {
            admin.post(SECRETS, &secret(&format!("s-{round}-{index}"), "value")).ok();
        }
        match round {
            // Its keys are in memory: reading and writing go on without it.
            0 => plugin.kill(),
            1 => plugin = Plugin::start(directory.path()),
            _ => {}
        }
    }
    let is_healthy = || (admin.get("/healthz/kms-providers").status == 200).then_some(());
    poll(TIMEOUT, is_healthy).expect("the plugin is back");
    let count = |admin: &mut Client| admin.get(SECRETS).ok()["items"].as_array().map(Vec::len);
    assert_eq!(count(&mut admin), Some(60));
    server.stop();

    // Without the plugin, a start waits for it.
    plugin.kill();
    let starting = std::thread::spawn({
        let flag = configuration.flag;
        move || Server::start_in(&data, &[&flag])
    });
    let _plugin = Plugin::start(directory.path());
    let server = starting.join().expect("the server starts");
    assert_eq!(count(&mut server.admin()), Some(60));
}
