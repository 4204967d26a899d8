//! The flow schemas and priority levels that are there, as of the last write that was answered.

use actix::Addr;
use pilothouse_actors::directory::Directory;
use pilothouse_actors::error::StoreError;
use pilothouse_actors::object::{Object, TypeName};

use super::followed::{Followed, View};
use crate::api::bootstrap::flow_control::GROUP;
use crate::api::codec::json;
use crate::api::flows::{Flows, Schema, uid};
use crate::api::value::Value;

/// The table of flows as it stays true.
pub type Following = Followed<Flows>;

/// The types that the table follows; levels come second.
const RESOURCES: [&str; 2] = ["flowschemas", "prioritylevelconfigurations"];
const SCHEMAS: usize = 0;

/// Reads all flow schemas and priority levels.
pub async fn open(directory: Addr<Directory>) -> Result<Following, StoreError> {
    let types = RESOURCES.map(|resource| TypeName::new(&format!("{resource}.{GROUP}")));
    Followed::open(directory, types, Flows::default()).await
}

fn change(flows: &mut Flows, of: usize, name: &str, object: Option<&Value>) {
    match of {
        SCHEMAS => flows.put_schema(name, object.map(Schema::read)),
        _ => flows.put_level(name, object.map(uid)),
    }
}

impl View for Flows {
    fn put(&mut self, of: usize, object: &Object) {
        let name = object.key.name();
        match json::read(&object.bytes) {
            Ok(read) => change(self, of, name, Some(&read)),
            // No more than what answers say of their flow depends on it.
            Err(_) => tracing::error!(object = ?object.key, "a part of flow control cannot be read"),
        }
    }

    fn remove(&mut self, of: usize, object: &Object) {
        change(self, of, object.key.name(), None);
    }

    fn clear(&mut self, of: usize) {
        match of {
            SCHEMAS => self.clear_schemas(),
            _ => self.clear_levels(),
        }
    }
}
