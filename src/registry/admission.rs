//! Admission: plug-ins that change or refuse a write after it is decoded and before it is stored.
//!
//! A [`Chain`] of plug-ins in the reference's order. All mutating plug-ins run first. Then the object is validated by the rules of
//! its kind. Then all validating plug-ins check the object as it would be stored. This is the interface; the plug-ins are in
//! `crate::admission`, which only the assembly imports.

mod reinvocation;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;

use futures::future::{LocalBoxFuture, ready};
use pilothouse_api::admission_plugins::PluginName;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::trace::span::Attribute;

pub use self::reinvocation::Reinvocation;
use super::{Backend, Call};
use crate::metrics::Metrics;
use crate::metrics::admission::{Step, Times};

/// The operation of a write, as admission rules name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new object is created.
    Create,
    /// An existing object is replaced.
    Update,
    /// An object is deleted, or marked as being deleted.
    Delete,
    /// A connecting subresource, such as exec or proxy, is opened.
    Connect,
}

impl Operation {
    /// The word in rules and labels.
    pub fn word(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// One write that passes through admission.
pub struct Write<'a> {
    /// Gives plug-ins access to other objects.
    pub backend: &'a Backend,
    /// The request.
    pub call: &'a Call<'a>,
    /// The operation.
    pub operation: Operation,
    /// The object as it is stored now; `None` for a create.
    pub old: Option<&'a Value>,
}

impl Write<'_> {
    /// Whether it writes objects of this resource, not a subresource of them.
    pub fn is_of(&self, group: &str, resource: &str) -> bool {
        self.is_of_subresource(group, resource, "")
    }

    /// Whether it writes this subresource of a resource.
    pub fn is_of_subresource(&self, group: &str, resource: &str, subresource: &str) -> bool {
        self.group_resource() == GroupResource { group, resource } && self.subresource() == subresource
    }

    /// The requested resource, for rules and messages. A binding whose pod is named by its body is one of `bindings`, not of a
    /// subresource of pods.
    pub fn group_resource(&self) -> GroupResource<'_> {
        self.call.requested_resource().0.name()
    }

    /// The requested subresource, empty for the resource itself.
    pub fn subresource(&self) -> &str {
        self.call.requested_resource().1
    }

    /// Whether it is a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.call.query.all("dryRun").any(|value| value == "All")
    }

    /// 403 that names the object, by its generateName if it has no name yet.
    pub fn forbidden(&self, object: &Value, reason: &str) -> Box<Status> {
        Status::forbidden(reason, Some((self.group_resource(), self.name(object))))
    }

    /// The name for messages. In a deletion of a collection the request has no name.
    pub fn name<'b>(&'b self, object: &'b Value) -> &'b str {
        let meta = meta::metadata(object);
        let names = [self.call.name(), meta.str("name"), meta.str("generateName")];
        names.into_iter().find(|name| !name.is_empty()).unwrap_or("Unknown")
    }
}

/// The result of a plug-in, which may have to wait.
pub type Outcome<'a> = LocalBoxFuture<'a, Result<()>>;

/// The outcome of a plug-in that did not have to wait.
pub fn done<'a>(result: Result<()>) -> Outcome<'a> {
    Box::pin(ready(result))
}

/// An admission plug-in.
pub trait Plugin {
    /// Whether the plug-in is interested in this write. Called for every write, so it must be fast.
    fn handles(&self, write: &Write<'_>) -> bool;

    /// Changes the object, or refuses it. For a deletion `object` is null.
    fn mutate<'a>(&'a self, _write: &'a Write<'a>, _object: &'a mut Value) -> Outcome<'a> {
        done(Ok(()))
    }

    /// Like [`Plugin::mutate`], for plug-ins that run again after others have changed the object: see [`Reinvocation`].
    fn admit<'a>(&'a self, write: &'a Write<'a>, object: &'a mut Value, _: &'a Reinvocation) -> Outcome<'a> {
        self.mutate(write, object)
    }

    /// Whether the plug-in is interested in connecting subresources.
    fn connects(&self) -> bool {
        false
    }

    /// Whether pods get the labels of their Binding.
    fn labels_bound_pods(&self) -> bool {
        false
    }

    /// Refuses an object that must not be stored. For a deletion `object` is null.
    fn validate<'a>(&'a self, _write: &'a Write<'a>, _object: &'a Value) -> Outcome<'a> {
        done(Ok(()))
    }
}

/// A plug-in with its name; `None` for one that the reference has no plug-in for.
pub type NamedPlugin = (Option<PluginName>, Box<dyn Plugin>);

/// The name of a whole step in traces.
fn step_name(step: Step) -> &'static str {
    match step {
        Step::Admit => "Mutating admission",
        Step::Validate => "Validating admission",
    }
}

/// The enabled plug-ins, in order. One chain per worker, so that plug-ins may cache without locks.
pub struct Chain {
    plugins: Vec<NamedPlugin>,
    times: Times,
}

impl Chain {
    /// A chain of these plug-ins.
    pub fn new(plugins: Vec<NamedPlugin>, metrics: Arc<Metrics>) -> Chain {
        Chain { plugins, times: Times::new(metrics) }
    }

    /// Runs the mutating plug-ins on the new state of an object.
    pub async fn mutate(&self, write: &Write<'_>, object: &mut Value) -> Result<()> {
        self.timed(None, Step::Admit, write, pin!(self.admit(write, object))).await
    }

    /// Runs a plug-in, or a whole step, and notes in metrics and the trace how long it takes and whether it rejects the write.
    async fn timed(
        &self,
        plugin: Option<PluginName>,
        step: Step,
        write: &Write<'_>,
        work: Pin<&mut (impl Future<Output = Result<()>> + ?Sized)>,
    ) -> Result<()> {
        let (clock, operation) = (&write.backend.clock, write.operation.word());
        let began = clock.moment();
        let plugin = plugin.map(PluginName::as_str);
        let mut span = write.call.permit().trace().open_at(plugin.unwrap_or(step_name(step)), began);
        span.describe(|| {
            vec![Attribute::text("type", step.label()), Attribute::text("operation", operation)]
        });
        let result = span.run(work).await;
        let ended = clock.moment();
        self.times.note(plugin, step, operation, result.is_err(), ended.since(began));
        if result.is_err() {
            span.fail();
        }
        span.end_at(ended);
        result
    }

    async fn admit(&self, write: &Write<'_>, object: &mut Value) -> Result<()> {
        let reinvocation = Reinvocation::default();
        self.admit_once(write, object, &reinvocation).await?;
        if reinvocation.start_second_round() {
            self.admit_once(write, object, &reinvocation).await?;
        }
        // Options of a connecting subresource have no metadata.
        if reinvocation.is_patched() && write.operation != Operation::Connect {
            reinvocation.restore_invariants(write.call, write.operation == Operation::Create, object)?;
        }
        Ok(())
    }

    async fn admit_once(
        &self,
        write: &Write<'_>,
        object: &mut Value,
        reinvocation: &Reinvocation,
    ) -> Result<()> {
        for (name, plugin) in self.plugins_for(write) {
            let mut admission = plugin.admit(write, object, reinvocation);
            match name.filter(|name| name.admits()) {
                Some(name) => self.timed(Some(name), Step::Admit, write, admission.as_mut()).await?,
                None => admission.await?,
            }
        }
        Ok(())
    }

    /// Runs the validating plug-ins on the object as it would be stored.
    pub async fn validate(&self, write: &Write<'_>, object: &Value) -> Result<()> {
        let validation = pin!(async {
            for (name, plugin) in self.plugins_for(write) {
                let mut validation = plugin.validate(write, object);
                match name.filter(|name| name.validates()) {
                    Some(name) => self.timed(Some(name), Step::Validate, write, validation.as_mut()).await?,
                    None => validation.await?,
                }
            }
            Ok::<(), Box<Status>>(())
        });
        self.timed(None, Step::Validate, write, validation).await
    }

    /// Runs admission for a deletion.
    pub async fn delete(&self, backend: &Backend, call: &Call<'_>, old: &Value) -> Result<()> {
        let write = Write { backend, call, operation: Operation::Delete, old: Some(old) };
        self.mutate(&write, &mut Value::Null).await?;
        self.validate(&write, &Value::Null).await
    }

    /// Runs admission for a connecting subresource. `options` is its options object; changes to it have no effect.
    pub async fn connect(&self, backend: &Backend, call: &Call<'_>, mut options: Value) -> Result<()> {
        let write = Write { backend, call, operation: Operation::Connect, old: None };
        self.mutate(&write, &mut options).await?;
        self.validate(&write, &options).await
    }

    /// Whether pods get the labels of their Binding.
    pub fn labels_bound_pods(&self) -> bool {
        self.plugins.iter().any(|(_, plugin)| plugin.labels_bound_pods())
    }

    fn plugins_for<'a>(
        &'a self,
        write: &'a Write<'a>,
    ) -> impl Iterator<Item = (Option<PluginName>, &'a dyn Plugin)> {
        let is_connect = write.operation == Operation::Connect;
        let is_interested = move |(_, plugin): &(Option<PluginName>, &dyn Plugin)| {
            (!is_connect || plugin.connects()) && plugin.handles(write)
        };
        self.plugins.iter().map(|(name, plugin)| (*name, &**plugin)).filter(is_interested)
    }
}
