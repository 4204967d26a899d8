//! Exports from a source in memory.

use std::cell::RefCell;

use pilothouse_apimachinery::codec::yaml;

use super::super::object_stream::Page;
use super::*;

/// Two objects per page, of two resources and one of an extension server.
#[derive(Default)]
struct Memory {
    listed: RefCell<Vec<String>>,
}

fn resource(name: &str, kind: &str, is_namespaced: bool, is_aggregated: bool) -> Resource {
    Resource {
        group: String::new(),
        version: "v1".to_owned(),
        name: name.to_owned(),
        kind: kind.to_owned(),
        is_namespaced,
        has_status: false,
        is_aggregated,
    }
}

impl Source for Memory {
    async fn resources(&self) -> Result<Vec<Resource>, String> {
        Ok(vec![
            resource("configmaps", "ConfigMap", true, false),
            resource("metrics", "Metric", false, true),
            resource("namespaces", "Namespace", false, false),
        ])
    }

    async fn list(&self, listing: &Listing<'_>, token: Option<&str>) -> Result<Page, String> {
        let namespace = listing.namespace.unwrap_or("all");
        self.listed.borrow_mut().push(format!("{} {namespace}", listing.resource.name));
        let kind = &listing.resource.kind;
        let numbers = if token.is_some() { [3, 4] } else { [1, 2] };
        let object = |number: u32| {
            let text = format!(
                "{{apiVersion: v1, kind: {kind}, metadata: {{name: a{number}, uid: u, labels: {{app: x{number}}}}}}}"
            );
            yaml::read(text.as_bytes()).unwrap()
        };
        let next = token.is_none().then(|| "more".to_owned());
        Ok(Page { objects: numbers.map(object).into(), next, is_inconsistent: token.is_some() })
    }
}

fn export(line: &[&str]) -> Result<(String, Vec<String>), String> {
    let options = Options::try_parse_from(line).unwrap();
    let source = Memory::default();
    let writer = ObjectWriter::new(Vec::new(), options.output);
    let output = run_until_interrupted(options.export(&source, writer, &mut Progress::new()))?;
    Ok((String::from_utf8(output).unwrap(), source.listed.into_inner()))
}

#[test]
fn export_pages_through_resources_in_order_of_need() {
    let (output, listed) = export(&[]).unwrap();
    assert_eq!(listed, ["namespaces all", "namespaces all", "configmaps all", "configmaps all"]);
    assert_eq!(output.lines().count(), 8);
    let first =
        r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"labels":{"app":"x1"},"name":"a1","uid":"u"}}"#;
    assert_eq!(output.lines().next(), Some(first));
}

#[test]
fn export_includes_extension_resources_that_are_named() {
    let (_, listed) = export(&["--resource", "metrics"]).unwrap();
    assert_eq!(listed, ["metrics all", "metrics all"]);
}

#[test]
fn export_filters_by_labels_and_writes_manifests() {
    let line = ["--resource=configmaps", "-l", "app in (x2,x3)", "--manifests", "-o", "yaml"];
    let (output, _) = export(&line).unwrap();
    let document = |number: u32| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  labels:\n    app: x{number}\n  name: a{number}\n"
        )
    };
    assert_eq!(output, document(2) + &document(3));
}

#[test]
fn export_refuses_resources_that_do_not_exist() {
    assert!(export(&["--resource", "podz"]).unwrap_err().ends_with("is podz"));
}
