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
pub fn matched_resources(policy: &Value) -> Vec<(String, String, String)> {
    let rules =
        policy.get_path(&["spec", "matchConstraints", "resourceRules"]).map(Value::items).unwrap_or_default();
    let mut resources = Vec::new();
    for rule in rules {
        let (groups, versions) = (rule.sorted_strings("apiGroups"), rule.sorted_strings("apiVersions"));
        if groups.iter().chain(&versions).any(|value| value.contains('*')) {
            continue;
        }
        let mut plurals = rule.sorted_strings("resources");
        plurals.retain(|plural| !plural.contains(['*', '/']));
        for group in &groups {
            for version in &versions {
                for plural in &plurals {
                    if resources.len() < TYPES_CHECKED {
                        resources.push(((*group).to_owned(), (*version).to_owned(), (*plural).to_owned()));
                    }
                }
            }
        }
    }
    resources
}

/// Checks the expressions of a policy against the matched kinds, in this order. May take seconds.
pub fn check(policy: &Value, kinds: &[(GroupVersionKind, Type)], params: Option<&Type>) -> Vec<Mismatch> {
    check_within(TYPE_CHECK_COST, policy, kinds, params)
}

/// The same within a budget.
fn check_within(
    mut budget: usize,
    policy: &Value,
    kinds: &[(GroupVersionKind, Type)],
    params: Option<&Type>,
) -> Vec<Mismatch> {
    let list = |field: &str| policy.get_path(&["spec", field]).map(Value::items).unwrap_or_default();
    let mut charge = |expressions: &mut dyn Iterator<Item = &str>| {
        let cost: usize = expressions.map(|text| text.len() + TYPE_CHECK_EACH).sum();
        let remaining = budget.checked_sub(cost.saturating_mul(kinds.len()));
        budget = remaining.unwrap_or(0);
        remaining.is_some()
    };
    // Without the variables no expression can be checked.
    if !charge(&mut list("variables").iter().map(|variable| variable.str("expression"))) {
        return Vec::new();
    }
    let mut compilers: Vec<(String, Compiler)> = kinds
        .iter()
        .map(|(kind, object)| {
            let mut compiler = Compiler::typed(object, params.cloned());
            for variable in list("variables") {
                let compiled = compiler.read(variable.str("expression"), true, EnvironmentType::Stored);
                compiler.add(variable.str("name"), compiled.as_ref().ok());
            }
            (format!("{}/{}, Kind={}", kind.group, kind.version, kind.kind), compiler)
        })
        .collect();
    let (mut mismatches, mut total_bytes) = (Vec::new(), 0);
    for (index, validation) in list("validations").iter().enumerate() {
        for field in ["expression", "messageExpression"] {
            let text = validation.str(field);
            if text.is_empty() && field == "messageExpression" {
                continue;
            }
            if !charge(&mut std::iter::once(text)) {
                return mismatches;
            }
            let errors = compilers.iter_mut().filter_map(|(kind, compiler)| {
                let error = compiler.read(text, true, EnvironmentType::Stored).err()?;
                Some(format!("{kind}: {error}\n"))
            });
            let errors: Vec<String> = errors.collect();
            if !errors.is_empty() {
                let field = format!("spec.validations[{index}].{field}");
                let warning = errors.join("\n");
                total_bytes += field.len() + warning.len();
                if total_bytes > TYPE_WARNINGS_BYTES {
                    return mismatches;
                }
                mismatches.push(Mismatch { field, warning });
            }
        }
    }
    mismatches
}

/// The type of the objects of a built-in kind.
pub fn type_of(registry: &Registry, kind: &GroupVersionKind) -> Option<Type> {
    let id = registry.lookup(kind)?;
    let mut builder = TypeBuilder { registry, built: BTreeMap::new(), in_progress: Vec::new() };
    Some(builder.decl_type(id, &kind.kind).kind()).filter(|kind| matches!(kind, Type::Object(_)))
}

struct TypeBuilder<'r> {
    registry: &'r Registry,
    built: BTreeMap<TypeId, Arc<DeclType>>,
    /// The types on the current path: a recursive one becomes `dyn`.
    in_progress: Vec<TypeId>,
}

impl TypeBuilder<'_> {
    fn decl_type(&mut self, id: TypeId, name: &str) -> Arc<DeclType> {
        if let Some(decl_type) = self.built.get(&id) {
            return decl_type.clone();
        }
        if self.in_progress.contains(&id) {
            return Arc::new(DeclType::any());
        }
        self.in_progress.push(id);
        let decl_kind = self.decl_kind(id, name);
        self.in_progress.pop();
        let decl_type = Arc::new(DeclType { decl_kind, max_elements: u64::MAX, min_serialized_size: 1 });
        self.built.insert(id, decl_type.clone());
        decl_type
    }

    fn decl_kind(&mut self, id: TypeId, name: &str) -> DeclKind {
        let registry = self.registry;
        match registry.get(id) {
            SchemaType::Struct(structure) if structure.open.is_some() => DeclKind::Dyn,
            SchemaType::Struct(structure) => {
                let mut fields = BTreeMap::new();
                for field in &structure.fields {
                    let decl_type = self.decl_type(field.ty, &format!("{name}.{}", field.name));
                    if let Some(escaped) = escape(&field.name) {
                        fields.insert(
                            escaped.to_string(),
                            Property { name: field.name.to_string(), decl_type },
                        );
                    }
                }
                DeclKind::Object(Arc::new(ObjectType { name: name.to_owned(), fields }))
            }
            SchemaType::List(list) => {
                DeclKind::List(self.decl_type(list.item, &format!("{name}.@idx")), ListKind::Ordered)
            }
            SchemaType::Map(map) => DeclKind::Map(self.decl_type(map.value, &format!("{name}.@elem"))),
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

    fn type_check(expression: &str) -> Vec<Mismatch> {
        let registry = Registry::builtin().unwrap();
        let policy = format!(
            r#"{{"spec":{{"matchConstraints":{{"resourceRules":[{{"apiGroups":["apps"],"apiVersions":["v1"],"resources":["deployments","*/scale"]}},
            {{"apiGroups":["*"],"apiVersions":["v1"],"resources":["pods"]}}]}},
            "variables":[{{"name":"r","expression":"object.spec.replicas"}}],"validations":[{{"expression":"{expression}"}}]}}}}"#
        );
        let policy = json::read(policy.as_bytes()).unwrap();
        assert_eq!(
            matched_resources(&policy),
            [("apps".to_owned(), "v1".to_owned(), "deployments".to_owned())]
        );
        let kind = GroupVersionKind::new("apps", "v1", "Deployment");
        let object = type_of(&registry, &kind).unwrap();
        check(&policy, &[(kind, object)], None)
    }

    #[test]
    fn expressions_are_type_checked_against_matched_kinds() {
        for good in [
            "object.spec.replicas < 3",
            "variables.r < 3",
            "object.metadata.labels['a'] == 'b' && object.kind == 'Deployment'",
            "object.spec.template.spec.containers.all(c, c.image.startsWith('x'))",
            "object.metadata.creationTimestamp < timestamp('2020-01-01T00:00:00Z')",
        ] {
            assert_eq!(type_check(good), [], "{good}");
        }
        let mismatches = type_check("object.replicas > 1");
        assert_eq!(mismatches[0].field, "spec.validations[0].expression");
        assert_eq!(
            mismatches[0].warning,
            "apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'\n | object.replicas > 1\n | ......^\n"
        );
        assert!(
            type_check("variables.r == 'x'")[0].warning.contains("no matching overload"),
            "variables have types too"
        );
    }

    #[test]
    fn type_checking_stops_at_cost_budget() {
        let registry = Registry::builtin().unwrap();
        let kind = GroupVersionKind::new("apps", "v1", "Deployment");
        let kinds = [(kind.clone(), type_of(&registry, &kind).unwrap())];
        let count_mismatches = |budget: usize, variables: usize, expression: &str| {
            let variable = r#"{"name":"v","expression":"1"}"#;
            let validation = format!(r#"{{"expression":"{expression}"}}"#);
            let policy = format!(
                r#"{{"spec":{{"variables":[{}],"validations":[{}]}}}}"#,
                vec![variable; variables].join(","),
                vec![validation; 40].join(",")
            );
            check_within(budget, &json::read(policy.as_bytes()).unwrap(), &kinds, None).len()
        };
        assert_eq!(count_mismatches(TYPE_CHECK_COST, 1, "object.no"), 40);
        assert_eq!(count_mismatches(10 * (TYPE_CHECK_EACH + 9), 0, "object.no"), 10);
        assert_eq!(
            count_mismatches(10 * TYPE_CHECK_EACH, 10, "object.no"),
            0,
            "nothing can be checked without the variables"
        );
        let long = format!("object.no == '{}'", "x".repeat(15_000));
        let some = count_mismatches(TYPE_CHECK_COST, 0, &long);
        assert!((1..40).contains(&some), "warnings must fit into an object: {some}");
    }

    #[test]
    fn recursive_types_become_dyn() {
        let registry = Registry::builtin().unwrap();
        let kind = GroupVersionKind::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        assert!(type_of(&registry, &kind).is_some());
    }
}
