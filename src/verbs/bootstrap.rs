//! What exists from the first start.

use bytes::Bytes;
use pilothouse_actors::identity::Identity;
use pilothouse_actors::permit::Permit;

use crate::api::catalog::Catalog;
use crate::api::form::Form;
use crate::api::media::Encoding;
use crate::api::query::Query;
use crate::api::status::{Result, Status};
use crate::api::words::{MASTERS, NAMESPACES, SYSTEM_NAMESPACES};

use super::{Backend, Call, Warnings, create};

/// Makes the system namespaces that are not there.
pub async fn namespaces(backend: &Backend, catalog: &Catalog) -> Result<()> {
    let resource = catalog.find("", "v1", NAMESPACES).ok_or_else(Status::no_such_resource)?;
    let stored = resource.stored.as_ref().ok_or_else(Status::no_such_resource)?;
    let user = Identity {
        name: "system:apiserver".to_owned(),
        groups: vec![MASTERS.to_owned()],
        ..Identity::default()
    };
    for name in SYSTEM_NAMESPACES {
        let body = format!(r#"{{"kind":"Namespace","apiVersion":"v1","metadata":{{"name":"{name}"}}}}"#);
        let call = Call {
            resource,
            stored,
            namespace: "",
            name: "",
            subresource: "",
            query: &Query::parse(""),
            body: Bytes::from(body),
            encoding: Encoding::Json,
            form: Form::PLAIN,
            warnings: &Warnings::default(),
            user: &user,
            permit: Permit::none(),
        };
        match create::create(backend, &call).await {
            Ok(_) => tracing::info!(name, "made the namespace"),
            Err(status) if status.reason == "AlreadyExists" => {}
            Err(status) => return Err(status),
        }
    }
    Ok(())
}
