//! Helpers of the tests of several crates.

use pilothouse_types::authorization::{Action, Target};

use crate::rbac::rule::{Rule, StringList};

fn words(text: &str) -> StringList {
    text.split_whitespace().map(|word| if word == "core" { "" } else { word }.into()).collect()
}

/// A rule for resources: verbs, groups, resources, names.
pub fn rule(verbs: &str, groups: &str, resources: &str, names: &str) -> Rule {
    Rule {
        verbs: words(verbs),
        api_groups: words(groups),
        resources: words(resources),
        resource_names: words(names),
        paths: words(""),
    }
}

/// A rule for paths.
pub fn path_rule(verbs: &str, paths: &str) -> Rule {
    Rule { verbs: words(verbs), paths: words(paths), ..Rule::default() }
}

/// An action: `get pods/log a` in a namespace, `get /path`.
pub fn action(verb: &str, group: &str, resource_path: &str, namespace: &str, name: &str) -> Action {
    let (resource, subresource) = resource_path.split_once('/').unwrap_or((resource_path, ""));
    let target = Target::Resource {
        group: group.into(),
        version: "v1".into(),
        resource: resource.into(),
        subresource: subresource.into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    Action { verb: verb.into(), target }
}
