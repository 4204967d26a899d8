//! Filters of lists and watches.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::object::{Key, Object, Pairs};

/// The field selector key for the name in the object's key.
pub const NAME_FIELD: &str = "metadata.name";
/// The field selector key for the namespace in the object's key.
pub const NAMESPACE_FIELD: &str = "metadata.namespace";

/// Selects objects of a type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this namespace; `None` for all.
    pub namespace: Option<Box<str>>,
    /// Only this name.
    pub name: Option<Box<str>>,
    /// The label selector: all rules must hold.
    pub labels: Vec<LabelRule>,
    /// The field selector: all rules must hold.
    pub fields: Vec<FieldRule>,
    /// Reads fields that are not stored with objects.
    pub reader: Option<FieldReader>,
}

/// The field that identifies the definition by which an object's other fields were extracted; see [`FieldReader`].
pub const MARK_FIELD: &str = "";

/// Reads the selectable fields of objects whose stored fields may be outdated, because a definition can change while its
/// objects stay. If an object's [`MARK_FIELD`] equals the reader's mark, its stored fields are current and it need not be read.
#[derive(Clone)]
pub struct FieldReader {
    mark: Box<str>,
    read: Arc<dyn Fn(&Object) -> Pairs + Send + Sync>,
}

impl FieldReader {
    /// A reader that applies this function to objects with another mark.
    pub fn new(mark: &str, read: impl Fn(&Object) -> Pairs + Send + Sync + 'static) -> FieldReader {
        FieldReader { mark: mark.into(), read: Arc::new(read) }
    }

    /// Extracts the fields of an object, whatever its mark is.
    pub fn read(&self, object: &Object) -> Pairs {
        (self.read)(object)
    }

    /// The mark of objects whose stored fields are current.
    pub fn mark(&self) -> &str {
        &self.mark
    }
}

impl fmt::Debug for FieldReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FieldReader")
    }
}

impl PartialEq for FieldReader {
    fn eq(&self, other: &FieldReader) -> bool {
        Arc::ptr_eq(&self.read, &other.read)
    }
}

impl Eq for FieldReader {}

/// One requirement of a label selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LabelRule {
    /// The label is there and has one of these values.
    In(Box<str>, BTreeSet<Box<str>>),
    /// The label is absent or has none of these values.
    NotIn(Box<str>, BTreeSet<Box<str>>),
    /// The label is there.
    Exists(Box<str>),
    /// The label is absent.
    Absent(Box<str>),
    /// The label is an integer above this one.
    Above(Box<str>, i64),
    /// The label is an integer below this one.
    Below(Box<str>, i64),
}

/// One requirement of a field selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FieldRule {
    /// The field has this value; a field that is absent has the empty value.
    Equals(Box<str>, Box<str>),
    /// The field has another value.
    Differs(Box<str>, Box<str>),
}

impl Filter {
    /// Selects all objects of the type.
    pub fn everything() -> Filter {
        Filter::default()
    }

    /// Whether it selects by more than the namespace.
    pub fn is_selective(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty() || self.name.is_some()
    }

    /// Whether the object passes the filter.
    pub fn matches(&self, object: &Object) -> bool {
        self.matches_key(&object.key)
            && self.labels.iter().all(|rule| rule.holds(&object.labels))
            && self.has_fields(object)
    }

    fn has_fields(&self, object: &Object) -> bool {
        match &self.reader {
            Some(FieldReader { mark, read })
                if !self.fields.is_empty() && object.fields.get(MARK_FIELD) != Some(mark) =>
            {
                let fields = read(object);
                self.fields.iter().all(|rule| rule.holds_of(object, &fields))
            }
            _ => self.fields.iter().all(|rule| rule.holds_of(object, &object.fields)),
        }
    }

    /// Whether an object with this key can match at all.
    pub fn matches_key(&self, key: &Key) -> bool {
        let is_named = self.namespace.as_deref().is_none_or(|namespace| key.is_in(namespace))
            && self.name.as_deref().is_none_or(|name| name == key.name());
        // A hidden key may be any.
        is_named || key.is_hidden()
    }
}

impl LabelRule {
    /// Whether these labels satisfy the rule.
    pub fn holds(&self, labels: &Pairs) -> bool {
        let number = |key: &str| labels.get(key).and_then(|value| value.parse::<i64>().ok());
        match self {
            LabelRule::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            LabelRule::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            LabelRule::Exists(key) => labels.get(key).is_some(),
            LabelRule::Absent(key) => labels.get(key).is_none(),
            LabelRule::Above(key, bound) => number(key).is_some_and(|value| value > *bound),
            LabelRule::Below(key, bound) => number(key).is_some_and(|value| value < *bound),
        }
    }
}

impl FieldRule {
    /// The field of the rule.
    pub fn field(&self) -> &str {
        let (FieldRule::Equals(field, _) | FieldRule::Differs(field, _)) = self;
        field
    }

    /// Whether an object with these fields satisfies the rule. Name and namespace come from the key.
    pub fn holds_of(&self, object: &Object, fields: &Pairs) -> bool {
        let (FieldRule::Equals(field, value) | FieldRule::Differs(field, value)) = self;
        let actual = match &**field {
            NAME_FIELD => object.key.name(),
            NAMESPACE_FIELD => object.key.namespace(),
            _ => return self.holds(fields),
        };
        (actual == &**value) == matches!(self, FieldRule::Equals(..))
    }

    /// Whether these fields satisfy the rule.
    pub fn holds(&self, fields: &Pairs) -> bool {
        match self {
            FieldRule::Equals(key, expected) => fields.get(key).unwrap_or_default() == &**expected,
            FieldRule::Differs(key, other) => fields.get(key).unwrap_or_default() != &**other,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::object::{Draft, Revision};

    #[test]
    fn label_rules_match_as_selector_requirements() {
        let labels = Pairs::from_iter([("app", "web"), ("weight", "7")]);
        let set =
            |values: &[&str]| values.iter().map(|value| Box::from(*value)).collect::<BTreeSet<Box<str>>>();
        let rules = [
            (LabelRule::In("app".into(), set(&["web", "db"])), true),
            (LabelRule::In("tier".into(), set(&["web"])), false),
            (LabelRule::NotIn("app".into(), set(&["db"])), true),
            (LabelRule::NotIn("tier".into(), set(&["db"])), true),
            (LabelRule::NotIn("app".into(), set(&["web"])), false),
            (LabelRule::Exists("app".into()), true),
            (LabelRule::Absent("app".into()), false),
            (LabelRule::Above("weight".into(), 6), true),
            (LabelRule::Above("app".into(), 6), false),
            (LabelRule::Below("weight".into(), 7), false),
        ];
        for (rule, expected) in rules {
            assert_eq!(rule.holds(&labels), expected, "{rule:?}");
        }
    }

    #[test]
    fn field_rules_read_name_and_namespace_from_the_key() {
        let draft = Draft {
            key: Key::namespaced("n", "a"),
            bytes: Bytes::from_static(b"{}"),
            revision_offset: 1,
            item_offset: 1,
            labels: Pairs::default(),
            fields: Pairs::default(),
        };
        let object = Object::new(draft, Revision(2));
        let matches =
            |rule: FieldRule| Filter { fields: vec![rule], ..Filter::everything() }.matches(&object);
        assert!(matches(FieldRule::Differs(NAME_FIELD.into(), "b".into())));
        assert!(!matches(FieldRule::Differs(NAME_FIELD.into(), "a".into())));
        assert!(matches(FieldRule::Equals(NAMESPACE_FIELD.into(), "n".into())));
        assert!(!matches(FieldRule::Differs(NAMESPACE_FIELD.into(), "n".into())));
    }

    #[test]
    fn field_reader_replaces_outdated_fields() {
        let draft = Draft {
            key: Key::cluster("a"),
            bytes: Bytes::from_static(b"{}"),
            revision_offset: 1,
            item_offset: 1,
            labels: Pairs::default(),
            fields: Pairs::from_iter([("color", "red"), (MARK_FIELD, "now")]),
        };
        let object = Object::new(draft, Revision(2));
        let rule = |value: &str| FieldRule::Equals("color".into(), value.into());
        let reader_of = |mark: &str| FieldReader::new(mark, |_| Pairs::from_iter([("color", "blue")]));
        let reader = reader_of("later");
        let filter = |value: &str, reader: Option<&FieldReader>| Filter {
            fields: vec![rule(value)],
            reader: reader.cloned(),
            ..Filter::everything()
        };
        assert!(filter("red", None).matches(&object) && !filter("red", Some(&reader)).matches(&object));
        assert!(filter("blue", Some(&reader)).matches(&object));
        assert!(filter("red", Some(&reader_of("now"))).matches(&object), "extracted by the same definition");
    }

    #[test]
    fn field_rule_treats_absent_field_as_empty() {
        let fields = Pairs::from_iter([("spec.nodeName", "n1")]);
        assert!(FieldRule::Equals("spec.nodeName".into(), "n1".into()).holds(&fields));
        assert!(FieldRule::Equals("status.phase".into(), "".into()).holds(&fields));
        assert!(FieldRule::Differs("status.phase".into(), "Running".into()).holds(&fields));
    }
}
