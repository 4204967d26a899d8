//! The etcd of a copy.

use std::sync::Arc;

use pilothouse_api::catalog::build::Builtin;
use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_encryption::Encryption;
use pilothouse_etcd::Client;
use pilothouse_etcd_layout::values::{ValueCodec, ValueOptions};
use pilothouse_etcd_log::{CopyEntry, CopySource, EtcdLog, EtcdLogOptions, Types};
use pilothouse_types::clock::Clock;
use pilothouse_types::object::Object;
use tokio::runtime::Handle;

use super::{Failure, Options};
use crate::live_index::defined_type::defined_type;
use crate::live_index::stored_object::CUSTOM_RESOURCE_DEFINITIONS;

/// An etcd, and what objects in it mean.
pub(super) struct EtcdSide {
    pub(super) log: EtcdLog,
    pub(super) types: Arc<Types>,
    registry: Arc<Registry>,
}

impl EtcdSide {
    /// The etcd with these servers. It is not connected to yet.
    pub(super) fn new(
        options: &Options,
        servers: Vec<String>,
        encryption: Option<Arc<Encryption>>,
    ) -> Result<EtcdSide, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::Settings(error.to_string());
        let settings = options.etcd.settings_for(servers);
        let client = Client::new(settings, Handle::current()).map_err(|error| failed(&error))?;
        let registry = Arc::new(Registry::builtin().map_err(|error| failed(&error))?);
        let builtin = Builtin::load().map_err(|error| failed(&error))?;
        let types = Arc::new(Types::new(options.etcd.prefix(), &builtin));
        let media_type = options.etcd.storage_media_type;
        let value_options = ValueOptions { media_type, ..ValueOptions::default() };
        let codec = ValueCodec::new(Arc::clone(&registry), value_options, EnabledFeatures::RELEASE);
        let log_options = EtcdLogOptions { encryption, ..EtcdLogOptions::new(codec, Clock::system()) };
        let log = EtcdLog::new(client, Arc::clone(&types), log_options);
        Ok(EtcdSide { log, types, registry })
    }

    /// Makes the type of a definition known. Objects of a definition that cannot be read belong to no resource.
    pub(super) fn add_type(&self, definition: &Object) {
        if let Some(resource) = defined_type(definition, &self.registry) {
            self.types.add(&resource);
        }
    }

    /// Makes the types of all definitions known that are in etcd.
    pub(super) async fn add_types(&self, source: &CopySource) -> Result<(), Failure> {
        let Some(mut pages) = source.of_type(&CUSTOM_RESOURCE_DEFINITIONS.type_name()) else { return Ok(()) };
        while let Some(page) = pages.next().await? {
            for entry in page.entries {
                if let CopyEntry::Object(copied) = entry
                    && let Ok(draft) = copied.draft
                {
                    self.add_type(&Object::new(draft, copied.revision));
                }
            }
        }
        Ok(())
    }
}
