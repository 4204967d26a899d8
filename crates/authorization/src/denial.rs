//! The message of a 403.

use pilothouse_apimachinery::status::{GroupResource, Status};
use pilothouse_types::authorization::{Action, Target};

/// 403 in the reference's words. `reason`: the reasons of the authorizers, if any.
pub fn denied(user: &str, action: &Action, reason: &str) -> Box<Status> {
    let verb = &action.verb;
    let mut message = match &action.target {
        Target::Path(path) => format!("User \"{user}\" cannot {verb} path \"{path}\""),
        Target::Resource { group, resource, subresource, namespace, .. } => {
            let subresource_part =
                if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
            let scope = match namespace.as_str() {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace \"{namespace}\""),
            };
            format!(
                "User \"{user}\" cannot {verb} resource \"{resource}{subresource_part}\" in API group \"{group}\" {scope}"
            )
        }
    };
    // Escaped, because a browser might render the message as HTML.
    message = message.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    if !reason.is_empty() {
        message = format!("{message}: {reason}");
    }
    let resource = match &action.target {
        Target::Path(_) => None,
        Target::Resource { group, resource, name, .. } => {
            Some((GroupResource { group, resource }, name.as_str()))
        }
    };
    Status::forbidden(&message, resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denial_message_names_user_action_and_scope() {
        let target = Target::Resource {
            group: "apps".into(),
            version: "v1".into(),
            resource: "deployments".into(),
            subresource: "scale".into(),
            namespace: "n".into(),
            name: "d".into(),
        };
        let status = denied("<u>", &Action { verb: "get".into(), target }, "no role");
        assert_eq!(
            status.message,
            "deployments.apps \"d\" is forbidden: User \"&lt;u&gt;\" cannot get resource \"deployments/scale\" in API \
             group \"apps\" in the namespace \"n\": no role"
        );
        let path = Action { verb: "get".into(), target: Target::Path("/x".into()) };
        assert_eq!(denied("u", &path, "").message, "forbidden: User \"u\" cannot get path \"/x\"");
    }
}
