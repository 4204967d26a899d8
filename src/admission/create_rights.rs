//! An update or apply that creates an object needs the right to create. Always on, and first: a user without that right must not
//! learn whether other plug-ins would refuse.

use std::sync::Arc;

use pilothouse_actors::authorizer::AuthorizeExplained;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_authorization::denial::denied;
use pilothouse_types::authorization::{Action, Decision, Target};

use crate::registry::authorization;

use super::{Operation, Outcome, Plugin, Write};

/// Checks creates whose path names the object, which a POST never does.
pub struct CreateRights;

impl Plugin for CreateRights {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Create
            && !write.call.name().is_empty()
            && write.subresource().is_empty()
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, _: &'a Value) -> Outcome<'a> {
        Box::pin(check_right(write))
    }
}

async fn check_right(write: &Write<'_>) -> Result<()> {
    let call = write.call;
    let target = Target::Resource {
        group: call.resource().gv.group.to_string(),
        version: call.resource().gv.version.to_string(),
        resource: call.resource().plural.to_string(),
        subresource: String::new(),
        namespace: call.namespace().to_owned(),
        name: call.name().to_owned(),
    };
    let action = Arc::new(Action { verb: "create".to_owned(), target });
    let command = AuthorizeExplained {
        identity: Arc::new(call.user().clone()),
        action: action.clone(),
        selection: Arc::default(),
    };
    let verdict = authorization::send(&write.backend.access.authorizer, command).await?;
    match (&verdict.decision, verdict.error) {
        (Decision::Allowed, _) => Ok(()),
        (_, Some(error)) => Err(Status::internal(error)),
        (Decision::Denied(reason) | Decision::NoOpinion(reason), None) => {
            Err(denied(&call.user().name, &action, reason))
        }
    }
}
