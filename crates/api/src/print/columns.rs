//! The columns of a table, with their descriptions.

use std::borrow::Cow;
use std::sync::Arc;

use pilothouse_apimachinery::schema::OBJECT_META;

use crate::catalog::resource::{Column, ColumnDescription, Resource};
use crate::descriptions;

/// After these words the documentation lists the values of a field: more than belongs in a heading.
const LIST_OF_VALUES: &str = "\n\nPossible enum values:";

/// One column, as a table shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnDefinition {
    /// The heading.
    pub name: Arc<str>,
    /// The type of the cells.
    pub kind: Arc<str>,
    /// What the cells are used for, such as `name`.
    pub format: Arc<str>,
    /// What the cells mean.
    pub description: Cow<'static, str>,
    /// Zero for what is always shown.
    pub priority: u32,
}

/// The columns of a resource's tables.
pub fn columns(resource: &Resource) -> Vec<ColumnDefinition> {
    if resource.columns.is_empty() && (&*resource.gv.group, &*resource.kind) == ("autoscaling", "Scale") {
        return scale_columns();
    }
    if resource.columns.is_empty() {
        return vec![
            documented("Name", "string", "name", OBJECT_META, "name"),
            documented("Created At", "date", "", OBJECT_META, "creationTimestamp"),
        ];
    }
    resource.columns.iter().map(definition).collect()
}

/// The columns of the tables of `Scale`, which is no resource of its own.
pub fn scale_columns() -> Vec<ColumnDefinition> {
    vec![
        documented("Name", "string", "", OBJECT_META, "name"),
        documented("Desired", "integer", "", "autoscaling/v1.ScaleSpec", "replicas"),
        documented("Available", "integer", "", "autoscaling/v1.ScaleStatus", "replicas"),
        documented("Age", "string", "", OBJECT_META, "creationTimestamp"),
    ]
}

/// The same of the scales of custom kinds, whose tables are made elsewhere in the reference and say it in other words.
pub fn custom_scale_columns() -> Vec<Column> {
    let column = |name: &str, kind: &str, format: &str, about| Column {
        name: name.into(),
        kind: kind.into(),
        format: format.into(),
        priority: 0,
        about,
    };
    let of_object = |field: &str| ColumnDescription::Field(OBJECT_META.into(), field.into());
    let said = |text: &str| ColumnDescription::Text(text.into());
    vec![
        column("Name", "string", "name", of_object("name")),
        column("Desired", "integer", "", said("Number of desired replicas")),
        column("Available", "integer", "", said("Number of actual replicas")),
        column("Age", "date", "", of_object("creationTimestamp")),
    ]
}

fn definition(column: &Column) -> ColumnDefinition {
    let description = match &column.about {
        ColumnDescription::Field(of, field) => Cow::Borrowed(meaning(of, field)),
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

fn documented(name: &str, kind: &str, format: &str, of: &str, field: &str) -> ColumnDefinition {
    let about = ColumnDescription::Field(of.into(), field.into());
    definition(&Column { name: name.into(), kind: kind.into(), format: format.into(), priority: 0, about })
}

/// What a field means: of a type as `package/version.Name`, by its JSON name. Empty if nobody has said.
fn meaning(of: &str, field: &str) -> &'static str {
    let text = descriptions::of_field(&published(of), field).unwrap_or_default();
    text.split_once(LIST_OF_VALUES).map_or(text, |(text, _)| text)
}

/// The published name of a type that the facts table calls `package/version.Name`.
fn published(of: &str) -> String {
    match of.split_once('/') {
        Some(("meta", rest)) => format!("io.k8s.apimachinery.pkg.apis.meta.{rest}"),
        Some((package, rest)) => format!("io.k8s.api.{package}.{rest}"),
        None => of.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::build::Builtin;
    use crate::catalog::runtime_config::RuntimeConfig;

    #[test]
    fn columns_are_those_of_the_resource() {
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
    fn types_are_documented_under_their_published_names() {
        assert_eq!(published("meta/v1.ObjectMeta"), "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
        assert_eq!(published("core/v1.PodSpec"), "io.k8s.api.core.v1.PodSpec");
        assert_eq!(meaning("core/v1.Nothing", "nowhere"), "");
    }

    /// Columns of which nobody has said what they mean.
    const UNEXPLAINED: [(&str, &str); 3] = [
        ("LeaseCandidate", "BinaryVersion"),
        ("LeaseCandidate", "EmulationVersion"),
        ("RuntimeClass", "Handler"),
    ];

    #[test]
    fn every_column_is_explained() {
        if meaning(OBJECT_META, "name").is_empty() {
            println!("skipped: built without the descriptions of the API");
            return;
        }
        let config = RuntimeConfig::parse("api/all=true").unwrap();
        let catalog = Builtin::load().unwrap().serve(&config).unwrap();
        for resource in catalog.resources() {
            for column in columns(resource).into_iter().chain(scale_columns()) {
                let expected = !UNEXPLAINED.contains(&(&*resource.kind, &*column.name));
                assert_eq!(!column.description.is_empty(), expected, "{} {}", resource.kind, column.name);
            }
        }
    }
}
