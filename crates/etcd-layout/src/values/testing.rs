//! Helpers of the tests of this crate.

use std::sync::{Arc, LazyLock};

use pilothouse_api::catalog::build::Builtin;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom::definition;
use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::testing::object;

use super::{ValueCodec, ValueOptions};
use crate::media::MediaType;

static SHARED: LazyLock<Arc<Registry>> = LazyLock::new(|| Arc::new(Registry::builtin().unwrap()));

/// A codec that writes this encoding.
pub(crate) fn codec(media_type: MediaType) -> ValueCodec {
    let options = ValueOptions { media_type, ..ValueOptions::default() };
    ValueCodec::new(SHARED.clone(), options, EnabledFeatures::RELEASE)
}

/// One resource of each stored type, in the stored version if it is served.
pub(crate) fn stored_resources() -> Vec<Arc<Resource>> {
    let builtin = Builtin::load().unwrap();
    let is_stored_version =
        |resource: &&Arc<Resource>| resource.stored().is_some_and(|stored| stored.version == resource.gv);
    builtin.resources().iter().filter(is_stored_version).cloned().collect()
}

/// The resource of a type in its stored version.
pub(crate) fn builtin(store: &str) -> Arc<Resource> {
    let is_named =
        |resource: &Arc<Resource>| resource.stored().is_some_and(|stored| stored.store.as_str() == store);
    stored_resources().into_iter().find(is_named).unwrap()
}

/// The resource of a custom type in its stored version, which is `v2`; there is a version `v1` as well.
pub(crate) fn custom(plural: &str, group: &str, scope: &str) -> Arc<Resource> {
    let version = |name: &str, storage: bool| {
        format!(
            r#"{{"name":"{name}","served":true,"storage":{storage},"selectableFields":[{{"jsonPath":".spec.color"}}],"schema":{{"openAPIV3Schema":{{"type":"object","properties":{{"spec":{{"type":"object","properties":{{"color":{{"type":"string"}},"size":{{"type":"number"}}}}}}}}}}}}}}"#
        )
    };
    let names = format!(r#"{{"plural":"{plural}","kind":"Kite","listKind":"KiteList"}}"#);
    let json = format!(
        r#"{{"metadata":{{"name":"{plural}.{group}"}},"spec":{{"group":"{group}","scope":"{scope}","names":{names},"versions":[{},{}]}},"status":{{"acceptedNames":{names}}}}}"#,
        version("v1", false),
        version("v2", true),
    );
    let resources = definition::resources(&object(&json), &SHARED, |count| 1_000..=999 + count);
    resources.stored.unwrap()
}
