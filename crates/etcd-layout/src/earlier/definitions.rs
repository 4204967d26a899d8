//! CustomResourceDefinitions in v1beta1, which is how the reference stores them: it is shorter where all versions of a definition
//! have the same schema.

use pilothouse_apimachinery::value::Value;

/// What a version has in v1, and what all versions together have in v1beta1 if it is the same.
const COMMON_FIELDS: [(&str, &str); 4] = [
    ("schema", "validation"),
    ("subresources", "subresources"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];

/// The name of the path of a column, in v1beta1 and in v1.
const COLUMN_PATHS: (&str, &str) = ("JSONPath", "jsonPath");

/// Renames the paths of columns in all versions of a definition.
fn rename_column_paths(versions: &mut [Value], from: &str, to: &str) {
    for version in versions {
        let columns = version.get("additionalPrinterColumns").map(Value::items).unwrap_or_default();
        let mut columns = columns.to_vec();
        if columns.is_empty() {
            continue;
        }
        for column in &mut columns {
            if let Some(path) = column.remove(from) {
                column.set(to, path);
            }
        }
        version.set("additionalPrinterColumns", columns);
    }
}

/// A definition of v1 in v1beta1.
pub fn to_v1beta1(mut definition: Value) -> Value {
    definition.set("apiVersion", "apiextensions.k8s.io/v1beta1");
    let spec = definition.entry("spec");
    let mut versions = spec.get("versions").map(|versions| versions.items().to_vec()).unwrap_or_default();
    rename_column_paths(&mut versions, COLUMN_PATHS.1, COLUMN_PATHS.0);
    if let Some(first) = versions.first().cloned() {
        spec.set("version", first.str("name"));
        for (field, common) in COMMON_FIELDS {
            if versions.iter().any(|version| version.get(field) != first.get(field)) {
                continue;
            }
            for version in &mut versions {
                version.remove(field);
            }
            if let Some(value) = first.get(field) {
                spec.set(common, value.clone());
            }
        }
        spec.set("versions", versions);
    }
    if let Some(conversion) = spec.get("conversion").filter(|conversion| !conversion.is_null()).cloned() {
        spec.set("conversion", conversion_to_v1beta1(conversion));
    }
    // v1 cannot tell false from absent, and v1beta1 takes an absent one for true.
    if spec.get("preserveUnknownFields").is_none_or(Value::is_null) {
        spec.set("preserveUnknownFields", false);
    }
    definition
}

fn conversion_to_v1beta1(mut conversion: Value) -> Value {
    if let Some(webhook) = conversion.remove("webhook") {
        for (field, flat) in [
            ("clientConfig", "webhookClientConfig"),
            ("conversionReviewVersions", "conversionReviewVersions"),
        ] {
            if let Some(value) = webhook.get(field) {
                conversion.set(flat, value.clone());
            }
        }
    }
    conversion
}

/// A definition of v1beta1 in v1, with the defaults that v1beta1 has and v1 has not.
pub fn to_v1(mut definition: Value) -> Value {
    definition.set("apiVersion", "apiextensions.k8s.io/v1");
    let spec = definition.entry("spec");
    let mut versions = spec.get("versions").map(|versions| versions.items().to_vec()).unwrap_or_default();
    let only_version =
        spec.remove("version").filter(|version| version.as_str().is_some_and(|name| !name.is_empty()));
    if let Some(name) = only_version.filter(|_| versions.is_empty()) {
        let mut version = Value::object();
        version.set("name", name);
        version.set("served", true);
        version.set("storage", true);
        versions.push(version);
    }
    for (field, common) in COMMON_FIELDS {
        if let Some(value) = spec.remove(common).filter(|value| !value.is_null()) {
            for version in &mut versions {
                version.set(field, value.clone());
            }
        }
    }
    rename_column_paths(&mut versions, COLUMN_PATHS.0, COLUMN_PATHS.1);
    spec.set("versions", versions);
    if spec.str("scope").is_empty() {
        spec.set("scope", "Namespaced");
    }
    if let Some(conversion) = spec.get("conversion").filter(|conversion| !conversion.is_null()).cloned() {
        spec.set("conversion", conversion_to_v1(conversion));
    }
    match spec.get("preserveUnknownFields").and_then(Value::as_bool) {
        None => spec.set("preserveUnknownFields", true),
        Some(true) => {}
        // A value that equals absence is absent in canonical form.
        Some(false) => drop(spec.remove("preserveUnknownFields")),
    }
    definition
}

fn conversion_to_v1(mut conversion: Value) -> Value {
    let client = conversion.remove("webhookClientConfig").filter(|client| !client.is_null());
    let versions =
        conversion.remove("conversionReviewVersions").filter(|versions| !versions.items().is_empty());
    let versions = match versions {
        None if conversion.str("strategy") == "Webhook" => Some(Value::from(vec![Value::from("v1beta1")])),
        versions => versions,
    };
    if client.is_none() && versions.is_none() {
        return conversion;
    }
    let webhook = conversion.entry("webhook");
    if let Some(client) = client {
        webhook.set("clientConfig", client);
    }
    if let Some(versions) = versions {
        webhook.set("conversionReviewVersions", versions);
    }
    conversion
}
