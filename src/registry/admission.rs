//! Admission: plug-ins that change or refuse a write after it is decoded and before it is stored.
//!
//! A [`Chain`] of plug-ins in the reference's order. All mutating plug-ins run first. Then the object is validated by the rules of
//! its kind. Then all validating plug-ins check the object as it would be stored. This is the interface; the plug-ins are in
//! `crate::admission`, which only the assembly imports.

mod reinvocation;

use futures::future::{LocalBoxFuture, ready};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;

pub use self::reinvocation::Reinvocation;
use super::{Backend, Call};

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
        self.call.group_resource() == GroupResource { group, resource }
            && self.call.subresource() == subresource
    }

    /// Whether it is a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.call.query.all("dryRun").any(|value| value == "All")
    }

    /// 403 that names the object, by its generateName if it has no name yet.
    pub fn forbidden(&self, object: &Value, reason: &str) -> Box<Status> {
        Status::forbidden(reason, Some((self.call.group_resource(), self.name(object))))
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

/// The enabled plug-ins, in order. One chain per worker, so that plug-ins may cache without locks.
pub struct Chain(Vec<Box<dyn Plugin>>);

impl Chain {
    /// A chain of these plug-ins.
    pub fn new(plugins: Vec<Box<dyn Plugin>>) -> Chain {
        Chain(plugins)
    }

    /// Runs the mutating plug-ins on the new state of an object.
    pub async fn mutate(&self, write: &Write<'_>, object: &mut Value) -> Result<()> {
        let reinvocation = Reinvocation::default();
        for plugin in self.plugins_for(write) {
            plugin.admit(write, object, &reinvocation).await?;
        }
        if reinvocation.start_second_round() {
            for plugin in self.plugins_for(write) {
                plugin.admit(write, object, &reinvocation).await?;
            }
        }
        // Options of a connecting subresource have no metadata.
        if reinvocation.is_patched() && write.operation != Operation::Connect {
            reinvocation.restore_invariants(write.call, write.operation == Operation::Create, object)?;
        }
        Ok(())
    }

    /// Runs the validating plug-ins on the object as it would be stored.
    pub async fn validate(&self, write: &Write<'_>, object: &Value) -> Result<()> {
        for plugin in self.plugins_for(write) {
            plugin.validate(write, object).await?;
        }
        Ok(())
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
        self.0.iter().any(|plugin| plugin.labels_bound_pods())
    }

    fn plugins_for<'a>(&'a self, write: &'a Write<'a>) -> impl Iterator<Item = &'a dyn Plugin> {
        let is_connect = write.operation == Operation::Connect;
        let is_interested =
            move |plugin: &&dyn Plugin| (!is_connect || plugin.connects()) && plugin.handles(write);
        self.0.iter().map(AsRef::as_ref).filter(is_interested)
    }
}
