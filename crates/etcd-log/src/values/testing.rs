//! What the tests of this crate share.

use std::sync::{Arc, LazyLock};

use pilothouse_api::catalog::build::Builtin;
use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_encryption::testing::configuration;
use pilothouse_encryption::{Encryption, Settings};
use pilothouse_etcd_layout::prefix::EtcdPrefix;
use pilothouse_etcd_layout::values::{ValueCodec, ValueOptions};
use pilothouse_types::object::{Draft, Key, TypeName};

use super::Values;
use crate::types::Types;

/// A Secret in clear text.
pub(crate) const CLEAR: &[u8] = br#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"default"},"data":{"password":"aHVudGVyMg=="}}"#;

/// Reading the schemas takes a while.
static SHARED: LazyLock<(Arc<Registry>, Arc<Types>)> = LazyLock::new(|| {
    let types = Types::new(EtcdPrefix::default(), &Builtin::load().unwrap());
    (Arc::new(Registry::builtin().unwrap()), Arc::new(types))
});

/// The values of a server that encrypts Secrets with these providers, in YAML flow style and with commas between them; or of one
/// without a configuration.
pub(crate) fn values(providers: Option<&str>) -> Values {
    let (registry, types) = &*SHARED;
    let codec = ValueCodec::new(Arc::clone(registry), ValueOptions::default(), EnabledFeatures::RELEASE);
    let encryption = providers.map(|providers| {
        let file = configuration("[secrets]", &format!("[{providers}]"));
        let settings = Settings { is_polling: false, ..Settings::default() };
        Arc::new(Encryption::load(&file, settings).unwrap())
    });
    Values::new(Arc::clone(types), codec, encryption)
}

/// The type of Secrets.
pub(crate) fn secrets() -> TypeName {
    TypeName::new("secrets")
}

/// The key of a Secret.
pub(crate) fn key(name: &str) -> Key {
    Key::namespaced("default", name)
}

/// A Secret.
pub(crate) fn draft() -> Draft {
    values(None).decode(&secrets(), &key("a"), CLEAR).unwrap().draft
}
