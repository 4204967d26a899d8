//! Objects in other versions that a conversion webhook must convert.
//!
//! Field ownership is synchronous. So a missing version is recorded, and the result is discarded; the caller converts the
//! object and starts over.

use std::cell::RefCell;

use crate::value::Value;
use crate::version::GroupVersion;

/// The converted objects of one request.
#[derive(Debug, Default)]
pub struct ConvertedVersions {
    converted: RefCell<Vec<(Value, GroupVersion, Value)>>,
    missing: RefCell<Vec<(Value, GroupVersion)>>,
}

impl ConvertedVersions {
    /// A value in another version; `None` if it must be converted first.
    pub fn find(&self, value: &Value, version: &GroupVersion) -> Option<Value> {
        let all = self.converted.borrow();
        let entry = all.iter().find(|(from, to, _)| to == version && from == value);
        if let Some((_, _, converted)) = entry {
            return Some(converted.clone());
        }
        self.missing.borrow_mut().push((value.clone(), version.clone()));
        None
    }

    /// The conversions to be made.
    pub fn take_missing(&self) -> Vec<(Value, GroupVersion)> {
        self.missing.take()
    }

    /// Adds a converted value.
    pub fn insert(&self, value: Value, version: GroupVersion, converted: Value) {
        self.converted.borrow_mut().push((value, version, converted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_conversions_are_recorded() {
        let (versions, version) = (ConvertedVersions::default(), GroupVersion::new("g", "v2"));
        assert_eq!(versions.find(&Value::Int(1), &version), None);
        assert_eq!(versions.take_missing(), [(Value::Int(1), version.clone())]);
        versions.insert(Value::Int(1), version.clone(), Value::Int(2));
        assert_eq!(versions.find(&Value::Int(1), &version), Some(Value::Int(2)));
        assert_eq!(versions.find(&Value::Int(1), &GroupVersion::new("g", "v3")), None);
        assert_eq!(versions.take_missing().len(), 1);
    }
}
