//! The providers with a plugin on a real socket. Time is set by hand, and nothing runs in the background.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use pilothouse_plugins::Code;
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::lock::Lock;
use prost::Message as _;
use tempfile::TempDir;

use super::messages::v2::{self, EncryptedObject};
use crate::encryption::{Encryption, ResourceEncryption, Settings};
use crate::error::{DecryptError, EncryptError};
use crate::limits::{KMS_HEALTHY_TTL, KMS_UNHEALTHY_TTL, KMS_WRITE_TTL};
use crate::observer::{Direction, Observer, key_id_hash};
use crate::testing::{KeyFile, KmsPlugin, PluginState, configuration, kms_provider};

const CONTEXT: &[u8] = b"/registry/secrets/default/a";
const PLAIN: &[u8] = br#"{"kind":"Secret"}"#;
/// How long the last check is good for at most.
const CHECK_AGAIN: Duration = KMS_HEALTHY_TTL;

/// Writes down what is observed of plugins and keys.
#[derive(Default)]
struct Recorder(Lock<Vec<String>>);

impl Recorder {
    fn push(&self, event: String) {
        self.0.lock().push(event);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Observer for Recorder {
    fn cache_miss(&self) {
        self.push("miss".to_owned());
    }
    fn data_key_generation(&self, elapsed: Option<Duration>) {
        self.push(format!("generated {}", elapsed.is_some()));
    }
    fn dek_source_cache_size(&self, provider: &str, size: usize) {
        self.push(format!("{provider} has {size}"));
    }
    fn kms_call(&self, provider: &str, method: &str, status: &str, _elapsed: Duration) {
        self.push(format!("{provider} {method} {status}"));
    }
    fn key_id_used(&self, direction: Direction, provider: &str, hash: &str) {
        self.push(format!("{provider} {} {}", direction.label(), &hash[..11]));
    }
    fn key_id_from_status(&self, provider: &str, hash: &str) {
        self.push(format!("{provider} status {}", &hash[..11]));
    }
    fn invalid_key_id_from_status(&self, provider: &str, error: &str) {
        self.push(format!("{provider} invalid {error}"));
    }
}

/// A plugin and a server that uses it.
struct Fixture {
    directory: TempDir,
    state: Arc<PluginState>,
    plugin: Option<KmsPlugin>,
    clock: Clock,
    recorder: Arc<Recorder>,
    version: &'static str,
}

impl Fixture {
    fn new(version: &'static str) -> Fixture {
        let directory = TempDir::new().unwrap();
        let state = Arc::new(PluginState::new(KeyFile::in_memory("one")));
        let clock = Clock::manual(Timestamp::from_unix(1_700_000_000));
        let recorder = Arc::new(Recorder::default());
        let mut fixture = Fixture { directory, state, plugin: None, clock, recorder, version };
        fixture.start_plugin();
        fixture
    }

    fn start_plugin(&mut self) {
        let path = self.directory.path().join("kms.sock");
        self.plugin = Some(KmsPlugin::start(&path, self.state.clone()).unwrap());
    }

    fn stop_plugin(&mut self) {
        self.plugin = None;
    }

    fn configuration(&self, timeout: &str) -> Vec<u8> {
        let endpoint = format!("unix://{}", self.directory.path().join("kms.sock").display());
        let provider = kms_provider(self.version, "test", &endpoint).replace("10s", timeout);
        configuration("[secrets]", &format!("[{provider}]"))
    }

    fn server_with(&self, timeout: &str) -> (Encryption, ResourceEncryption) {
        let settings = Settings {
            allows_kms_v1: true,
            clock: self.clock.clone(),
            observer: self.recorder.clone(),
            is_polling: false,
            ..Settings::default()
        };
        let encryption = Encryption::load(&self.configuration(timeout), settings).unwrap();
        let secrets = encryption.for_resource("", "secrets");
        (encryption, secrets)
    }

    /// A server for a plugin that works: the timeout is never reached.
    fn server(&self) -> (Encryption, ResourceEncryption) {
        self.server_with("60s")
    }

    /// A server for a plugin that does not answer.
    fn impatient_server(&self) -> (Encryption, ResourceEncryption) {
        self.server_with("50ms")
    }

    fn decrypt_calls(&self) -> usize {
        self.state.calls.decrypt.load(Ordering::SeqCst)
    }

    fn encrypt_calls(&self) -> usize {
        self.state.calls.encrypt.load(Ordering::SeqCst)
    }
}

fn object(stored: &[u8]) -> EncryptedObject {
    EncryptedObject::decode(stored.strip_prefix(b"k8s:enc:kms:v2:test:").unwrap()).unwrap()
}

fn stored_object(object: &EncryptedObject) -> Vec<u8> {
    [b"k8s:enc:kms:v2:test:".as_slice(), &object.encode_to_vec()].concat()
}

#[test]
fn v2_value_is_read_by_the_same_and_by_another_server() {
    let fixture = Fixture::new("v2");
    let (_encryption, secrets) = fixture.server();
    let stored = secrets.encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    let parts = object(&stored);
    assert_eq!(
        (parts.key_id.as_str(), parts.encrypted_dek_source_type),
        ("one", v2::HKDF_SHA256_XNONCE_AES_GCM_SEED)
    );
    let decrypted = secrets.decrypt(&stored, CONTEXT).unwrap();
    assert_eq!((&*decrypted.bytes, decrypted.is_stale), (PLAIN, false));
    assert_eq!((fixture.encrypt_calls(), fixture.decrypt_calls()), (1, 0), "its own seed is known");
    let (_other_encryption, other) = fixture.server();
    for _ in 0..3 {
        let decrypted = other.decrypt(&stored, CONTEXT).unwrap();
        assert_eq!((&*decrypted.bytes, decrypted.is_stale), (PLAIN, false));
    }
    assert_eq!(fixture.decrypt_calls(), 1, "each data key is decrypted once");
    let error = other.decrypt(&stored, b"/registry/secrets/default/b").unwrap_err();
    assert_eq!(error.to_string(), "kms provider \"test\": cipher: message authentication failed");
    assert!(!error.is_transient());
    let uids = fixture.state.uids();
    assert!(uids.iter().all(|uid| uid.len() == 36) && uids[0] != uids[1], "{uids:?}");
}

#[test]
fn v2_reads_data_keys_without_derivation_as_stale() {
    let fixture = Fixture::new("v2");
    let (_encryption, secrets) = fixture.server();
    let mut parts = object(&secrets.encrypt(PLAIN, CONTEXT).unwrap());
    // The seed of the server is not known here, so the plugin is asked to encrypt another data key: as its own seed.
    let key = crate::secret_key::SecretKey::new(vec![9; 32]);
    let mut encrypted = Vec::new();
    crate::ciphers::AesGcm::new(key.clone()).unwrap().encrypt(PLAIN, CONTEXT, &mut encrypted).unwrap();
    parts.encrypted_data = encrypted;
    parts.encrypted_dek_source_type = v2::AES_GCM_KEY;
    parts.encrypted_dek_source = fixture.state.encrypt_for_tests(key.bytes());
    let stored = stored_object(&parts);
    let decrypted = secrets.decrypt(&stored, CONTEXT).unwrap();
    assert_eq!((&*decrypted.bytes, decrypted.is_stale), (PLAIN, true));
}

#[test]
fn v2_new_key_id_makes_a_new_seed_and_older_values_stale() {
    let fixture = Fixture::new("v2");
    let (encryption, secrets) = fixture.server();
    let old = secrets.encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    fixture.state.rotate("two").unwrap();
    assert_eq!(object(&secrets.encrypt(PLAIN, CONTEXT).unwrap()).key_id, "one", "not before the next check");
    fixture.clock.advance(CHECK_AGAIN);
    encryption.check_plugins().unwrap();
    let new = secrets.encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    assert_eq!(object(&new).key_id, "two");
    assert_eq!(secrets.decrypt(&old, CONTEXT).map(|found| found.is_stale), Ok(true));
    assert_eq!(secrets.decrypt(&new, CONTEXT).map(|found| found.is_stale), Ok(false));
    assert_eq!(fixture.decrypt_calls(), 0, "the previous seed is remembered");
}

#[test]
fn v2_same_key_id_keeps_the_seed() {
    let fixture = Fixture::new("v2");
    let (encryption, secrets) = fixture.server();
    let first = object(&secrets.encrypt(PLAIN, CONTEXT).unwrap()).encrypted_dek_source;
    for _ in 0..20 {
        fixture.clock.advance(CHECK_AGAIN);
        encryption.check_plugins().unwrap();
    }
    assert_eq!(object(&secrets.encrypt(PLAIN, CONTEXT).unwrap()).encrypted_dek_source, first);
    assert_eq!(fixture.encrypt_calls(), 1);
}

#[test]
fn v2_seed_is_used_for_a_while_after_the_last_good_check() {
    let fixture = Fixture::new("v2");
    let (encryption, secrets) = fixture.server();
    fixture.state.change_status(|status| status.healthz = "no".to_owned());
    fixture.state.rotate("two").unwrap();
    fixture.state.fail_with(Some(Code::Unavailable));
    fixture.clock.advance(KMS_WRITE_TTL);
    let error = encryption.check_plugins().unwrap_err();
    assert!(error.contains("got unexpected healthz status: no"), "{error}");
    assert!(error.contains("failed to rotate DEK"), "{error}");
    let stored = secrets.encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    fixture.clock.advance(Duration::from_secs(2));
    let error = secrets.encrypt(PLAIN, CONTEXT).unwrap_err();
    let hash = key_id_hash("one");
    assert_eq!(
        error,
        EncryptError::Unavailable {
            provider: "test".to_owned(),
            reason: format!("encryptedDEKSource with keyID hash \"{hash}\" expired 2 s ago")
        }
    );
    assert!(error.is_transient());
    assert_eq!(&*secrets.decrypt(&stored, CONTEXT).unwrap().bytes, PLAIN, "reading goes on");
    fixture.state.fail_with(None);
    fixture.state.change_status(|status| status.healthz = "ok".to_owned());
    fixture.clock.advance(KMS_UNHEALTHY_TTL);
    encryption.check_plugins().unwrap();
    assert_eq!(object(&secrets.encrypt(PLAIN, CONTEXT).unwrap()).key_id, "two");
}

#[test]
fn v2_check_finds_what_is_wrong_with_a_plugin() {
    let fixture = Fixture::new("v2");
    let (encryption, _) = fixture.server();
    let check = |change: &dyn Fn(&mut v2::StatusResponse)| {
        fixture.state.change_status(|status| {
            *status = v2::StatusResponse {
                version: "v2".to_owned(),
                healthz: "ok".to_owned(),
                key_id: "one".to_owned(),
            };
            change(status);
        });
        fixture.clock.advance(CHECK_AGAIN);
        encryption.check_plugins().map_err(|error| {
            let start = "kms-provider-0: kmsv2 Provider test is not healthy, error: ";
            error.strip_prefix(start).unwrap_or_else(|| panic!("{error}")).to_owned()
        })
    };
    let error = |text: &str| Err(text.to_owned());
    assert_eq!(check(&|_| {}), Ok(()));
    assert_eq!(check(&|status| status.healthz.clear()), error("got unexpected healthz status: "));
    assert_eq!(
        check(&|status| status.version = "v3".to_owned()),
        error("expected KMSv2 API version v2, got v3")
    );
    assert_eq!(
        check(&|status| status.version = "v2beta1".to_owned()),
        error(
            "KMSv2 API version should not change after the initial status response version v2, got v2beta1"
        )
    );
    assert_eq!(
        check(&|status| status.key_id.clear()),
        error("got invalid KMSv2 KeyID hash \"\": keyID is empty")
    );
    let long = "k".repeat(1_025);
    let expected = format!(
        "got invalid KMSv2 KeyID hash \"{}\": keyID is 1025 bytes, which exceeds the max size of 1024",
        key_id_hash(&long)
    );
    assert_eq!(check(&|status| status.key_id.clone_from(&long)), Err(expected));
    let both = check(&|status| {
        status.healthz = "x".repeat(5_000);
        status.key_id.clear();
    });
    let both = both.unwrap_err();
    assert!(both.starts_with("[got unexpected") && both.len() < 1_500, "{both}");
    // The seed must be encrypted with the key that the status names.
    fixture.state.set_encrypt_key_id(Some("three"));
    let mismatch = check(&|status| status.key_id = "two".to_owned()).unwrap_err();
    assert!(mismatch.contains(&format!("encryptKeyIDHash=\"{}\"", key_id_hash("three"))), "{mismatch}");
    assert!(!mismatch.contains("three"), "{mismatch}");
    let invalid: Vec<String> =
        fixture.recorder.take().into_iter().filter(|event| event.contains("invalid")).collect();
    assert_eq!(invalid, ["test invalid empty", "test invalid too_long", "test invalid empty"]);
}

#[test]
fn plugin_that_starts_later_is_used_when_it_is_there() {
    for version in ["v2", "v1"] {
        let mut fixture = Fixture::new(version);
        fixture.stop_plugin();
        let (encryption, secrets) = fixture.impatient_server();
        let error = secrets.encrypt(PLAIN, CONTEXT).unwrap_err();
        assert!(error.is_transient() && error.to_string().contains("code = DeadlineExceeded"), "{error}");
        assert!(error.to_string().contains("kms.sock"), "{error}");
        fixture.start_plugin();
        // A call may still need longer than the short timeout, which only means that the check is repeated.
        loop {
            fixture.clock.advance(CHECK_AGAIN);
            if encryption.check_plugins().is_ok() {
                break;
            }
        }
        let stored = secrets.encrypt(PLAIN, CONTEXT).unwrap().into_owned();
        assert_eq!(&*secrets.decrypt(&stored, CONTEXT).unwrap().bytes, PLAIN);
    }
}

#[test]
fn unreachable_plugin_is_a_transient_failure_and_a_refusal_is_not() {
    for version in ["v2", "v1"] {
        let mut fixture = Fixture::new(version);
        let (_writer, secrets) = fixture.server();
        let stored = secrets.encrypt(PLAIN, CONTEXT).unwrap().into_owned();
        fixture.stop_plugin();
        let (_reader, secrets) = fixture.impatient_server();
        let error = secrets.decrypt(&stored, CONTEXT).unwrap_err();
        assert!(error.is_transient(), "{error}");
        let text =
            "kms provider \"test\": failed to decrypt DEK, error: rpc error: code = DeadlineExceeded desc = ";
        assert!(error.to_string().starts_with(text), "{error}");
        fixture.start_plugin();
        let (_reader, secrets) = fixture.server();
        for (code, is_transient) in [(Code::Unknown, true), (Code::InvalidArgument, false)] {
            fixture.state.fail_with(Some(code));
            let error = secrets.decrypt(&stored, CONTEXT).unwrap_err();
            assert_eq!(error.is_transient(), is_transient, "{error}");
            let DecryptError::Failed(attempts) = &error else { panic!("{error}") };
            assert_eq!(attempts[0].status, pilothouse_plugins::code_name(code));
        }
        fixture.state.fail_with(None);
        assert_eq!(&*secrets.decrypt(&stored, CONTEXT).unwrap().bytes, PLAIN, "failures are not remembered");
    }
}

#[test]
fn connection_is_made_again_after_the_plugin_was_restarted() {
    let mut fixture = Fixture::new("v2");
    let (encryption, secrets) = fixture.server();
    let (_other, other) = fixture.server();
    let stored = other.encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    fixture.stop_plugin();
    fixture.start_plugin();
    assert_eq!(&*secrets.decrypt(&stored, CONTEXT).unwrap().bytes, PLAIN);
    fixture.clock.advance(CHECK_AGAIN);
    encryption.check_plugins().unwrap();
}

#[test]
fn providers_can_be_used_by_all_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<(Encryption, ResourceEncryption, crate::Transformers, crate::HealthCheck)>();
}

#[test]
fn threads_that_meet_the_same_data_key_share_one_call() {
    let fixture = Fixture::new("v2");
    let (_writer, writer) = fixture.server();
    let stored = writer.encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    let (_reader, reader) = fixture.server();
    let (reader, stored) = (&reader, &stored);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(move || assert_eq!(&*reader.decrypt(stored, CONTEXT).unwrap().bytes, PLAIN));
        }
    });
    assert_eq!(fixture.decrypt_calls(), 1);
}

#[test]
fn decrypt_works_on_the_thread_of_another_runtime() {
    let fixture = Fixture::new("v2");
    let (_writer, writer) = fixture.server();
    let stored = writer.encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let plain = runtime.block_on(async {
        let (_reader, reader) = fixture.server();
        reader.decrypt(&stored, CONTEXT).map(|found| found.bytes.into_owned())
    });
    assert_eq!(plain.as_deref(), Ok(PLAIN));
}

#[test]
fn malformed_objects_are_refused_without_a_call() {
    let fixture = Fixture::new("v2");
    let (_encryption, secrets) = fixture.server();
    let stored = secrets.encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    for length in b"k8s:enc:kms:v2:test:".len()..stored.len() {
        let error = secrets.decrypt(&stored[..length], CONTEXT).unwrap_err();
        assert!(error.to_string().starts_with("kms provider \"test\": "), "{error}");
    }
    let parts = object(&stored);
    for changed in [
        EncryptedObject { encrypted_data: Vec::new(), ..parts.clone() },
        EncryptedObject { key_id: String::new(), ..parts.clone() },
        EncryptedObject { encrypted_dek_source: vec![1; 1_025], ..parts.clone() },
        EncryptedObject { encrypted_dek_source_type: 7, ..parts.clone() },
    ] {
        assert!(!secrets.decrypt(&stored_object(&changed), CONTEXT).unwrap_err().is_transient());
    }
    let calls = fixture.decrypt_calls();
    let changed = EncryptedObject { encrypted_dek_source: vec![1; 60], ..parts };
    let error = secrets.decrypt(&stored_object(&changed), CONTEXT).unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("InvalidArgument"), "{error}");
    assert_eq!(fixture.decrypt_calls(), calls + 1);
}

#[test]
fn what_happens_to_a_plugin_and_its_keys_is_observed() {
    let fixture = Fixture::new("v2");
    let (_writer, writer) = fixture.server();
    let one = &key_id_hash("one")[..11];
    assert_eq!(
        fixture.recorder.take(),
        [
            "test /v2.KeyManagementService/Status OK".to_owned(),
            format!("test status {one}"),
            "generated true".to_owned(),
            "test /v2.KeyManagementService/Encrypt OK".to_owned(),
            "test has 1".to_owned(),
        ]
    );
    let stored = writer.encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    writer.decrypt(&stored, CONTEXT).unwrap();
    assert_eq!(
        fixture.recorder.take(),
        [format!("test to_storage {one}"), format!("test from_storage {one}")]
    );
    let (_reader, reader) = fixture.server();
    fixture.recorder.take();
    fixture.state.fail_with(Some(Code::Internal));
    reader.decrypt(&stored, CONTEXT).unwrap_err();
    fixture.state.fail_with(None);
    reader.decrypt(&stored, CONTEXT).unwrap();
    assert_eq!(
        fixture.recorder.take(),
        [
            "miss".to_owned(),
            "test /v2.KeyManagementService/Decrypt Internal".to_owned(),
            "miss".to_owned(),
            "test /v2.KeyManagementService/Decrypt OK".to_owned(),
            "test has 2".to_owned(),
            format!("test from_storage {one}"),
        ]
    );
}

#[test]
fn v1_value_is_read_by_the_same_and_by_another_server() {
    let fixture = Fixture::new("v1");
    let (encryption, secrets) = fixture.server();
    let stored = secrets.encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    let rest = stored.strip_prefix(b"k8s:enc:kms:v1:test:").unwrap();
    // A data key of 32 bytes with the nonce and tag of the plugin.
    assert_eq!(&rest[..2], &[0, 60]);
    assert_eq!(rest.len(), 2 + 60 + 12 + PLAIN.len() + 16);
    let calls = fixture.decrypt_calls();
    assert_eq!(&*secrets.decrypt(&stored, CONTEXT).unwrap().bytes, PLAIN);
    fixture.clock.advance(CHECK_AGAIN);
    encryption.check_plugins().unwrap();
    let next = secrets.encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    assert_ne!(next[..80], stored[..80], "each check makes a data key");
    for stored in [&stored, &next] {
        let decrypted = secrets.decrypt(stored, CONTEXT).unwrap();
        assert_eq!((&*decrypted.bytes, decrypted.is_stale), (PLAIN, false));
    }
    assert_eq!(fixture.decrypt_calls(), calls + 1, "the check decrypts its data key, reading needs no call");
    let (_other, other) = fixture.server();
    assert_eq!(&*other.decrypt(&stored, CONTEXT).unwrap().bytes, PLAIN);
    let error = other.decrypt(&stored, b"elsewhere").unwrap_err();
    assert!(error.to_string().contains("cipher: message authentication failed"), "{error}");
    for length in b"k8s:enc:kms:v1:test:".len()..stored.len() {
        assert!(other.decrypt(&stored[..length], CONTEXT).is_err());
    }
}

#[test]
fn v1_reads_aes_cbc_of_older_releases_as_stale() {
    let fixture = Fixture::new("v1");
    let (_encryption, secrets) = fixture.server();
    let key = crate::secret_key::SecretKey::new(vec![7; 32]);
    let encrypted_key = fixture.state.encrypt_for_tests(key.bytes());
    let cipher = crate::ciphers::AesCbc::new(key).unwrap();
    let stored = |plain: &[u8]| {
        let mut stored =
            [b"k8s:enc:kms:v1:test:\0".as_slice(), &[encrypted_key.len() as u8], &encrypted_key].concat();
        cipher.encrypt(plain, &mut stored).unwrap();
        stored
    };
    for plain in [PLAIN, b"k8s\0\x0a\x00"] {
        let value = stored(plain);
        let decrypted = secrets.decrypt(&value, CONTEXT).unwrap();
        assert_eq!((&*decrypted.bytes, decrypted.is_stale), (plain, true));
    }
    let value = stored(b"no object");
    let error = secrets.decrypt(&value, CONTEXT).unwrap_err();
    assert!(error.to_string().ends_with("message authentication failed"), "{error}");
}

#[test]
fn v1_writes_stop_when_the_plugin_is_gone_for_long() {
    let fixture = Fixture::new("v1");
    let (encryption, secrets) = fixture.server();
    fixture.state.fail_with(Some(Code::Unavailable));
    fixture.clock.advance(KMS_WRITE_TTL);
    let error = encryption.check_plugins().unwrap_err();
    let start = "kms-provider-0: failed to perform encrypt section of the healthz check for KMS Provider test, error: rpc \
                 error: code = Unavailable";
    assert!(error.starts_with(start), "{error}");
    secrets.encrypt(PLAIN, CONTEXT).unwrap();
    fixture.clock.advance(Duration::from_secs(1));
    assert!(secrets.encrypt(PLAIN, CONTEXT).unwrap_err().is_transient());
}

#[test]
fn abstract_socket_is_reached() {
    let state = Arc::new(PluginState::new(KeyFile::in_memory("one")));
    let name = format!("pilothouse-test-{}", std::process::id());
    let plugin = KmsPlugin::start_abstract(&name, state).unwrap();
    let provider = kms_provider("v2", "test", plugin.endpoint());
    let text = configuration("[secrets]", &format!("[{provider}]"));
    let settings = Settings { is_polling: false, ..Settings::default() };
    let encryption = Encryption::load(&text, settings).unwrap();
    encryption.check_plugins().unwrap();
    let secrets = encryption.for_resource("", "secrets");
    let stored = secrets.encrypt(PLAIN, CONTEXT).unwrap();
    assert_eq!(&*secrets.decrypt(&stored, CONTEXT).unwrap().bytes, PLAIN);
}

#[test]
fn keys_survive_a_restart_of_the_plugin_in_its_file() {
    let directory = TempDir::new().unwrap();
    let (socket, file) = (directory.path().join("kms.sock"), directory.path().join("keys"));
    let start = |key_id: &str| {
        let keys = KeyFile::open(file.clone(), key_id).unwrap();
        KmsPlugin::start(&socket, Arc::new(PluginState::new(keys))).unwrap()
    };
    let load = |plugin: &KmsPlugin| {
        let provider = kms_provider("v2", "test", plugin.endpoint());
        let text = configuration("[secrets]", &format!("[{provider}]"));
        let settings = Settings { is_polling: false, ..Settings::default() };
        Encryption::load(&text, settings).unwrap().for_resource("", "secrets")
    };
    let plugin = start("one");
    let stored = load(&plugin).encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    drop(plugin);
    let plugin = start("two");
    let decrypted = load(&plugin).decrypt(&stored, CONTEXT).map(|found| found.is_stale);
    assert_eq!(decrypted, Ok(true));
    drop(plugin);
    let plugin = start("one");
    let stored = load(&plugin).encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    assert_eq!(
        (plugin.state.key_count(), object(&stored).key_id.as_str()),
        (2, "two"),
        "the newest key stays"
    );
}
