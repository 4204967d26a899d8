//! Declarative and handwritten validation of the same object. Feature gates choose which one decides; a disagreement is a bug
//! in one of them and is counted.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{ErrorType, FieldError};

/// Which engine decides where both validate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authority {
    /// Handwritten validation. Declarative validation does not run.
    Handwritten,
    /// Handwritten validation; declarative validation runs and is compared.
    #[default]
    Compared,
    /// Declarative validation, instead of the handwritten errors that it covers.
    Declarative,
}

/// The combined result.
#[derive(Debug, Default)]
pub struct EngineResult {
    /// The errors.
    pub errors: ErrorList,
    /// The disagreements, for the log.
    pub mismatches: Vec<String>,
}

/// Compares the errors of both engines.
pub fn combine(handwritten: ErrorList, declarative: ErrorList, authority: Authority) -> EngineResult {
    // A truncated list may lack errors that the other has.
    let is_truncated = handwritten.is_full() || declarative.is_full();
    let mismatches = if is_truncated || authority == Authority::Handwritten {
        Vec::new()
    } else {
        compare(&handwritten, &declarative)
    };
    let errors = if authority == Authority::Declarative {
        handwritten.into_iter().filter(|error| !error.covered).chain(declarative).collect()
    } else {
        handwritten
    };
    EngineResult { errors, mismatches }
}

fn compare(handwritten: &[FieldError], declarative: &[FieldError]) -> Vec<String> {
    let mut mismatches = Vec::new();
    let mut unmatched: Vec<&FieldError> = declarative.iter().collect();
    for (index, error) in handwritten.iter().enumerate().filter(|(_, error)| error.covered) {
        // A function that runs twice reports an error twice.
        if handwritten[..index].contains(error) {
            continue;
        }
        let unmatched_before = unmatched.len();
        unmatched.retain(|rule| !is_same_error(error, rule));
        if unmatched.len() == unmatched_before {
            mismatches.push(format!("no rule of the table finds what a function does: {error}"));
        }
    }
    let extra = unmatched.into_iter();
    mismatches.extend(extra.map(|error| format!("no function finds what a rule of the table does: {error}")));
    mismatches
}

/// Whether two errors have the same field and type; their messages may differ.
fn is_same_error(first: &FieldError, second: &FieldError) -> bool {
    let is_same_rule =
        first.rule == second.rule && (first.problem != ErrorType::Invalid || !first.rule.is_empty());
    first.problem == second.problem && first.path == second.path && is_same_rule
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::field::FieldPath;
    use pilothouse_apimachinery::limits::FIELD_ERRORS;
    use pilothouse_apimachinery::testing::error_messages;

    use super::*;

    fn below_minimum(field: &str, detail: &str) -> FieldError {
        FieldError::invalid(&FieldPath::new(field), "-1", detail).by_rule("minimum")
    }

    fn list(errors: &[FieldError]) -> ErrorList {
        errors.iter().cloned().collect()
    }

    #[test]
    fn equal_errors_with_other_messages_are_no_mismatch() {
        let both = || (list(&[below_minimum("a", "one").covered()]), list(&[below_minimum("a", "other")]));
        let (handwritten, declarative) = both();
        let result = combine(handwritten, declarative, Authority::Compared);
        assert_eq!(error_messages(&result.errors), ["a: Invalid value: -1: one"]);
        assert!(result.mismatches.is_empty());
        let (handwritten, declarative) = both();
        let result = combine(handwritten, declarative, Authority::Declarative);
        assert_eq!(error_messages(&result.errors), ["a: Invalid value: -1: other"]);
        assert!(result.mismatches.is_empty());
        let (mut handwritten, declarative) = both();
        handwritten.push(handwritten[0].clone());
        assert!(combine(handwritten, declarative, Authority::Compared).mismatches.is_empty());
    }

    #[test]
    fn truncated_lists_are_not_compared() {
        let many = |count: usize| (0..count).map(|index| below_minimum(&format!("a{index}"), "x").covered());
        assert_eq!(combine(many(9).collect(), ErrorList::new(), Authority::Compared).mismatches.len(), 9);
        let result = combine(many(FIELD_ERRORS).collect(), ErrorList::new(), Authority::Compared);
        assert_eq!((result.errors.len(), result.mismatches.len()), (FIELD_ERRORS, 0));
    }

    #[test]
    fn mismatches_are_reported_and_the_authority_decides() {
        let required = FieldError::required(&FieldPath::new("b"), "");
        let result = combine(
            list(&[below_minimum("a", "x").covered(), required.clone()]),
            list(&[below_minimum("c", "x")]),
            Authority::Compared,
        );
        assert_eq!((result.errors.len(), result.mismatches.len()), (2, 2));
        let result = combine(
            list(&[below_minimum("a", "x").covered(), required]),
            list(&[below_minimum("c", "x")]),
            Authority::Declarative,
        );
        assert_eq!(error_messages(&result.errors), ["b: Required value", "c: Invalid value: -1: x"]);
        assert!(
            combine(list(&[below_minimum("a", "x").covered()]), ErrorList::new(), Authority::Handwritten)
                .mismatches
                .is_empty()
        );
        // Invalid errors without an origin match any.
        let without_origin = FieldError::invalid(&FieldPath::new("a"), "-1", "x");
        assert_eq!(
            combine(list(&[without_origin.clone().covered()]), list(&[without_origin]), Authority::Compared)
                .mismatches
                .len(),
            2
        );
    }
}
