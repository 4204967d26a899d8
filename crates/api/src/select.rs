//! Selectors of lists and watches.

mod selectable_fields;

use pilothouse_apimachinery::selectors::fields::Term;
use pilothouse_types::filter::{FieldRule, Filter, LabelRule, NAME_FIELD, NAMESPACE_FIELD};

pub use selectable_fields::selectable_fields;

use pilothouse_apimachinery::options::ListOptions;
use pilothouse_apimachinery::status::{self, Status};

use super::catalog::resource::Resource;

/// The filter of a request for a collection: its options, the namespace of its path (empty for all), and the name of its path
/// (empty for all), which only a watch of one object has.
pub fn filter(
    resource: &Resource,
    options: &ListOptions,
    namespace: &str,
    name: &str,
) -> status::Result<Filter> {
    let selector = selectable_fields::resolve(&options.fields, resource)?;
    if !name.is_empty() && !selector.is_empty() && selector.exact(NAME_FIELD).as_deref() != Some(name) {
        return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
    }
    let mut filter = Filter { labels: options.labels.clone(), ..Filter::everything() };
    if !namespace.is_empty() {
        filter.namespace = Some(namespace.into());
    }
    if !name.is_empty() {
        filter.name = Some(name.into());
    }
    for term in selector.terms() {
        add_term(&mut filter, term);
    }
    if let Some(custom) = &resource.custom {
        // Name and namespace come from the key: objects need not be read for them.
        let needs_object = |rule: &FieldRule| !matches!(rule.field(), NAME_FIELD | NAMESPACE_FIELD);
        filter.reader = Some(selectable_fields::reader(custom, resource.ordinal))
            .filter(|_| filter.fields.iter().any(needs_object));
    }
    Ok(filter)
}

/// Adds one requirement. Name and namespace are parts of the key, where a store finds them without reading objects.
fn add_term(filter: &mut Filter, term: &Term) {
    let value = &*term.value;
    let key_part = match (&*term.field, term.equals) {
        (NAME_FIELD, true) => &mut filter.name,
        (NAMESPACE_FIELD, true) => &mut filter.namespace,
        (field, true) => return filter.fields.push(FieldRule::Equals(field.into(), value.into())),
        (field, false) => return filter.fields.push(FieldRule::Differs(field.into(), value.into())),
    };
    match key_part {
        None => *key_part = Some(value.into()),
        Some(other) if **other == *value => {}
        // Two different names at once: no object matches.
        Some(_) => filter.labels.push(match_nothing()),
    }
}

/// A rule that matches nothing.
fn match_nothing() -> LabelRule {
    LabelRule::In("".into(), [].into())
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::query::Query;

    use super::*;
    use crate::catalog::build::Builtin;
    use crate::catalog::runtime_config::RuntimeConfig;

    fn filter_of(plural: &str, query: &str, namespace: &str, name: &str) -> Result<Filter, String> {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let resource = catalog.find("", "v1", plural).unwrap();
        let options = ListOptions::parse(&Query::parse(query)).unwrap();
        filter(resource, &options, namespace, name).map_err(|error| error.message)
    }

    #[test]
    fn name_and_namespace_selectors_become_key_filters() {
        let actual = filter_of(
            "pods",
            "fieldSelector=metadata.name%3Da,spec.host%3Dn1,status.phase!%3DRunning",
            "ns",
            "",
        );
        let expected = Filter {
            namespace: Some("ns".into()),
            name: Some("a".into()),
            labels: vec![],
            fields: vec![
                FieldRule::Equals("spec.nodeName".into(), "n1".into()),
                FieldRule::Differs("status.phase".into(), "Running".into()),
            ],
            reader: None,
        };
        assert_eq!(actual.unwrap(), expected);
    }

    #[test]
    fn contradicting_selectors_match_nothing() {
        let two = filter_of("pods", "fieldSelector=metadata.name%3Da,metadata.name%3Db", "", "").unwrap();
        assert_eq!(two.labels, [match_nothing()]);
        let other = filter_of("pods", "fieldSelector=metadata.namespace%3Dx", "ns", "").unwrap();
        assert_eq!((other.namespace.as_deref(), other.labels.len()), (Some("ns"), 1));
        let same = filter_of("pods", "fieldSelector=metadata.namespace%3Dns", "ns", "").unwrap();
        assert_eq!((same.namespace.as_deref(), same.labels.len()), (Some("ns"), 0));
    }

    #[test]
    fn name_in_path_must_match_field_selector() {
        let expected = Some("a".to_owned());
        let name = |query| filter_of("pods", query, "ns", "a").map(|filter| filter.name.map(String::from));
        assert_eq!(name(""), Ok(expected.clone()));
        assert_eq!(name("fieldSelector=metadata.name%3Da"), Ok(expected));
        let refused = Err("fieldSelector metadata.name doesn't match requested name".to_owned());
        assert_eq!(name("fieldSelector=metadata.name%3Db"), refused);
        assert_eq!(name("fieldSelector=spec.nodeName%3Db"), refused);
    }
}
