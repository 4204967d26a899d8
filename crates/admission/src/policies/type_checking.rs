//! Type checking of policies against the resources that they match. The result is only informational (`status.typeChecking`).

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_apimachinery::schema::{GroupVersionKind, Registry, Scalar, Type as SchemaType, TypeId};
use pilothouse_apimachinery::value::Value;
use pilothouse_cel::escape::escape;
use pilothouse_cel::types::{DeclKind, DeclType, ListKind, ObjectType, Property, Type};

use super::expressions::{Compiler, EnvironmentType};
use crate::limits::{TYPE_CHECK_COST, TYPE_CHECK_EACH, TYPE_WARNINGS_BYTES, TYPES_CHECKED};

/// A type checking warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The field path of the expression.
    pub field: String,
    /// The errors by kind.
    pub warning: String,
}

/// The matched resources as group, version and plural. Rules with wildcards are skipped.
pub fn named(policy: &Value) -> Vec<(String, String, String)> {
    let rules =
        policy.at(&["spec", "matchConstraints", "resourceRules"]).map(Value::items).unwrap_or_default();
    let mut found = Vec::new();
    for rule in rules {
        let texts = |field: &str| -> Vec<&str> {
            let mut all: Vec<&str> = rule
                .get(field)
                .map(Value::items)
                .unwrap_or_default()
                .iter()
                .filter_map(Value::as_str)
                .collect();
            all.sort_unstable();
            all
        };
        let (groups, versions) = (texts("apiGroups"), texts("apiVersions"));
        if groups.iter().chain(&versions).any(|word| word.contains('*')) {
            continue;
        }
        for group in &groups {
            for version in &versions {
                for resource in texts("resources").iter().filter(|word| !word.contains(['*', '/'])) {
                    if found.len() < TYPES_CHECKED {
                        found.push(((*group).to_owned(), (*version).to_owned(), (*resource).to_owned()));
                    }
                }
            }
        }
    }
    found
}

/// Checks the expressions of a policy against the matched kinds, in this order. May take seconds.
pub fn check(policy: &Value, kinds: &[(GroupVersionKind, Type)], params: Option<&Type>) -> Vec<Mismatch> {
    check_within(TYPE_CHECK_COST, policy, kinds, params)
}

/// The same within a budget.
fn check_within(
    mut left: usize,
    policy: &Value,
    kinds: &[(GroupVersionKind, Type)],
    params: Option<&Type>,
) -> Vec<Mismatch> {
    let list = |field: &str| policy.at(&["spec", field]).map(Value::items).unwrap_or_default();
    let mut affords = |expressions: &mut dyn Iterator<Item = &str>| {
        let cost: usize = expressions.map(|text| text.len() + TYPE_CHECK_EACH).sum();
        let rest = left.checked_sub(cost.saturating_mul(kinds.len()));
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    // Without the variables no expression can be checked.
    if !affords(&mut list("variables").iter().map(|variable| variable.str("expression"))) {
        return Vec::new();
    }
    let mut compilers: Vec<(String, Compiler)> = kinds
        .iter()
        .map(|(kind, object)| {
            let mut compiler = Compiler::typed(object, params.cloned());
            for variable in list("variables") {
                let made = compiler.read(variable.str("expression"), true, EnvironmentType::Stored);
                compiler.add(variable.str("name"), made.as_ref().ok());
            }
            (format!("{}/{}, Kind={}", kind.group, kind.version, kind.kind), compiler)
        })
        .collect();
    let (mut found, mut told) = (Vec::new(), 0);
    for (place, validation) in list("validations").iter().enumerate() {
        for field in ["expression", "messageExpression"] {
            let text = validation.str(field);
            if text.is_empty() && field == "messageExpression" {
                continue;
            }
            if !affords(&mut std::iter::once(text)) {
                return found;
            }
            let wrong = compilers.iter_mut().filter_map(|(kind, compiler)| {
                let why = compiler.read(text, true, EnvironmentType::Stored).err()?;
                Some(format!("{kind}: {why}\n"))
            });
            let wrong: Vec<String> = wrong.collect();
            if !wrong.is_empty() {
                let field = format!("spec.validations[{place}].{field}");
                let warning = wrong.join("\n");
                told += field.len() + warning.len();
                if told > TYPE_WARNINGS_BYTES {
                    return found;
                }
                found.push(Mismatch { field, warning });
            }
        }
    }
    found
}

/// The type of the objects of a built-in kind.
pub fn type_of(registry: &Registry, kind: &GroupVersionKind) -> Option<Type> {
    let id = registry.lookup(kind)?;
    let mut walk = Walk { registry, known: BTreeMap::new(), within: Vec::new() };
    Some(walk.shape(id, &kind.kind).kind()).filter(|kind| matches!(kind, Type::Object(_)))
}

struct Walk<'r> {
    registry: &'r Registry,
    known: BTreeMap<TypeId, Arc<DeclType>>,
    /// The types on the current path: a recursive one becomes `dyn`.
    within: Vec<TypeId>,
}

impl Walk<'_> {
    fn shape(&mut self, id: TypeId, name: &str) -> Arc<DeclType> {
        if let Some(known) = self.known.get(&id) {
            return known.clone();
        }
        if self.within.contains(&id) {
            return Arc::new(DeclType::any());
        }
        self.within.push(id);
        let form = self.form(id, name);
        self.within.pop();
        let shape = Arc::new(DeclType { form, most: u64::MAX, least: 1 });
        self.known.insert(id, shape.clone());
        shape
    }

    fn form(&mut self, id: TypeId, name: &str) -> DeclKind {
        let registry = self.registry;
        match registry.get(id) {
            SchemaType::Struct(structure) if structure.open.is_some() => DeclKind::Dyn,
            SchemaType::Struct(structure) => {
                let mut fields = BTreeMap::new();
                for field in &structure.fields {
                    let shape = self.shape(field.ty, &format!("{name}.{}", field.name));
                    if let Some(escaped) = escape(&field.name) {
                        fields.insert(escaped.to_string(), Property { name: field.name.to_string(), shape });
                    }
                }
                DeclKind::Object(Arc::new(ObjectType { name: name.to_owned(), fields }))
            }
            SchemaType::List(list) => {
                DeclKind::List(self.shape(list.item, &format!("{name}.@idx")), ListKind::Ordered)
            }
            SchemaType::Map(map) => DeclKind::Map(self.shape(map.value, &format!("{name}.@elem"))),
            SchemaType::Either(_) => DeclKind::Dyn,
            SchemaType::Scalar(scalar) => match scalar {
                Scalar::String => DeclKind::String,
                Scalar::Int32 | Scalar::Int64 => DeclKind::Int,
                Scalar::Bool => DeclKind::Bool,
                Scalar::Double => DeclKind::Double,
                Scalar::Bytes => DeclKind::Bytes,
                Scalar::Time | Scalar::MicroTime => DeclKind::Timestamp,
                _ => DeclKind::Dyn,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;

    fn told(expression: &str) -> Vec<Mismatch> {
        let registry = Registry::builtin().unwrap();
        let policy = format!(
            r#"{{"spec":{{"matchConstraints":{{"resourceRules":[{{"apiGroups":["apps"],"apiVersions":["v1"],"resources":["deployments","*/scale"]}},
            {{"apiGroups":["*"],"apiVersions":["v1"],"resources":["pods"]}}]}},
            "variables":[{{"name":"r","expression":"object.spec.replicas"}}],"validations":[{{"expression":"{expression}"}}]}}}}"#
        );
        let policy = json::read(policy.as_bytes()).unwrap();
        assert_eq!(named(&policy), [("apps".to_owned(), "v1".to_owned(), "deployments".to_owned())]);
        let kind = GroupVersionKind::new("apps", "v1", "Deployment");
        let object = type_of(&registry, &kind).unwrap();
        check(&policy, &[(kind, object)], None)
    }

    #[test]
    fn expressions_are_held_against_the_types_of_objects() {
        for good in [
            "object.spec.replicas < 3",
            "variables.r < 3",
            "object.metadata.labels['a'] == 'b' && object.kind == 'Deployment'",
            "object.spec.template.spec.containers.all(c, c.image.startsWith('x'))",
            "object.metadata.creationTimestamp < timestamp('2020-01-01T00:00:00Z')",
        ] {
            assert_eq!(told(good), [], "{good}");
        }
        let wrong = told("object.replicas > 1");
        assert_eq!(wrong[0].field, "spec.validations[0].expression");
        assert_eq!(
            wrong[0].warning,
            "apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'\n | object.replicas > 1\n | ......^\n"
        );
        assert!(
            told("variables.r == 'x'")[0].warning.contains("no matching overload"),
            "variables have types too"
        );
    }

    #[test]
    fn a_policy_that_says_too_much_is_looked_at_in_part() {
        let registry = Registry::builtin().unwrap();
        let kind = GroupVersionKind::new("apps", "v1", "Deployment");
        let kinds = [(kind.clone(), type_of(&registry, &kind).unwrap())];
        let found = |left: usize, variables: usize, wrong: &str| {
            let variable = r#"{"name":"v","expression":"1"}"#;
            let validation = format!(r#"{{"expression":"{wrong}"}}"#);
            let policy = format!(
                r#"{{"spec":{{"variables":[{}],"validations":[{}]}}}}"#,
                vec![variable; variables].join(","),
                vec![validation; 40].join(",")
            );
            check_within(left, &json::read(policy.as_bytes()).unwrap(), &kinds, None).len()
        };
        assert_eq!(found(TYPE_CHECK_COST, 1, "object.no"), 40);
        assert_eq!(found(10 * (TYPE_CHECK_EACH + 9), 0, "object.no"), 10);
        assert_eq!(
            found(10 * TYPE_CHECK_EACH, 10, "object.no"),
            0,
            "nothing can be said without the variables"
        );
        let long = format!("object.no == '{}'", "x".repeat(15_000));
        let some = found(TYPE_CHECK_COST, 0, &long);
        assert!((1..40).contains(&some), "what is told has to fit into an object: {some}");
    }

    #[test]
    fn types_that_contain_themselves_end() {
        let registry = Registry::builtin().unwrap();
        let kind = GroupVersionKind::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        assert!(type_of(&registry, &kind).is_some());
    }
}
