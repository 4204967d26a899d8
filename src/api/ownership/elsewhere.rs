//! Objects in other versions, where somebody has to be asked for them.
//!
//! Ownership does not wait. So a version that is not known yet is noted, and what was worked out without it is worth nothing;
//! whoever works has it made and begins again.

use std::cell::RefCell;

use crate::api::value::Value;
use crate::api::version::GroupVersion;

/// What is known of the objects of one request in other versions.
#[derive(Debug, Default)]
pub struct Elsewhere {
    known: RefCell<Vec<(Value, GroupVersion, Value)>>,
    wanted: RefCell<Vec<(Value, GroupVersion)>>,
}

impl Elsewhere {
    /// A value in another version; `None` if that has to be made first.
    pub fn find(&self, value: &Value, version: &GroupVersion) -> Option<Value> {
        let known = self.known.borrow();
        let found = known.iter().find(|(from, to, _)| to == version && from == value);
        if let Some((_, _, made)) = found {
            return Some(made.clone());
        }
        self.wanted.borrow_mut().push((value.clone(), version.clone()));
        None
    }

    /// What has to be made.
    pub fn take_wanted(&self) -> Vec<(Value, GroupVersion)> {
        self.wanted.take()
    }

    /// Tells what was made.
    pub fn tell(&self, value: Value, version: GroupVersion, made: Value) {
        self.known.borrow_mut().push((value, version, made));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_wanted() {
        let (elsewhere, version) = (Elsewhere::default(), GroupVersion::new("g", "v2"));
        assert_eq!(elsewhere.find(&Value::Int(1), &version), None);
        assert_eq!(elsewhere.take_wanted(), [(Value::Int(1), version.clone())]);
        elsewhere.tell(Value::Int(1), version.clone(), Value::Int(2));
        assert_eq!(elsewhere.find(&Value::Int(1), &version), Some(Value::Int(2)));
        assert_eq!(elsewhere.find(&Value::Int(1), &GroupVersion::new("g", "v3")), None);
        assert_eq!(elsewhere.take_wanted().len(), 1);
    }
}
