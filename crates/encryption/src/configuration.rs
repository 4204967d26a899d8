//! The file of `--encryption-provider-config`: an `EncryptionConfiguration` of `apiserver.config.k8s.io/v1`.
//!
//! [`Configuration::parse`] reads it strictly, sets defaults and applies the reference's rules, with its messages in its order. Two
//! more rules are checked when the providers are made: [`Configuration::by_resource`] and the gate of KMS v1.

mod decode;
mod duration;
mod validation;

use std::collections::HashMap;
use std::time::Duration;

use pilothouse_apimachinery::document;
use pilothouse_apimachinery::field::quoted;

use crate::limits::CONFIGURATION_BYTES;
use crate::secret_key::SecretKey;

const KIND: &str = "EncryptionConfiguration";
const VERSIONS: [&str; 1] = ["apiserver.config.k8s.io/v1"];
/// Any resource of a group, and any group.
const ANY: &str = "*";

/// A valid configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Resources with their providers. Earlier entries win.
    pub resources: Vec<ResourceProviders>,
}

/// Some resources and the providers of all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceProviders {
    /// The resources as they are written: `secrets`, `deployments.apps`, `*.apps`, `*.` or `*.*`.
    pub resources: Vec<String>,
    /// The first one encrypts, all of them decrypt.
    pub providers: Vec<ProviderConfiguration>,
}

/// The settings of one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderConfiguration {
    /// AES-GCM, with keys.
    AesGcm(Vec<NamedKey>),
    /// AES-CBC, with keys.
    AesCbc(Vec<NamedKey>),
    /// Secretbox, with keys.
    Secretbox(Vec<NamedKey>),
    /// No encryption.
    Identity,
    /// A KMS plugin.
    Kms(KmsConfiguration),
}

/// A key with the name under which values refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedKey {
    /// The name.
    pub name: String,
    /// The decoded key.
    pub secret: SecretKey,
}

/// How a KMS plugin is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KmsConfiguration {
    /// The version of its API.
    pub version: KmsVersion,
    /// The name under which values refer to it.
    pub name: String,
    /// Data keys that are remembered; negative for none. Only for v1.
    pub cache_size: Option<i32>,
    /// The URL of its socket.
    pub endpoint: String,
    /// How long a call may take.
    pub timeout: Duration,
}

/// A version of the KMS API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KmsVersion {
    /// `v1`, whose protocol is called `v1beta1`.
    V1,
    /// `v2`.
    V2,
}

/// A resource with its group, or a pattern of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupResource<'a> {
    /// The group; empty for the core group.
    pub group: &'a str,
    /// The resource.
    pub resource: &'a str,
}

impl<'a> GroupResource<'a> {
    /// Splits `resource.group` at the first dot.
    pub fn parse(text: &'a str) -> GroupResource<'a> {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        GroupResource { group, resource }
    }

    /// All resources of the same group.
    pub fn any_in_group(self) -> GroupResource<'a> {
        GroupResource { resource: ANY, ..self }
    }

    /// All resources of all groups.
    pub fn any() -> GroupResource<'static> {
        GroupResource { group: ANY, resource: ANY }
    }
}

impl std::fmt::Display for GroupResource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.group, self.resource) {
            ("", ANY) => f.write_str("*."),
            ("", resource) => f.write_str(resource),
            (group, resource) => write!(f, "{resource}.{group}"),
        }
    }
}

impl Configuration {
    /// Reads a file and reports all errors. If it is going to be reloaded, the names of all KMS plugins must differ.
    pub fn parse(text: &[u8], is_reloaded: bool) -> Result<Configuration, String> {
        if text.is_empty() {
            return Err("encryption provider configuration file is empty".to_owned());
        }
        if text.len() > CONFIGURATION_BYTES {
            return Err(format!("more than {CONFIGURATION_BYTES} bytes"));
        }
        let file = document::parse(text)?;
        document::check_kind(&file, KIND, &VERSIONS)?;
        let raw = decode::decode(&file)?;
        validation::validate(raw, is_reloaded)
    }

    /// The positions of the entries for each resource, as they are written. A rule that could never apply, because an earlier entry
    /// has a pattern that includes it, is an error.
    pub fn by_resource(&self) -> Result<HashMap<GroupResource<'_>, Vec<usize>>, String> {
        let mut positions: HashMap<GroupResource<'_>, Vec<usize>> = HashMap::new();
        for (index, entry) in self.resources.iter().enumerate() {
            for resource in &entry.resources {
                let resource = GroupResource::parse(resource);
                let masks = [resource.any_in_group(), GroupResource::any()];
                if let Some(mask) = masks.iter().find(|mask| positions.contains_key(mask)) {
                    let (resource, mask) = (quoted(&resource.to_string()), quoted(&mask.to_string()));
                    return Err(format!("resource {resource} is masked by earlier rule {mask}"));
                }
                positions.entry(resource).or_default().push(index);
            }
        }
        Ok(positions)
    }
}

#[cfg(test)]
mod tests;
