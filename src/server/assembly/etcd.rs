//! Opens etcd as the storage of objects.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use actix::Arbiter;
use pilothouse_actors::directory::{Options, Stores as Storage};
use pilothouse_actors::shared_log::{SharedLog as _, SharedLogError, decode_object};
use pilothouse_actors::shared_storage::{self, StartError as SharedStartError};
use pilothouse_api::catalog::build::Builtin;
use pilothouse_api::custom::definition::resources;
use pilothouse_api::gates::CBOR_SERVING_AND_STORAGE;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_encryption::Encryption;
use pilothouse_etcd::Client;
use pilothouse_etcd_layout::values::{ValueCodec, ValueOptions};
use pilothouse_etcd_log::{EtcdForms, EtcdLog, EtcdLogOptions, Types};
use pilothouse_kinds::definition::status;
use pilothouse_types::object::TypeName;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::{BUILTIN, enabled_features};
use crate::apiextensions::shared_types::SharedTypes;
use crate::config::etcd::EtcdFlags;
use crate::limits::{STORAGE_PROBE_TIMEOUT, STORAGE_RETRY_MESSAGE_INTERVAL, STORAGE_RETRY_PAUSE};
use crate::live_index::stored_object::{CUSTOM_RESOURCE_DEFINITIONS, StoredObject};
use crate::server::application::{StartContext, StartError};

/// The storage in etcd, and what belongs to it.
pub(super) struct EtcdStorage {
    pub(super) storage: Storage,
    pub(super) log: EtcdLog,
    pub(super) types: SharedTypes,
    /// The connections.
    pub(super) thread: EtcdThread,
}

/// The thread on which the connections to etcd live, so that they wait for no request. It ends with this.
pub(super) struct EtcdThread(Arbiter);

impl EtcdThread {
    /// Starts it, and returns the runtime on it.
    async fn start() -> io::Result<(EtcdThread, Handle)> {
        let thread = EtcdThread(Arbiter::try_new()?);
        let (sender, receiver) = oneshot::channel();
        thread.0.spawn(async move {
            let _gone = sender.send(Handle::current());
        });
        let runtime = receiver.await.map_err(|_| io::Error::other("the thread has ended"))?;
        Ok((thread, runtime))
    }
}

impl Drop for EtcdThread {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Opens etcd, as the flags say. Waits for it as long as they allow.
pub(super) async fn open(
    context: &StartContext,
    flags: &EtcdFlags,
    registry: &Arc<Registry>,
    options: Options,
    encryption: Option<Arc<Encryption>>,
) -> Result<EtcdStorage, StartError> {
    let config = &context.config;
    if !flags.overrides().unwrap_or_default().is_empty() {
        let reason = "one cluster of etcd has all objects so far";
        return Err(StartError::flag("--etcd-servers-overrides")(&reason));
    }
    let failed = StartError::part("etcd");
    let (thread, runtime) = EtcdThread::start().await.map_err(|error| failed(&error))?;
    let client = Client::new(flags.client_settings(), runtime).map_err(|error| failed(&error))?;
    let builtin = Builtin::load().map_err(|error| StartError::part(BUILTIN)(&error))?;
    let types = Arc::new(Types::new(flags.prefix(), &builtin));
    let value_options = ValueOptions {
        media_type: flags.access.storage_media_type,
        custom_cbor: config.gates().enabled(CBOR_SERVING_AND_STORAGE),
    };
    let codec = ValueCodec::new(Arc::clone(registry), value_options, enabled_features(config));
    let log = EtcdLog::new(
        client,
        Arc::clone(&types),
        EtcdLogOptions {
            codec,
            encryption,
            event_ttl: Some(config.storage.event_ttl),
            lease_reuse: flags.lease_reuse(),
            clock: context.clock.clone(),
        },
    );
    let definitions = Definitions { types: &types, registry };
    let storage = start(&log, &definitions, &options, flags.storage_initialization_timeout).await?;
    let interval = config.storage.etcd_compaction_interval;
    if !interval.is_zero() {
        thread.0.spawn(log.clone().compact_every(interval));
    }
    let Some(type_changes) = storage.type_changes.clone() else { return Err(failed(&"it is not followed")) };
    Ok(EtcdStorage { storage, log, types: SharedTypes { type_changes, types }, thread })
}

/// The definitions of custom types that are in etcd at the start.
struct Definitions<'a> {
    types: &'a Types,
    registry: &'a Arc<Registry>,
}

impl Definitions<'_> {
    /// Adds the types of all definitions that are served, before anything else is read, so that the history of their objects is read,
    /// too. Later ones are added when they are served, and so are those that cannot be read.
    async fn add_types(&self, log: &EtcdLog) -> Result<HashSet<TypeName>, SharedLogError> {
        let type_name = CUSTOM_RESOURCE_DEFINITIONS.type_name();
        let mut added = HashSet::new();
        for entry in log.load_type(&type_name).await?.entries {
            let object = decode_object(log, &type_name, entry.key, &entry.value, entry.revision);
            let definition = StoredObject::new(&CUSTOM_RESOURCE_DEFINITIONS, &object, self.registry)
                .and_then(|stored| stored.decode());
            let Ok(definition) = definition else { continue };
            let defined = resources(&definition, self.registry, |count| 0..=count);
            let stored = defined.stored.filter(|_| status::is_true(&definition, status::ESTABLISHED));
            if let Some((resource, stored)) =
                stored.as_ref().and_then(|resource| Some((resource, resource.stored()?)))
                && self.types.add(resource)
            {
                added.insert(stored.store.clone());
            }
        }
        Ok(added)
    }
}

/// Reads etcd. Tries again until the time is over, and says why.
async fn start(
    log: &EtcdLog,
    definitions: &Definitions<'_>,
    options: &Options,
    patience: Duration,
) -> Result<Storage, StartError> {
    let began = options.clock.moment();
    let mut last_warning = None;
    loop {
        let attempt = async {
            // First a short question, whose error says which member does what.
            log.check(STORAGE_PROBE_TIMEOUT).await?;
            let known = definitions.add_types(log).await?;
            let forms = Arc::new(EtcdForms::new(log.clone()));
            shared_storage::start(Arc::new(log.clone()), forms, known, options.clone()).await
        };
        let left = patience.saturating_sub(options.clock.elapsed(began));
        let error = match timeout(left, attempt).await {
            Ok(Ok(storage)) => return Ok(storage),
            Ok(Err(error @ SharedStartError::Thread(_))) => return Err(StartError::store(&error)),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "its objects could not be read in time".to_owned(),
        };
        let waited = options.clock.elapsed(began);
        if waited + STORAGE_RETRY_PAUSE >= patience {
            let reason = format!("{error}; tried for {} seconds", waited.as_secs());
            return Err(StartError::part("etcd")(&reason));
        }
        if last_warning.is_none_or(|last| waited >= last + STORAGE_RETRY_MESSAGE_INTERVAL) {
            last_warning = Some(waited);
            tracing::warn!(error, "etcd cannot be read yet; trying again");
        }
        sleep(STORAGE_RETRY_PAUSE).await;
    }
}
