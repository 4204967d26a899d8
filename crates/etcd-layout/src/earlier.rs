//! The versions in which earlier releases stored objects, and that this release does not serve.
//!
//! An object stays in the version in which it was written until it is written again, over any number of upgrades. The reference reads
//! every version that it has ever stored. Here are those of them whose objects can be converted: most have the shape of the version
//! that replaced them, and the others have a function. The schemas of these versions are compiled when the first such object is
//! read, so a server over a store of today does not have them, and never serves them.

pub mod definitions;
mod shapes;

use std::sync::OnceLock;

use pilothouse_apimachinery::schema::builtin::{FILES, REMOVED_FILES};
use pilothouse_apimachinery::schema::{Registry, TypeId, table};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::API_EXTENSIONS_GROUP;

/// The schema files that the version of stored definitions needs.
const DEFINITION_FILES: [&str; 2] = ["apiextensions_v1beta1", "meta_v1"];

/// The schemas of earlier versions.
#[derive(Debug, Default)]
pub struct EarlierKinds {
    /// Only what the reference stores definitions in, which every server needs.
    definitions: OnceLock<Option<(Registry, TypeId)>>,
    all: OnceLock<Option<Registry>>,
}

/// Converts an object to the shape of the stored version. The caller sets the apiVersion.
pub type Convert = fn(Value) -> Value;

impl EarlierKinds {
    /// The type of the version in which the reference stores definitions.
    pub fn definitions(&self) -> Option<(&Registry, TypeId)> {
        let compiled = self.definitions.get_or_init(|| {
            let files =
                FILES.iter().chain(&REMOVED_FILES).filter(|(name, _)| DEFINITION_FILES.contains(name));
            let facts = files.map(|(_, text)| table::parse(text)).collect::<Result<Vec<_>, _>>().ok()?;
            let registry = Registry::compile(&facts).ok()?;
            let ty = registry.kind(API_EXTENSIONS_GROUP, "v1beta1", "CustomResourceDefinition")?;
            Some((registry, ty))
        });
        compiled.as_ref().map(|(registry, ty)| (registry, *ty))
    }

    /// The schemas to read an object of an earlier version with, and its conversion to version `target`; `None` if there is none.
    pub fn find(
        &self,
        from: &GroupVersion,
        kind: &str,
        target: &GroupVersion,
    ) -> Option<(&Registry, Convert)> {
        if from.is(API_EXTENSIONS_GROUP, "v1beta1") && *target.group == *API_EXTENSIONS_GROUP {
            return self.definitions().map(|(registry, _)| (registry, definitions::to_v1 as Convert));
        }
        let convert = shapes::conversion(from, kind, target)?;
        self.all.get_or_init(|| Registry::complete().ok()).as_ref().map(|registry| (registry, convert))
    }
}
