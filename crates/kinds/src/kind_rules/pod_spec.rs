//! The place of a PodSpec in an object.

use pilothouse_apimachinery::field_value::present_mut;
use pilothouse_apimachinery::value::Value;

/// The path of the PodSpec in a pod, or in an object with a pod template. Empty for all other kinds.
#[derive(Clone, Copy, Debug)]
pub struct PodSpecPath(pub &'static [&'static str]);

impl PodSpecPath {
    /// No PodSpec.
    pub const NONE: PodSpecPath = PodSpecPath(&[]);
    /// In the template of a workload.
    pub const TEMPLATE: PodSpecPath = PodSpecPath(&["spec", "template", "spec"]);

    /// The PodSpec of an object.
    pub(crate) fn find(self, object: &Value) -> Option<&Value> {
        object.get_path(self.0).filter(|_| !self.0.is_empty())
    }

    /// The same, to change it.
    pub(crate) fn find_mut(self, object: &mut Value) -> Option<&mut Value> {
        let mut spec = Some(object).filter(|_| !self.0.is_empty());
        for field in self.0 {
            spec = spec.and_then(|object| present_mut(object, field));
        }
        spec
    }

    /// The pod or pod template around the PodSpec.
    pub(crate) fn find_pod(self, object: &Value) -> Option<&Value> {
        self.0.split_last().and_then(|(_, parent)| object.get_path(parent))
    }
}
