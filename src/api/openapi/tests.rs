//! The documents as clients see them.

use std::sync::OnceLock;

use super::*;
use crate::api::catalog::build::Builtin;
use crate::api::catalog::runtime_config::RuntimeConfig;
use crate::api::codec::json;
use crate::api::value::Value;

fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| Registry::builtin().unwrap())
}

fn catalog(config: &str) -> Catalog {
    Builtin::load().unwrap().serve(&RuntimeConfig::parse(config).unwrap()).unwrap()
}

fn with<T>(config: &str, look: impl FnOnce(Sources<'_>) -> T) -> T {
    let catalog = catalog(config);
    look(Sources { registry: registry(), catalog: &catalog, custom: &[], cbor: false })
}

fn v3(name: &str) -> Value {
    json::read(&with("", |sources| sources.v3(name)).unwrap()).unwrap()
}

#[test]
#[ignore = "writes the documents into a folder, to compare them with others"]
fn dump() {
    let Some(folder) = std::env::var_os("OPENAPI_DUMP").map(std::path::PathBuf::from) else { return };
    let catalog = catalog("api/all=true");
    let sources = Sources { registry: registry(), catalog: &catalog, custom: &[], cbor: true };
    for name in sources.names() {
        std::fs::write(folder.join(name.replace('/', "__")), sources.v3(&name).unwrap()).unwrap();
    }
    std::fs::write(folder.join("swagger"), sources.v2()).unwrap();
}

#[test]
fn every_name_has_a_document() {
    with("api/all=true", |sources| {
        for name in sources.names() {
            let document = sources.v3(&name).unwrap_or_else(|| panic!("{name}"));
            json::read(&document).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        for name in ["", "api/v2", "apis/apps/v2", "apis/nope", "apis/apps/v1/x", "openapi", "api/v1/x"] {
            assert!(sources.v3(name).is_none(), "{name}");
        }
    });
    let _ = v3("version");
}
