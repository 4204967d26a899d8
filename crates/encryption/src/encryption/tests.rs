use pilothouse_types::clock::Timestamp;
use tempfile::TempDir;

use super::*;
use crate::testing::{KeyFile, KmsPlugin, PluginState, configuration, keyed_provider, kms_provider};

const CONTEXT: &[u8] = b"/registry/secrets/default/a";
const PLAIN: &[u8] = br#"{"kind":"Secret"}"#;

/// Counts reloads.
#[derive(Default)]
struct Reloads(Lock<Vec<bool>>);

impl Observer for Reloads {
    fn reload(&self, succeeded: bool) {
        self.0.lock().push(succeeded);
    }
}

fn settings() -> Settings {
    Settings {
        is_reloaded: true,
        clock: Clock::manual(Timestamp::from_unix(1_700_000_000)),
        is_polling: false,
        // One attempt.
        reload_probe: ReloadProbe { timeout: Duration::ZERO, pause: Duration::ZERO },
        ..Settings::default()
    }
}

fn plugin(directory: &TempDir, name: &str) -> KmsPlugin {
    let state = Arc::new(PluginState::new(KeyFile::in_memory(name)));
    KmsPlugin::start(&directory.path().join(name), state).unwrap()
}

fn aesgcm(name: &str, byte: u8) -> Vec<u8> {
    configuration("[secrets]", &format!("[{}, {{identity: {{}}}}]", keyed_provider("aesgcm", name, byte)))
}

#[test]
fn reload_replaces_the_providers_of_resources_in_use() {
    let observer = Arc::new(Reloads::default());
    let encryption =
        Encryption::load(&aesgcm("old", 1), Settings { observer: observer.clone(), ..settings() }).unwrap();
    let secrets = encryption.for_resource("", "secrets");
    let configmaps = encryption.for_resource("", "configmaps");
    let stored = secrets.encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    assert_eq!(encryption.content_hash(), content_hash(&aesgcm("old", 1)));
    assert_eq!(encryption.reload(&aesgcm("old", 1), &[]), Ok(Reload::Unchanged));
    let providers =
        format!("[{}, {}]", keyed_provider("secretbox", "new", 2), keyed_provider("aesgcm", "old", 1));
    let next = configuration("[secrets, configmaps]", &providers);
    assert!(!configmaps.has_entry());
    assert_eq!(encryption.reload(&next, &[]), Ok(Reload::Replaced));
    assert!(configmaps.has_entry());
    assert!(secrets.encrypt(PLAIN, CONTEXT).unwrap().starts_with(b"k8s:enc:secretbox:v1:new:"));
    assert!(configmaps.encrypt(PLAIN, CONTEXT).unwrap().starts_with(b"k8s:enc:secretbox:v1:new:"));
    let decrypted = secrets.decrypt(&stored, CONTEXT).unwrap();
    assert_eq!((&*decrypted.bytes, decrypted.is_stale), (PLAIN, true));
    assert_eq!(*observer.0.lock(), [true]);
}

#[test]
fn invalid_file_keeps_the_previous_configuration() {
    let observer = Arc::new(Reloads::default());
    let encryption =
        Encryption::load(&aesgcm("a", 1), Settings { observer: observer.clone(), ..settings() }).unwrap();
    let secrets = encryption.for_resource("", "secrets");
    let hash = encryption.content_hash();
    let v1 = configuration("[secrets]", &format!("[{}]", kms_provider("v1", "a", "unix:///a")));
    for (text, start) in [
        (&b"x"[..], "error while parsing file: "),
        (b"", "error while parsing file: encryption provider configuration file is empty"),
        (
            &configuration("[secrets]", "[]"),
            "error while parsing file: resources[0].providers: Required value",
        ),
        (&v1, "error while building transformers: KMSv1 is deprecated"),
    ] {
        let error = encryption.reload(text, &[]).unwrap_err().to_string();
        assert!(error.starts_with(start), "{error}");
    }
    assert_eq!(*observer.0.lock(), [false; 4]);
    assert_eq!(encryption.content_hash(), hash);
    assert!(secrets.encrypt(PLAIN, CONTEXT).unwrap().starts_with(b"k8s:enc:aesgcm:v1:a:"));
}

#[test]
fn reload_takes_no_key_that_is_needed() {
    let directory = TempDir::new().unwrap();
    let plugin = plugin(&directory, "kms");
    let file = |providers: &[&str]| configuration("[secrets]", &format!("[{}]", providers.join(", ")));
    let [one, two] = [1, 2].map(|byte| keyed_provider("aesgcm", "key", byte));
    let kms = kms_provider("v2", "kms", plugin.endpoint());
    let encryption = Encryption::load(&file(&[&one]), settings()).unwrap();
    let secrets = encryption.for_resource("", "secrets");
    let write = || {
        let key_id = secrets.encrypt_identified(PLAIN, CONTEXT).unwrap().key_id;
        StoredKey { group: String::new(), resource: "secrets".to_owned(), key_id, values: 3 }
    };
    let reload =
        |providers: &[&str], stored| encryption.reload(&file(providers), std::slice::from_ref(stored));
    let refusal =
        LoadError::TakesKeys("3 of secrets need a key or KMS plugin that it does not have".to_owned());
    let of_one = write();
    // The same name, and another secret.
    assert_eq!(reload(&[&two], &of_one), Err(refusal.clone()));
    assert_eq!(reload(&[&two, &one], &of_one), Ok(Reload::Replaced));
    let of_two = write();
    assert_eq!(reload(&[&kms, &two], &of_two), Ok(Reload::Replaced));
    let of_kms = write();
    assert_eq!(reload(&[&kms], &of_two), Err(refusal.clone()));
    assert_eq!(reload(&[&two], &of_kms), Err(refusal));
    assert_eq!(reload(&["{identity: {}}", &kms], &of_kms), Ok(Reload::Replaced));
    let in_clear = write();
    assert_eq!(in_clear.key_id, None);
    let error = reload(&[&kms], &in_clear).unwrap_err().to_string();
    assert!(error.contains("with the changed file: 3 of secrets need the identity provider"), "{error}");
}

#[test]
fn reload_needs_healthy_plugins() {
    let directory = TempDir::new().unwrap();
    let encryption = Encryption::load(&aesgcm("a", 1), settings()).unwrap();
    let secrets = encryption.for_resource("", "secrets");
    let plugin = plugin(&directory, "kms");
    let text = configuration("[secrets]", &format!("[{}]", kms_provider("v2", "kms", plugin.endpoint())));
    plugin.state.change_status(|status| status.healthz = "locked".to_owned());
    let error = encryption.reload(&text, &[]).unwrap_err().to_string();
    assert_eq!(
        error,
        "health check for new transformers failed, polling error context deadline exceeded: kms-provider-0: kmsv2 Provider \
         kms is not healthy, error: got unexpected healthz status: locked"
    );
    assert!(secrets.encrypt(PLAIN, CONTEXT).unwrap().starts_with(b"k8s:enc:aesgcm:v1:a:"));
    plugin.state.change_status(|status| status.healthz = "ok".to_owned());
    assert_eq!(encryption.reload(&text, &[]), Ok(Reload::Replaced));
    assert!(secrets.encrypt(PLAIN, CONTEXT).unwrap().starts_with(b"k8s:enc:kms:v2:kms:"));
    // The plugin of a replaced configuration is not used any more, and its thread ends.
    let previous = Arc::downgrade(&encryption.transformers());
    assert_eq!(encryption.reload(&aesgcm("b", 2), &[]), Ok(Reload::Replaced));
    assert!(previous.upgrade().is_none());
}

#[test]
fn resource_without_entry_is_stored_as_it_is_and_never_encrypted() {
    let encryption = Encryption::load(&aesgcm("a", 1), settings()).unwrap();
    let (secrets, configmaps) =
        (encryption.for_resource("", "secrets"), encryption.for_resource("", "configmaps"));
    assert!(secrets.has_entry() && !configmaps.has_entry());
    assert_eq!(&*configmaps.encrypt(PLAIN, CONTEXT).unwrap(), PLAIN);
    let decrypted = configmaps.decrypt(PLAIN, CONTEXT).unwrap();
    assert_eq!((&*decrypted.bytes, decrypted.is_stale), (PLAIN, false));
    let stored = secrets.encrypt(PLAIN, CONTEXT).unwrap();
    let error = configmaps.decrypt(&stored, CONTEXT).unwrap_err();
    assert_eq!(
        error.to_string(),
        "identity transformer tried to read encrypted data: no provider is configured for configmaps, and the data has the \
         prefix \"k8s:enc:aesgcm:v1:a:\""
    );
    assert!(!error.is_transient());
}

#[test]
fn health_checks_are_named_as_in_the_reference() {
    let directory = TempDir::new().unwrap();
    let (one, two) = (plugin(&directory, "one"), plugin(&directory, "two"));
    let names = |providers: &[String], is_reloaded: bool| {
        let text = configuration("[secrets]", &format!("[{}]", providers.join(", ")));
        let settings = Settings { is_reloaded, allows_kms_v1: true, ..settings() };
        let encryption = Encryption::load(&text, settings).unwrap();
        let checks = encryption.health_checks();
        checks.iter().map(|check| check.name().to_owned()).collect::<Vec<String>>()
    };
    let v1 = kms_provider("v1", "one", one.endpoint());
    let v2 = kms_provider("v2", "two", two.endpoint());
    let identity = "{identity: {}}".to_owned();
    assert_eq!(names(&[v1.clone(), v2.clone()], false), ["kms-provider-0", "kms-provider-1"]);
    assert_eq!(names(std::slice::from_ref(&v2), false), ["kms-providers"]);
    assert_eq!(names(&[v1, v2], true), ["kms-providers"]);
    assert_eq!(names(std::slice::from_ref(&identity), true), ["kms-providers"]);
    assert_eq!(names(&[identity], false), [""; 0]);
}

#[test]
fn health_check_names_the_plugins_that_fail() {
    let directory = TempDir::new().unwrap();
    let (one, two) = (plugin(&directory, "one"), plugin(&directory, "two"));
    let providers = [&one, &two].map(|plugin| {
        let name = plugin.endpoint().rsplit('/').next().unwrap();
        kms_provider("v2", name, plugin.endpoint())
    });
    let settings = settings();
    let clock = settings.clock.clone();
    let text = configuration("[secrets]", &format!("[{}]", providers.join(", ")));
    let encryption = Encryption::load(&text, settings).unwrap();
    let [check] = <[HealthCheck; 1]>::try_from(encryption.health_checks()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!((check.last(), runtime.block_on(check.check())), (Ok(()), Ok(())));
    two.state.change_status(|status| status.healthz = "down".to_owned());
    assert_eq!(runtime.block_on(check.check()), Ok(()), "the last check is recent");
    clock.advance(Duration::from_secs(20));
    let expected =
        Err("kms-provider-1: kmsv2 Provider two is not healthy, error: got unexpected healthz status: down"
            .to_owned());
    assert_eq!(check.last(), Ok(()));
    assert_eq!(runtime.block_on(check.check()), expected);
    assert_eq!(check.last(), expected);
    two.state.change_status(|status| status.healthz = "ok".to_owned());
    clock.advance(Duration::from_secs(3));
    assert_eq!(runtime.block_on(check.check()), Ok(()));
}

#[test]
fn debug_output_names_resources_and_no_keys() {
    let encryption = Encryption::load(&aesgcm("a", 42), settings()).unwrap();
    let debug_text = format!("{encryption:?} {:?}", encryption.transformers().for_resource("", "secrets"));
    assert!(debug_text.contains("secrets") && !debug_text.contains("42"), "{debug_text}");
}
