use pilothouse_types::lock::Lock;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::observer::NoObserver;
use crate::testing::{configuration, keyed_provider};

const CONTEXT: &[u8] = b"/registry/secrets/default/a";
const PLAIN: &[u8] = br#"{"kind":"Secret"}"#;

fn build(text: &[u8]) -> Result<Transformers, String> {
    build_with(text, &(Arc::new(NoObserver) as Arc<dyn Observer>))
}

fn build_with(text: &[u8], observer: &Arc<dyn Observer>) -> Result<Transformers, String> {
    let configuration = Configuration::parse(text, false)?;
    let surroundings = Surroundings { clock: &Clock::system(), observer, allows_kms_v1: false };
    Transformers::new(&configuration, &surroundings)
}

fn secrets(providers: &[String]) -> Arc<ResourceTransformer> {
    let text = configuration("[secrets]", &format!("[{}]", providers.join(", ")));
    let transformers = build(&text).unwrap();
    transformers.for_resource("", "secrets").unwrap()
}

fn identity() -> String {
    "{identity: {}}".to_owned()
}

#[test]
fn resource_is_found_by_name_then_group_then_any() {
    let entry = |resources: &str, name: &str| {
        format!("- resources: {resources}\n  providers: [{}]\n", keyed_provider("aesgcm", name, 1))
    };
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n{}{}{}",
        entry("[secrets, deployments.apps]", "exact"),
        entry("['*.apps', '*.']", "group"),
        entry("['*.*']", "any"),
    );
    let transformers = build(text.as_bytes()).unwrap();
    for (group, resource, name) in [
        ("", "secrets", "exact"),
        ("apps", "deployments", "exact"),
        ("apps", "statefulsets", "group"),
        ("", "configmaps", "group"),
        ("example.com", "secrets", "any"),
    ] {
        let transformer = transformers.for_resource(group, resource).unwrap();
        let stored = transformer.encrypt(PLAIN, CONTEXT).unwrap();
        let prefix = format!("k8s:enc:aesgcm:v1:{name}:");
        assert!(stored.starts_with(prefix.as_bytes()), "{resource}.{group}: {prefix}");
    }
    let some = build(&configuration("[secrets]", "[{identity: {}}]")).unwrap();
    assert!(some.for_resource("", "configmaps").is_none() && some.for_resource("apps", "secrets").is_none());
}

#[test]
fn first_provider_writes_and_all_read() {
    let (old, new) = (keyed_provider("aescbc", "old", 1), keyed_provider("secretbox", "new", 2));
    let before = secrets(&[identity()]);
    let first = secrets(&[old.clone(), identity()]);
    let second = secrets(&[new.clone(), old, identity()]);
    let without_old = secrets(&[new, identity()]);
    let clear = before.encrypt(PLAIN, CONTEXT).unwrap();
    assert!(matches!(clear, Cow::Borrowed(PLAIN)));
    let by_old = first.encrypt(PLAIN, CONTEXT).unwrap();
    let by_new = second.encrypt(PLAIN, CONTEXT).unwrap();
    assert!(
        by_old.starts_with(b"k8s:enc:aescbc:v1:old:") && by_new.starts_with(b"k8s:enc:secretbox:v1:new:")
    );
    for (stored, is_stale) in [(&clear, true), (&by_old, true), (&by_new, false)] {
        let decrypted = second.decrypt(stored, CONTEXT).unwrap();
        assert_eq!((&*decrypted.bytes, decrypted.is_stale), (PLAIN, is_stale));
    }
    assert!(!before.decrypt(&clear, CONTEXT).unwrap().is_stale);
    let error = without_old.decrypt(&by_old, CONTEXT).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no matching prefix found: no provider of secrets has the prefix \"k8s:enc:aescbc:v1:old:\""
    );
    assert!(!error.is_transient());
}

#[test]
fn identity_never_returns_encrypted_data() {
    let aesgcm = keyed_provider("aesgcm", "a", 1);
    let stored = secrets(std::slice::from_ref(&aesgcm)).encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    let error = secrets(&[identity()]).decrypt(&stored, CONTEXT).unwrap_err();
    assert!(matches!(error, DecryptError::NoMatchingPrefix(_)), "{error}");
    // Before the provider that knows the data, it is skipped.
    let decrypted =
        secrets(&[identity(), aesgcm.clone()]).decrypt(&stored, CONTEXT).unwrap().bytes.into_owned();
    assert_eq!(decrypted, PLAIN);
    let error = secrets(&[aesgcm]).decrypt(PLAIN, CONTEXT).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no matching prefix found: the data is not encrypted, and secrets has no identity provider"
    );
}

#[test]
fn nothing_is_stored_in_clear_text_without_a_provider() {
    let entry = ResourceProviders { resources: vec!["secrets".to_owned()], providers: Vec::new() };
    let observer = Arc::new(NoObserver) as Arc<dyn Observer>;
    let surroundings = Surroundings { clock: &Clock::system(), observer: &observer, allows_kms_v1: false };
    let transformers = Transformers::new(&Configuration { resources: vec![entry] }, &surroundings).unwrap();
    let error = transformers.for_resource("", "secrets").unwrap().encrypt(PLAIN, CONTEXT).unwrap_err();
    assert_eq!(error.to_string(), "no provider is configured for secrets");
    assert!(!error.is_transient());
}

#[test]
fn debug_output_has_no_plain_text() {
    let decrypted = secrets(&[identity()]).decrypt(PLAIN, CONTEXT).map(|found| format!("{found:?}"));
    assert_eq!(decrypted.as_deref(), Ok("Decrypted { is_stale: false, .. }"));
}

#[test]
fn keys_are_found_by_name_and_older_ones_are_stale() {
    let provider = |keys: &[(&str, u8)]| {
        use base64::Engine as _;
        let secret = |byte: u8| base64::engine::general_purpose::STANDARD.encode([byte; 32]);
        let keys: Vec<String> =
            keys.iter().map(|(name, byte)| format!("{{name: {name}, secret: {}}}", secret(*byte))).collect();
        secrets(&[format!("{{aesgcm: {{keys: [{}]}}}}", keys.join(", "))])
    };
    let old = provider(&[("one", 1)]);
    let stored = old.encrypt(PLAIN, CONTEXT).unwrap();
    let decrypted = provider(&[("two", 2), ("one", 1)]).decrypt(&stored, CONTEXT).map(|found| found.is_stale);
    assert_eq!(decrypted, Ok(true));
    // Two keys of the same name: each is tried.
    assert_eq!(
        provider(&[("one", 2), ("one", 1)]).decrypt(&stored, CONTEXT).map(|found| found.is_stale),
        Ok(true)
    );
    let error = provider(&[("one", 2)]).decrypt(&stored, CONTEXT).unwrap_err();
    assert_eq!(error.to_string(), "aesgcm key \"one\": cipher: message authentication failed");
    let error = provider(&[("two", 2)]).decrypt(&stored, CONTEXT).unwrap_err();
    assert_eq!(
        error.to_string(),
        "aesgcm: no matching key was found for the provided AES transformer: \"one\""
    );
    assert!(!error.is_transient());
}

#[test]
fn later_provider_of_the_same_kind_is_tried() {
    let (first, second) = (keyed_provider("secretbox", "a", 1), keyed_provider("secretbox", "b", 2));
    let stored = secrets(std::slice::from_ref(&second)).encrypt(PLAIN, CONTEXT).unwrap().into_owned();
    let decrypted = secrets(&[first, second]).decrypt(&stored, CONTEXT).map(|found| found.is_stale);
    assert_eq!(decrypted, Ok(true));
}

#[test]
fn kms_v1_needs_its_feature_gate() {
    let text = configuration("[secrets]", "[{kms: {name: a, endpoint: 'unix:///a'}}]");
    let error = build(&text).unwrap_err();
    assert!(error.contains("Set --feature-gates=KMSv1=true"), "{error}");
}

/// Writes down the transformations.
#[derive(Default)]
struct Recorder(Lock<Vec<String>>);

impl Observer for Recorder {
    fn transformation(&self, transformation: &Transformation<'_>) {
        let Transformation { resource, direction, prefix, key, status, .. } = transformation;
        let key = key.unwrap_or_default();
        self.0.lock().push(format!("{resource} {} {prefix}|{key} {status}", direction.label()));
    }
}

#[test]
fn transformations_are_observed() {
    let recorder = Arc::new(Recorder::default());
    let providers = format!(
        "[{}, {}, {{identity: {{}}}}]",
        keyed_provider("aesgcm", "a", 1),
        keyed_provider("secretbox", "b", 1)
    );
    let transformers =
        build_with(&configuration("['*.apps']", &providers), &(recorder.clone() as Arc<dyn Observer>))
            .unwrap();
    let transformer = transformers.for_resource("apps", "deployments").unwrap();
    let stored = transformer.encrypt(PLAIN, CONTEXT).unwrap();
    transformer.decrypt(&stored, CONTEXT).unwrap();
    transformer.decrypt(&stored, b"elsewhere").unwrap_err();
    transformer.decrypt(PLAIN, CONTEXT).unwrap();
    transformer.decrypt(b"k8s:enc:kms:v2:x:y", CONTEXT).unwrap_err();
    assert_eq!(
        *recorder.0.lock(),
        [
            "deployments.apps to_storage k8s:enc:aesgcm:v1:|a: OK",
            "deployments.apps from_storage k8s:enc:aesgcm:v1:|a: OK",
            "deployments.apps from_storage k8s:enc:aesgcm:v1:|a: unknown-non-grpc",
            "deployments.apps from_storage identity| OK",
            "deployments.apps from_storage unknown| unknown-non-grpc",
        ]
    );
}

#[test]
fn only_the_prefix_of_data_is_shown() {
    for (stored, shown) in [
        (&b"k8s:enc:aescbc:v1:key1:\x01\x02:secret:"[..], "k8s:enc:aescbc:v1:key1:"),
        (b"k8s:enc:kms:v2:name:\x0a", "k8s:enc:kms:v2:name:"),
        (b"k8s:enc:aescbc:v1:no colon follows", "k8s:enc:aescbc:v1:"),
        (b"k8s:enc:a\xffb:v1:", "k8s:enc:"),
        (b"k8s:enc:", "k8s:enc:"),
    ] {
        assert_eq!(shown_prefix(stored), shown);
    }
    let long = [b"k8s:enc:aescbc:v1:".as_slice(), &[b'n'; 500], b":"].concat();
    assert_eq!(shown_prefix(&long), "k8s:enc:aescbc:v1:");
}

proptest! {
    #[test]
    fn any_stored_bytes_are_answered(kind in 0..5_usize, data in vec(any::<u8>(), 0..100)) {
        let prefix = ["", "k8s:enc:", "k8s:enc:aescbc:v1:a:", "k8s:enc:aesgcm:v1:a:", "k8s:enc:secretbox:v1:a:"][kind];
        let transformer = secrets(&[
            keyed_provider("aescbc", "a", 1),
            keyed_provider("aesgcm", "a", 1),
            keyed_provider("secretbox", "a", 1),
        ]);
        let stored = [prefix.as_bytes(), &data].concat();
        let result = transformer.decrypt(&stored, CONTEXT);
        prop_assert!(kind == 2 || result.is_err());
    }
}
