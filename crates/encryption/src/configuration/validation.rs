//! The reference's rules for the file, with its messages in its order.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use pilothouse_apimachinery::document::FieldReader;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};

use super::decode::{RawKey, RawKms, RawProvider, RawResource};
use super::{
    ANY, Configuration, GroupResource, KmsConfiguration, KmsVersion, NamedKey, ProviderConfiguration,
    ResourceProviders,
};
use crate::secret_key::SecretKey;

const AES_KEY_BYTES: &[usize] = &[16, 24, 32];
const SECRETBOX_KEY_BYTES: &[usize] = &[32];
/// Resources of the reference's storage that clients cannot see.
const INTERNAL_RESOURCES: [&str; 3] =
    ["apiserveripinfo", "serviceipallocations", "servicenodeportallocations"];
/// Base64 as Go reads it: the unused bits of the last digit may be set.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);
/// What is shown of a secret that is wrong.
const REDACTED: &str = "\"REDACTED\"";

/// Checks the decoded file.
pub fn validate(entries: Vec<RawResource>, is_reloaded: bool) -> Result<Configuration, String> {
    let mut validator = Validator { is_reloaded, ..Validator::default() };
    let root = FieldPath::new("resources");
    if entries.is_empty() {
        validator.error(FieldError::required(&root, &format!("at least one {root} is required")));
    }
    let entries = entries.into_iter().enumerate();
    let resources = entries.map(|(index, entry)| validator.resource(entry, &root.index(index))).collect();
    validator.reader.result()?;
    Ok(Configuration { resources })
}

#[derive(Default)]
struct Validator {
    reader: FieldReader,
    is_reloaded: bool,
    kms_names: BTreeSet<String>,
}

impl Validator {
    #[expect(clippy::needless_pass_by_value, reason = "every caller has just made it")]
    fn error(&mut self, error: FieldError) {
        self.reader.push_error(&error);
    }

    fn resource(&mut self, entry: RawResource, path: &FieldPath) -> ResourceProviders {
        let (resources_path, providers_path) = (path.child("resources"), path.child("providers"));
        if entry.resources.is_empty() {
            let reason = format!("at least one {resources_path} is required");
            self.error(FieldError::required(&resources_path, &reason));
        }
        self.overlap(&entry.resources, &resources_path);
        for (index, resource) in entry.resources.iter().enumerate() {
            if let Some(reason) = name_error(resource) {
                self.error(FieldError::invalid(&resources_path.index(index), &quoted(resource), reason));
            }
        }
        if entry.providers.is_empty() {
            let reason = format!("at least one {providers_path} is required");
            self.error(FieldError::required(&providers_path, &reason));
        }
        let providers = entry.providers.into_iter().enumerate();
        let providers =
            providers.filter_map(|(index, provider)| self.provider(provider, &providers_path.index(index)));
        let providers = providers.collect();
        ResourceProviders { resources: entry.resources, providers }
    }

    fn overlap(&mut self, resources: &[String], path: &FieldPath) {
        let parsed: Vec<GroupResource<'_>> =
            resources.iter().map(|resource| GroupResource::parse(resource)).collect();
        let different: BTreeSet<(&str, &str)> =
            parsed.iter().map(|resource| (resource.group, resource.resource)).collect();
        let text = || {
            let resources: Vec<String> = resources.iter().map(|resource| quoted(resource)).collect();
            format!("[]string{{{}}}", resources.join(", "))
        };
        if different.len() < parsed.len() {
            let reason = "the same resource cannot be specified multiple times";
            self.error(FieldError::invalid(path, &text(), reason));
        }
        let overlaps = |first: usize, second: usize| {
            let (one, other) = (parsed[first], parsed[second]);
            first != second
                && (one == GroupResource::any()
                    || (one.group == other.group && (one.resource == ANY || other.resource == ANY)))
        };
        let pairs = (0..parsed.len())
            .flat_map(|first| (0..parsed.len()).map(move |second| (first, second)))
            .filter(|(first, second)| overlaps(*first, *second));
        // The first pair of equal resources is only reported as a duplicate.
        let first_duplicate = (0..parsed.len())
            .flat_map(|first| (0..parsed.len()).map(move |second| (first, second)))
            .find(|(first, second)| first != second && parsed[*first] == parsed[*second]);
        if pairs.into_iter().any(|pair| Some(pair) != first_duplicate) {
            let reason = "using overlapping resources such as 'secrets' and '*.' in the same resource list is not \
                          allowed as they will be masked";
            self.error(FieldError::invalid(path, &text(), reason));
        }
    }

    fn provider(&mut self, provider: RawProvider, path: &FieldPath) -> Option<ProviderConfiguration> {
        let kinds = [
            ("kms", provider.kms.is_some()),
            ("aesgcm", provider.aesgcm.is_some()),
            ("aescbc", provider.aescbc.is_some()),
            ("secretbox", provider.secretbox.is_some()),
            ("identity", provider.identity),
        ];
        let given: Vec<&str> =
            kinds.iter().filter(|(_, is_given)| *is_given).map(|(kind, _)| *kind).collect();
        // The kinds alone, because the settings contain keys.
        let text = format!("{{{}}}", given.join(", "));
        match given.len() {
            0 => {
                let reason = "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, \
                              Secretbox, Identity";
                self.error(FieldError::invalid(path, &text, reason));
                return None;
            }
            1 => {}
            _ => {
                let reason = "more than one provider specified in a single element, should split into different \
                              list elements";
                self.error(FieldError::invalid(path, &text, reason));
            }
        }
        if let Some(kms) = provider.kms {
            return self.kms(kms, &path.child("kms")).map(ProviderConfiguration::Kms);
        }
        if let Some(keys) = provider.aesgcm {
            let keys = self.keys(keys, &path.child("aesgcm").child("keys"), AES_KEY_BYTES);
            return Some(ProviderConfiguration::AesGcm(keys));
        }
        if let Some(keys) = provider.aescbc {
            let keys = self.keys(keys, &path.child("aescbc").child("keys"), AES_KEY_BYTES);
            return Some(ProviderConfiguration::AesCbc(keys));
        }
        if let Some(keys) = provider.secretbox {
            let keys = self.keys(keys, &path.child("secretbox").child("keys"), SECRETBOX_KEY_BYTES);
            return Some(ProviderConfiguration::Secretbox(keys));
        }
        Some(ProviderConfiguration::Identity)
    }

    fn keys(&mut self, keys: Vec<RawKey>, path: &FieldPath, lengths: &[usize]) -> Vec<NamedKey> {
        if keys.is_empty() {
            self.error(FieldError::required(path, "at least one keys is required"));
        }
        let keys = keys.into_iter().enumerate();
        keys.filter_map(|(index, key)| self.key(key, &path.index(index), lengths)).collect()
    }

    fn key(&mut self, key: RawKey, path: &FieldPath, lengths: &[usize]) -> Option<NamedKey> {
        if key.name.is_empty() {
            self.error(FieldError::required(&path.child("name"), "name is a mandatory field for a key"));
        }
        let path = path.child("secret");
        if key.secret.is_empty() {
            self.error(FieldError::required(&path, "secret is a mandatory field for a key"));
            return None;
        }
        // Go skips line ends.
        let digits: Vec<u8> = key.secret.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
        let Ok(secret) = BASE64.decode(digits) else {
            self.error(FieldError::invalid(&path, REDACTED, "secrets must be base64 encoded"));
            return None;
        };
        let secret = SecretKey::new(secret);
        if !lengths.contains(&secret.len()) {
            let expected: Vec<String> = lengths.iter().map(ToString::to_string).collect();
            let reason = format!(
                "secret is not of the expected length, got {}, expected one of [{}]",
                secret.len(),
                expected.join(" ")
            );
            self.error(FieldError::invalid(&path, REDACTED, &reason));
            return None;
        }
        Some(NamedKey { name: key.name, secret })
    }

    fn kms(&mut self, kms: RawKms, path: &FieldPath) -> Option<KmsConfiguration> {
        self.kms_name(&kms, &path.child("name"));
        if kms.timeout.is_negative || kms.timeout.length.is_zero() {
            let reason = "timeout should be a positive value";
            self.error(FieldError::invalid(&path.child("timeout"), &kms.timeout_text, reason));
        }
        self.kms_endpoint(&kms.endpoint, &path.child("endpoint"));
        let size_path = path.child("cachesize");
        match kms.cache_size {
            Some(size) if kms.version != "v1" => {
                let reason = "cachesize is not supported in v2";
                self.error(FieldError::invalid(&size_path, &size.to_string(), reason));
            }
            Some(0) => {
                let reason = "cachesize should be a positive value, or negative to disable";
                self.error(FieldError::invalid(&size_path, "0", reason));
            }
            _ => {}
        }
        let version = match kms.version.as_str() {
            "v1" => Some(KmsVersion::V1),
            "v2" => Some(KmsVersion::V2),
            version => {
                // The reference names the field where it means the version.
                let reason =
                    "unsupported apiVersion apiVersion for KMS provider, only v1 and v2 are supported";
                self.error(FieldError::invalid(&path.child("apiVersion"), &quoted(version), reason));
                None
            }
        };
        self.kms_names.insert(kms.name.clone());
        let (name, cache_size, endpoint) = (kms.name, kms.cache_size, kms.endpoint);
        Some(KmsConfiguration { version: version?, name, cache_size, endpoint, timeout: kms.timeout.length })
    }

    fn kms_name(&mut self, kms: &RawKms, path: &FieldPath) {
        let name = &kms.name;
        if name.is_empty() {
            self.error(FieldError::required(path, "name is a mandatory field for a provider"));
        }
        if kms.version != "v1" && name.contains(':') {
            let reason = format!("invalid KMS provider name {name}, must not contain ':'");
            self.error(FieldError::invalid(path, &quoted(name), &reason));
        }
        if (self.is_reloaded || kms.version != "v1") && self.kms_names.contains(name) {
            let reason = format!("duplicate KMS provider name {name}, names must be unique");
            self.error(FieldError::invalid(path, &quoted(name), &reason));
        }
    }

    fn kms_endpoint(&mut self, endpoint: &str, path: &FieldPath) {
        if endpoint.is_empty() {
            let reason = "endpoint is a mandatory field for a kms";
            return self.error(FieldError::invalid(path, "\"\"", reason));
        }
        match url_scheme(endpoint) {
            Ok("unix") => {}
            Ok(scheme) => {
                let scheme = quoted(scheme);
                let reason = format!("unsupported scheme {scheme} for KMS provider, only unix is supported");
                self.error(FieldError::invalid(path, &quoted(endpoint), &reason));
            }
            Err(error) => {
                let reason =
                    format!("invalid endpoint for kms provider, error: parse {}: {error}", quoted(endpoint));
                self.error(FieldError::invalid(path, &quoted(endpoint), &reason));
            }
        }
    }
}

/// The scheme of a URL in lower case, as Go's parser finds it; empty if there is none.
fn url_scheme(url: &str) -> Result<&str, &'static str> {
    if url.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return Err("net/url: invalid control character in URL");
    }
    let Some((scheme, _)) = url.split_once(':') else { return Ok("") };
    if scheme.is_empty() {
        return Err("missing protocol scheme");
    }
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    match is_scheme {
        true if scheme.eq_ignore_ascii_case("unix") => Ok("unix"),
        true => Ok(scheme),
        false if scheme.contains('/') => Ok(""),
        false => Err("first path segment in URL cannot contain colon"),
    }
}

/// Why a resource cannot be encrypted.
fn name_error(resource: &str) -> Option<&'static str> {
    let GroupResource { group, resource: name } = GroupResource::parse(resource);
    if resource.chars().any(char::is_uppercase) {
        Some("resource name should not contain capital letters")
    } else if resource == ANY {
        Some("use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources")
    } else if INTERNAL_RESOURCES.contains(&resource) {
        Some("resources which do not have REST API/s cannot be encrypted")
    } else if group == "events.k8s.io" {
        Some(
            "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in \
             the config file",
        )
    } else if group == "extensions" {
        Some("'extensions' group has been removed and cannot be used for encryption")
    } else if group == ANY && name != ANY {
        Some("encrypting the same resource across groups is not supported")
    } else {
        None
    }
}
