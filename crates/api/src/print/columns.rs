//! The columns of a table, with their descriptions.

use std::borrow::Cow;
use std::sync::Arc;

use pilothouse_apimachinery::schema::OBJECT_META;

use crate::catalog::resource::{Column, ColumnDescription, Resource};
use crate::descriptions;

/// Begins the list of values at the end of a description, which column definitions omit.
const ENUM_VALUES: &str = "\n\nPossible enum values:";

/// A column definition of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnDefinition {
    /// The heading.
    pub name: Arc<str>,
    /// The type of the cells.
    pub kind: Arc<str>,
    /// The format of the cells, such as `name`.
    pub format: Arc<str>,
    /// The description for people.
    pub description: Cow<'static, str>,
    /// Zero for columns that are always shown.
    pub priority: u32,
}

/// The columns of a resource's tables.
pub fn columns(resource: &Resource) -> Vec<ColumnDefinition> {
    if resource.columns.is_empty() && (&*resource.gv.group, &*resource.kind) == ("autoscaling", "Scale") {
        return scale_columns();
    }
    if resource.columns.is_empty() {
        return vec![
            described_by_field("Name", "string", "name", OBJECT_META, "name"),
            described_by_field("Created At", "date", "", OBJECT_META, "creationTimestamp"),
        ];
    }
    resource.columns.iter().map(definition).collect()
}

/// The columns of `Scale`, which is not a resource of its own.
pub fn scale_columns() -> Vec<ColumnDefinition> {
    vec![
        described_by_field("Name", "string", "", OBJECT_META, "name"),
        described_by_field("Desired", "integer", "", "autoscaling/v1.ScaleSpec", "replicas"),
        described_by_field("Available", "integer", "", "autoscaling/v1.ScaleStatus", "replicas"),
        described_by_field("Age", "string", "", OBJECT_META, "creationTimestamp"),
    ]
}

/// The columns of `Scale` of custom resources, whose tables differ in the reference.
pub fn custom_scale_columns() -> Vec<Column> {
    let column = |name: &str, kind: &str, format: &str, description| Column {
        name: name.into(),
        kind: kind.into(),
        format: format.into(),
        priority: 0,
        description,
    };
    let metadata_field = |field: &str| ColumnDescription::Field(OBJECT_META.into(), field.into());
    let text = |text: &str| ColumnDescription::Text(text.into());
    vec![
        column("Name", "string", "name", metadata_field("name")),
        column("Desired", "integer", "", text("Number of desired replicas")),
        column("Available", "integer", "", text("Number of actual replicas")),
        column("Age", "date", "", metadata_field("creationTimestamp")),
    ]
}

fn definition(column: &Column) -> ColumnDefinition {
    let description = match &column.description {
        ColumnDescription::Field(type_name, field) => Cow::Borrowed(field_description(type_name, field)),
        ColumnDescription::Text(text) => Cow::Owned(text.to_string()),
    };
    ColumnDefinition {
        name: column.name.clone(),
        kind: column.kind.clone(),
        format: column.format.clone(),
        description,
        priority: column.priority,
    }
}

fn described_by_field(
    name: &str,
    kind: &str,
    format: &str,
    type_name: &str,
    field: &str,
) -> ColumnDefinition {
    let description = ColumnDescription::Field(type_name.into(), field.into());
    definition(&Column {
        name: name.into(),
        kind: kind.into(),
        format: format.into(),
        priority: 0,
        description,
    })
}

/// The description of a field, by type as `package/version.Name` and JSON name; empty if there is none.
fn field_description(type_name: &str, field: &str) -> &'static str {
    let text = descriptions::for_field(&published(type_name), field).unwrap_or_default();
    text.split_once(ENUM_VALUES).map_or(text, |(text, _)| text)
}

/// The published name of a type that the schema table calls `package/version.Name`.
fn published(type_name: &str) -> String {
    match type_name.split_once('/') {
        Some(("meta", rest)) => format!("io.k8s.apimachinery.pkg.apis.meta.{rest}"),
        Some((package, rest)) => format!("io.k8s.api.{package}.{rest}"),
        None => type_name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::build::Builtin;
    use crate::catalog::runtime_config::RuntimeConfig;

    #[test]
    fn columns_are_defined_by_the_resource() {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let pods = columns(catalog.find("", "v1", "pods").unwrap());
        assert_eq!(pods.len(), 9);
        assert_eq!((&*pods[0].name, &*pods[0].kind, &*pods[0].format), ("Name", "string", "name"));
        assert_eq!(pods[2].description, "The aggregate status of the containers in this pod.");
        assert_eq!((&*pods[8].name, pods[8].priority), ("Readiness Gates", 1));
        let roles = columns(catalog.find("rbac.authorization.k8s.io", "v1", "roles").unwrap());
        let heads: Vec<(&str, &str)> = roles.iter().map(|column| (&*column.name, &*column.kind)).collect();
        assert_eq!(heads, [("Name", "string"), ("Created At", "date")]);
        assert_eq!(scale_columns().len(), 4);
    }

    #[test]
    fn column_types_have_published_names() {
        assert_eq!(published("meta/v1.ObjectMeta"), "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
        assert_eq!(published("core/v1.PodSpec"), "io.k8s.api.core.v1.PodSpec");
        assert_eq!(field_description("core/v1.Nothing", "nowhere"), "");
    }

    /// Columns without a description.
    const UNDESCRIBED: [(&str, &str); 3] = [
        ("LeaseCandidate", "BinaryVersion"),
        ("LeaseCandidate", "EmulationVersion"),
        ("RuntimeClass", "Handler"),
    ];

    #[test]
    #[cfg_attr(not(has_descriptions), ignore = "built without the descriptions of the API")]
    fn every_column_has_a_description() {
        let config = RuntimeConfig::parse("api/all=true").unwrap();
        let catalog = Builtin::load().unwrap().serve(&config).unwrap();
        for resource in catalog.resources() {
            for column in columns(resource).into_iter().chain(scale_columns()) {
                let expected = !UNDESCRIBED.contains(&(&*resource.kind, &*column.name));
                assert_eq!(!column.description.is_empty(), expected, "{} {}", resource.kind, column.name);
            }
        }
    }
}
