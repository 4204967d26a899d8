//! The errors and warnings of validating one object.
//!
//! A body can violate a rule in a million places, and each error may repeat a long value. Nobody reads all of that, so both lists
//! keep only their beginning: their size stays close to that of the body.

use std::ops::{Deref, DerefMut};

use super::features::EnabledFeatures;
use super::field::FieldError;
use super::limits::{FIELD_ERROR_BYTES, FIELD_ERRORS, WARNING_BYTES, WARNINGS};

/// The errors of an object, in the order in which they were added. Dereferences to a slice of those that are kept. Every
/// validation function gets it, so it also carries the enabled features.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorList {
    features: EnabledFeatures,
    errors: Vec<FieldError>,
    bytes: usize,
    total: usize,
}

impl ErrorList {
    /// No errors yet.
    pub fn new() -> ErrorList {
        ErrorList::default()
    }

    /// No errors yet, with these features enabled.
    pub fn with_features(features: EnabledFeatures) -> ErrorList {
        ErrorList { features, ..ErrorList::default() }
    }

    /// The features that are enabled for the validation.
    pub fn features(&self) -> EnabledFeatures {
        self.features
    }

    /// Adds an error. Beyond the bounds it is only counted.
    pub fn push(&mut self, error: FieldError) {
        self.add(|| error);
    }

    /// Adds an error that is only made if it is kept: for messages that are expensive to make.
    pub fn add(&mut self, make: impl FnOnce() -> FieldError) {
        self.total += 1;
        if !self.is_full() {
            let error = make();
            self.bytes += error.path.len() + error.message.len();
            self.errors.push(error);
        }
    }

    /// Adds the errors of another list.
    pub fn append(&mut self, other: &mut ErrorList) {
        let ErrorList { errors, total, .. } = std::mem::take(other);
        let dropped = total - errors.len();
        self.extend(errors);
        self.total += dropped;
    }

    /// The number of all errors, including dropped ones: rules compare it to learn whether another rule failed.
    pub fn len(&self) -> usize {
        self.total
    }

    /// Whether there are no errors.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Whether no more errors are kept: further checks are useless.
    pub fn is_full(&self) -> bool {
        self.errors.len() >= FIELD_ERRORS || self.bytes >= FIELD_ERROR_BYTES
    }

    /// Removes all errors.
    pub fn clear(&mut self) {
        *self = ErrorList::with_features(self.features);
    }
}

impl Deref for ErrorList {
    type Target = [FieldError];

    fn deref(&self) -> &[FieldError] {
        &self.errors
    }
}

impl DerefMut for ErrorList {
    fn deref_mut(&mut self) -> &mut [FieldError] {
        &mut self.errors
    }
}

impl<const N: usize> PartialEq<[FieldError; N]> for ErrorList {
    fn eq(&self, other: &[FieldError; N]) -> bool {
        self.total == N && self.errors == *other
    }
}

impl Extend<FieldError> for ErrorList {
    fn extend<T: IntoIterator<Item = FieldError>>(&mut self, errors: T) {
        errors.into_iter().for_each(|error| self.push(error));
    }
}

impl FromIterator<FieldError> for ErrorList {
    fn from_iter<T: IntoIterator<Item = FieldError>>(errors: T) -> ErrorList {
        let mut all = ErrorList::new();
        all.extend(errors);
        all
    }
}

impl IntoIterator for ErrorList {
    type Item = FieldError;
    type IntoIter = std::vec::IntoIter<FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.errors.into_iter()
    }
}

impl<'a> IntoIterator for &'a ErrorList {
    type Item = &'a FieldError;
    type IntoIter = std::slice::Iter<'a, FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.errors.iter()
    }
}

/// The warnings about an accepted object, in order, and the enabled features.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarningList {
    features: EnabledFeatures,
    warnings: Vec<String>,
    bytes: usize,
}

impl WarningList {
    /// No warnings yet.
    pub fn new() -> WarningList {
        WarningList::default()
    }

    /// No warnings yet, with these features enabled.
    pub fn with_features(features: EnabledFeatures) -> WarningList {
        WarningList { features, ..WarningList::default() }
    }

    /// The features that are enabled for the validation.
    pub fn features(&self) -> EnabledFeatures {
        self.features
    }

    /// Adds a warning, within the bounds.
    pub fn push(&mut self, warning: String) {
        if !self.is_full() {
            self.bytes += warning.len();
            self.warnings.push(warning);
        }
    }

    /// Whether no more warnings are kept: further checks are useless.
    pub fn is_full(&self) -> bool {
        self.warnings.len() >= WARNINGS || self.bytes >= WARNING_BYTES
    }
}

impl Deref for WarningList {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.warnings
    }
}

impl Extend<String> for WarningList {
    fn extend<T: IntoIterator<Item = String>>(&mut self, warnings: T) {
        warnings.into_iter().for_each(|warning| self.push(warning));
    }
}

impl FromIterator<String> for WarningList {
    fn from_iter<T: IntoIterator<Item = String>>(warnings: T) -> WarningList {
        let mut all = WarningList::new();
        all.extend(warnings);
        all
    }
}

impl<const N: usize> PartialEq<[&str; N]> for WarningList {
    fn eq(&self, other: &[&str; N]) -> bool {
        self.warnings == *other
    }
}

impl IntoIterator for WarningList {
    type Item = String;
    type IntoIter = std::vec::IntoIter<String>;

    fn into_iter(self) -> Self::IntoIter {
        self.warnings.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::FieldPath;

    #[test]
    fn error_list_counts_all_errors_and_keeps_the_first() {
        let mut errors = ErrorList::new();
        assert!(errors.is_empty() && !errors.is_full());
        for index in 0..2 * FIELD_ERRORS {
            errors.push(FieldError::required(&FieldPath::new("a").index(index), ""));
        }
        assert_eq!((errors.len(), errors.iter().len()), (2 * FIELD_ERRORS, FIELD_ERRORS));
        assert_eq!(errors[FIELD_ERRORS - 1].path.to_string(), format!("a[{}]", FIELD_ERRORS - 1));
        let mut other: ErrorList = [FieldError::required(&FieldPath::new("b"), "")].into_iter().collect();
        other.append(&mut errors);
        assert_eq!((other.len(), other.iter().len()), (2 * FIELD_ERRORS + 1, FIELD_ERRORS));
        assert!(errors.is_empty());
    }

    #[test]
    fn error_and_warning_lists_are_bounded_in_bytes() {
        let long = "x".repeat(FIELD_ERROR_BYTES / 2);
        let (mut errors, mut calls) = (ErrorList::new(), 0);
        for _ in 0..9 {
            errors.add(|| {
                calls += 1;
                FieldError::invalid(&FieldPath::new("a"), &long, "")
            });
        }
        assert_eq!((errors.len(), errors.iter().len(), calls), (9, 2, 2));
        let mut warnings = WarningList::new();
        for _ in 0..9 {
            warnings.push("x".repeat(WARNING_BYTES / 2));
        }
        assert_eq!(warnings.iter().len(), 2);
        assert!(warnings.is_full());
    }
}
