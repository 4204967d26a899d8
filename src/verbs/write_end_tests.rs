//! What hooks learn of the end of a write: only what certainly happened. A hook that takes a write for stored, or for not stored,
//! releases addresses and ports that somebody else may have by then.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;

use actix::Actor as _;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use openssl::ec::{EcGroup, EcKey};
use openssl::nid::Nid;
use openssl::pkey::PKey;
use pilothouse_actors::authenticator::{Authenticator, AuthenticatorConfig};
use pilothouse_actors::authorizer::Authorizer;
use pilothouse_actors::directory::{Options, start};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::throttle::Throttle;
use pilothouse_api::catalog::build::Builtin;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::catalog::runtime_config::RuntimeConfig;
use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::WriteMode;
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::{Array, Value};
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_client::upstream::pool::Pool;
use pilothouse_kinds::validation_engines::Authority;
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::identity::Identity;
use pilothouse_types::memory::MemoryBudget;
use pilothouse_types::object::Object;

use super::VerbResult;
use super::create::store_new;
use super::delete::delete;
use super::update::{NewState, store_update};
use crate::auth::rbac;
use crate::auth::service_account::issuer::{Issuer, IssuerSettings};
use crate::flowcontrol::load_stats::LoadStats;
use crate::live_index::LiveIndexes;
use crate::metrics::Metrics;
use crate::registry::admission::{Chain, Outcome, Plugin, Write};
use crate::registry::authorization::Access;
use crate::registry::conversion::Conversions;
use crate::registry::declarative_validation::DeclarativeValidation;
use crate::registry::definition_memory::DefinitionMemory;
use crate::registry::loopback::Loopback;
use crate::registry::objects::Objects;
use crate::registry::request_memory::RequestMemory;
use crate::registry::stores::Stores;
use crate::registry::write_hooks::{FinishWrite, PendingWrite, WriteEnd, WriteHook, WriteHooks};
use crate::registry::{Backend, Call, CallTarget, DeletionSettings, Origin, Requester, Warnings};

const NAME: &str = "a";
const NAMESPACE: &str = "n";

/// A hook that records how writes have ended, of those for which the store was asked.
#[derive(Default)]
struct RecordingHook(Rc<RefCell<Vec<WriteEnd>>>);

struct RecordedWrite {
    ends: Rc<RefCell<Vec<WriteEnd>>>,
    is_proposed: bool,
}

impl RecordingHook {
    fn begin(&self) -> PendingWrite {
        RecordedWrite { ends: self.0.clone(), is_proposed: false }.into()
    }
}

impl WriteHook for RecordingHook {
    fn begin_create<'a>(
        self: Rc<Self>,
        _: &'a Call<'a>,
        _: &'a mut Value,
        _: WriteMode,
    ) -> LocalBoxFuture<'a, Result<PendingWrite>> {
        async move { Ok(self.begin()) }.boxed_local()
    }

    fn begin_update<'a>(
        self: Rc<Self>,
        _: &'a Call<'a>,
        _: &'a mut Value,
        _: &'a Value,
        _: WriteMode,
    ) -> LocalBoxFuture<'a, Result<PendingWrite>> {
        async move { Ok(self.begin()) }.boxed_local()
    }

    fn begin_removal(self: Rc<Self>, _: &Call<'_>, _: &Object) -> PendingWrite {
        self.begin()
    }
}

impl FinishWrite for RecordedWrite {
    fn propose(&mut self) {
        self.is_proposed = true;
    }

    fn finish(self: Box<Self>, end: WriteEnd) -> LocalBoxFuture<'static, ()> {
        assert!(self.is_proposed);
        self.ends.borrow_mut().push(end);
        async {}.boxed_local()
    }
}

/// Removes the object of a write that has read it and not been stored yet, as another server would.
#[derive(Clone, Default)]
struct ConcurrentRemoval {
    is_due: Rc<Cell<bool>>,
}

impl Plugin for ConcurrentRemoval {
    fn handles(&self, _: &Write<'_>) -> bool {
        self.is_due.get()
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, _: &'a Value) -> Outcome<'a> {
        async {
            let (stores, store, permit) =
                (&write.backend.stores, &write.call.stored().store, &Permit::none());
            let object = stores.get(store, write.call.key(NAME), permit).await.unwrap();
            stores.remove(store, object.key.clone(), object.revision, permit).await.unwrap();
            Ok(())
        }
        .boxed_local()
    }
}

struct Finalizers(&'static [&'static str]);

impl NewState for Finalizers {
    fn next_state(&self, old: &Value) -> Result<Value> {
        let mut new = old.clone();
        let finalizers: Vec<Value> = self.0.iter().map(|finalizer| Value::from(*finalizer)).collect();
        new.entry("metadata").set("finalizers", Array::from(finalizers));
        Ok(new)
    }
}

/// A worker whose ConfigMaps have a hook.
struct Fixture {
    backend: Backend,
    ends: Rc<RefCell<Vec<WriteEnd>>>,
    removal: ConcurrentRemoval,
    resource: Arc<Resource>,
    user: Identity,
}

impl Fixture {
    async fn new() -> Fixture {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let resource = catalog.find("", "v1", "configmaps").unwrap().clone();
        let (hook, removal) = (RecordingHook::default(), ConcurrentRemoval::default());
        let ends = hook.0.clone();
        let hooks = WriteHooks::default().with(resource.stored().unwrap().store.clone(), Rc::new(hook));
        let backend = backend(hooks, Chain::new(vec![(None, Box::new(removal.clone()))], metrics())).await;
        Fixture { backend, ends, removal, resource, user: Identity::default() }
    }

    async fn with_object(finalizers: &str) -> Fixture {
        let fixture = Fixture::new().await;
        fixture.create(&fixture.resource, finalizers).await.expect("it is created");
        assert_eq!(fixture.ends(), [WriteEnd::Stored]);
        fixture
    }

    /// The resource in a version that no response can have.
    fn unanswerable(&self) -> Arc<Resource> {
        let gv = GroupVersion::new("", "v0");
        Arc::new(Resource { gv, ..Resource::clone(&self.resource) })
    }

    async fn call<T>(
        &self,
        resource: &Arc<Resource>,
        name: &str,
        verb: impl AsyncFnOnce(&Call<'_>) -> T,
    ) -> T {
        let (query, warnings) = (Query::parse(""), Warnings::default());
        let requester = Requester { user: &self.user, origin: Origin::Client, user_agent: "" };
        let target = CallTarget { namespace: NAMESPACE, name, ..CallTarget::stored(resource).unwrap() };
        verb(&Call::new(target, requester, &query, &warnings)).await
    }

    async fn create(&self, resource: &Arc<Resource>, finalizers: &str) -> VerbResult {
        let body = format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1",
                "metadata":{{"name":"{NAME}","namespace":"{NAMESPACE}","finalizers":{finalizers}}}}}"#
        );
        let value = json::read(body.as_bytes()).unwrap();
        let create = async |call: &Call<'_>| store_new(&self.backend, call, value, WriteMode::Store).await;
        self.call(resource, "", create).await
    }

    async fn update(&self, resource: &Arc<Resource>, state: Finalizers) -> VerbResult {
        let update =
            async |call: &Call<'_>| store_update(&self.backend, call, &state, WriteMode::Store).await;
        self.call(resource, NAME, update).await
    }

    async fn delete(&self) -> VerbResult {
        self.call(&self.resource, NAME, async |call: &Call<'_>| delete(&self.backend, call).await).await
    }

    /// The finalizers of the stored object; `None` if there is none.
    async fn stored_finalizers(&self) -> Option<Vec<String>> {
        self.call(&self.resource, NAME, async |call: &Call<'_>| {
            let object = self.backend.read(call).await.ok()?;
            let value = self.backend.objects.load(call, &object).unwrap();
            let finalizers = meta::metadata(&value).get("finalizers").map(Value::items).unwrap_or_default();
            Some(finalizers.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        })
        .await
    }

    /// How the writes since the last question have ended.
    fn ends(&self) -> Vec<WriteEnd> {
        self.ends.take()
    }
}

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new(Timestamp(0)).unwrap())
}

async fn backend(write_hooks: WriteHooks, admission: Chain) -> Backend {
    let storage = start(Box::new(Memory::new()), Options::default()).unwrap();
    let (clock, registry) = (Clock::system(), Arc::new(Registry::builtin().unwrap()));
    let metrics = metrics();
    let budget = || MemoryBudget::standalone(1 << 20);
    let config = AuthenticatorConfig {
        anonymous: Arc::default(),
        admits_anonymous: false,
        authenticated_group: String::new(),
        audiences: Arc::default(),
    };
    let indexes = LiveIndexes::new(storage.directory.clone(), registry.clone());
    Backend {
        objects: Objects {
            registry: registry.clone(),
            features: EnabledFeatures::new(|_| false, false),
            allows_unsafe_deletion: false,
            validation: DeclarativeValidation { authority: Authority::default(), metrics: metrics.clone() },
            clock: clock.clone(),
            encodings: budget(),
        },
        stores: Stores::new(&storage),
        health: storage.health.clone(),
        admission,
        deletions: DeletionSettings { collects_garbage: true, concurrent: 1 },
        clock: clock.clone(),
        write_hooks,
        tokens: Arc::new(issuer()),
        definitions: DefinitionMemory::new(budget()),
        requests: RequestMemory::new(budget()),
        lists: budget(),
        load: Arc::new(LoadStats::default()),
        access: Access {
            authenticator: Authenticator::new(Arc::new([]), Arc::new(config)).start(),
            authorizer: Authorizer::new(Arc::default()).start(),
            roles: rbac::open(&indexes).await.unwrap(),
            uses_selectors: false,
        },
        loopback: Arc::new(Loopback {
            audit: None,
            metrics: metrics.clone(),
            clock: clock.clone(),
            registry,
            source: IpAddr::V4(Ipv4Addr::LOCALHOST),
            refusals: Throttle::default(),
        }),
        conversions: Rc::new(Conversions::new(false, metrics, clock.clone(), Pool::new(clock))),
        current_resource: Rc::new(|resource| Some(resource.clone())),
        served_version: Rc::new(|resource| Some(resource.clone())),
        find_resource: Rc::new(|_, _| None),
    }
}

fn issuer() -> Issuer {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let (issuer, audiences) = (String::new(), Vec::new());
    let settings = IssuerSettings { issuer, audiences, max_seconds: 0, extends: false, extended_seconds: 0 };
    Issuer::new(key, settings).unwrap()
}

fn assert_answer_failed(result: VerbResult) {
    let status = result.err().expect("no response can be made");
    assert_eq!(status.code, 500);
    assert!(status.message.ends_with("no schema for ConfigMap of v0"), "{}", status.message);
}

#[actix_rt::test]
async fn created_object_is_stored_although_its_response_cannot_be_made() {
    let fixture = Fixture::new().await;
    assert_answer_failed(fixture.create(&fixture.unanswerable(), r#"["x/y"]"#).await);
    assert_eq!(fixture.stored_finalizers().await.unwrap(), ["x/y"]);
    assert_eq!(fixture.ends(), [WriteEnd::Stored]);
}

#[actix_rt::test]
async fn updated_object_is_stored_although_its_response_cannot_be_made() {
    let fixture = Fixture::with_object(r#"["x/y"]"#).await;
    assert_answer_failed(fixture.update(&fixture.unanswerable(), Finalizers(&["x/y", "x/z"])).await);
    assert_eq!(fixture.stored_finalizers().await.unwrap(), ["x/y", "x/z"]);
    assert_eq!(fixture.ends(), [WriteEnd::Stored]);
}

#[actix_rt::test]
async fn object_is_removed_by_an_update_although_its_response_cannot_be_made() {
    let fixture = Fixture::with_object(r#"["x/y"]"#).await;
    fixture.delete().await.expect("it waits for its finalizer");
    assert_answer_failed(fixture.update(&fixture.unanswerable(), Finalizers(&[])).await);
    assert_eq!(fixture.stored_finalizers().await, None);
    assert_eq!(fixture.ends(), [WriteEnd::Stored]);
}

#[actix_rt::test]
async fn update_has_not_made_the_removal_that_somebody_else_has_made() {
    let fixture = Fixture::with_object(r#"["x/y"]"#).await;
    fixture.delete().await.expect("it waits for its finalizer");
    fixture.removal.is_due.set(true);
    fixture.update(&fixture.resource, Finalizers(&[])).await.expect("it is gone, as it would be");
    assert_eq!(fixture.ends(), [WriteEnd::NotStored]);
}

#[actix_rt::test]
async fn deletion_has_not_made_the_removal_that_somebody_else_has_made() {
    let fixture = Fixture::with_object("[]").await;
    fixture.removal.is_due.set(true);
    assert_eq!(fixture.delete().await.err().expect("it is gone").code, 404);
    assert_eq!(fixture.ends(), [WriteEnd::NotStored]);
}
