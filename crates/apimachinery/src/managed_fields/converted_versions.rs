//! Objects in other versions that a conversion webhook must make.
//!
//! Field ownership is synchronous. So a missing version is noted, and the result is discarded; the caller has the version
//! converted and starts over.

use std::cell::RefCell;

use crate::value::Value;
use crate::version::GroupVersion;

/// The converted objects of one request.
#[derive(Debug, Default)]
pub struct ConvertedVersions {
    known: RefCell<Vec<(Value, GroupVersion, Value)>>,
    wanted: RefCell<Vec<(Value, GroupVersion)>>,
}

impl ConvertedVersions {
    /// A value in another version; `None` if it must be converted first.
    pub fn find(&self, value: &Value, version: &GroupVersion) -> Option<Value> {
        let known = self.known.borrow();
        let found = known.iter().find(|(from, to, _)| to == version && from == value);
        if let Some((_, _, made)) = found {
            return Some(made.clone());
        }
        self.wanted.borrow_mut().push((value.clone(), version.clone()));
        None
    }

    /// The conversions to be made.
    pub fn take_wanted(&self) -> Vec<(Value, GroupVersion)> {
        self.wanted.take()
    }

    /// Adds a converted value.
    pub fn tell(&self, value: Value, version: GroupVersion, made: Value) {
        self.known.borrow_mut().push((value, version, made));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_wanted() {
        let (elsewhere, version) = (ConvertedVersions::default(), GroupVersion::new("g", "v2"));
        assert_eq!(elsewhere.find(&Value::Int(1), &version), None);
        assert_eq!(elsewhere.take_wanted(), [(Value::Int(1), version.clone())]);
        elsewhere.tell(Value::Int(1), version.clone(), Value::Int(2));
        assert_eq!(elsewhere.find(&Value::Int(1), &version), Some(Value::Int(2)));
        assert_eq!(elsewhere.find(&Value::Int(1), &GroupVersion::new("g", "v3")), None);
        assert_eq!(elsewhere.take_wanted().len(), 1);
    }
}
