//! Declarative and handwritten validation check the same object. Feature gates choose which one decides; a disagreement is a bug
//! of one of them and is counted.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{ErrorType, FieldError};

/// Which engine decides where both validate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authority {
    /// Handwritten validation. Declarative validation does not run.
    Alone,
    /// Handwritten validation; declarative validation runs and is compared.
    #[default]
    Compared,
    /// Declarative validation, instead of the handwritten errors that it covers.
    Rules,
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
pub fn judge(by_function: ErrorList, by_rule: ErrorList, authority: Authority) -> EngineResult {
    // A truncated list may lack errors that the other has.
    let cut = by_function.is_full() || by_rule.is_full();
    let mismatches =
        if cut || authority == Authority::Alone { Vec::new() } else { compare(&by_function, &by_rule) };
    let errors = if authority == Authority::Rules {
        by_function.into_iter().filter(|error| !error.covered).chain(by_rule).collect()
    } else {
        by_function
    };
    EngineResult { errors, mismatches }
}

fn compare(by_function: &[FieldError], by_rule: &[FieldError]) -> Vec<String> {
    let mut mismatches = Vec::new();
    let mut unmatched: Vec<&FieldError> = by_rule.iter().collect();
    for (at, error) in by_function.iter().enumerate().filter(|(_, error)| error.covered) {
        // A function that runs twice reports an error twice.
        if by_function[..at].contains(error) {
            continue;
        }
        let before = unmatched.len();
        unmatched.retain(|rule| !alike(error, rule));
        if unmatched.len() == before {
            mismatches.push(format!("no rule of the table finds what a function does: {error}"));
        }
    }
    let extra = unmatched.into_iter();
    mismatches.extend(extra.map(|error| format!("no function finds what a rule of the table does: {error}")));
    mismatches
}

/// Whether two errors have the same field and type; their messages may differ.
fn alike(one: &FieldError, other: &FieldError) -> bool {
    let same_rule = one.rule == other.rule && (one.problem != ErrorType::Invalid || !one.rule.is_empty());
    one.problem == other.problem && one.path == other.path && same_rule
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::field::FieldPath;
    use pilothouse_apimachinery::limits::FIELD_ERRORS;
    use pilothouse_apimachinery::testing::said;

    use super::*;

    fn low(field: &str, words: &str) -> FieldError {
        FieldError::invalid(&FieldPath::new(field), "-1", words).by_rule("minimum")
    }

    fn all(errors: &[FieldError]) -> ErrorList {
        errors.iter().cloned().collect()
    }

    #[test]
    fn agreement_is_silent_and_words_may_differ() {
        let both = || (all(&[low("a", "one").covered()]), all(&[low("a", "other")]));
        let (function, rule) = both();
        let judged = judge(function, rule, Authority::Compared);
        assert_eq!(said(&judged.errors), ["a: Invalid value: -1: one"]);
        assert!(judged.mismatches.is_empty());
        let (function, rule) = both();
        let judged = judge(function, rule, Authority::Rules);
        assert_eq!(said(&judged.errors), ["a: Invalid value: -1: other"]);
        assert!(judged.mismatches.is_empty());
        let (mut function, rule) = both();
        function.push(function[0].clone());
        assert!(judge(function, rule, Authority::Compared).mismatches.is_empty());
    }

    #[test]
    fn what_is_cut_short_is_not_compared() {
        let many = |count: usize| (0..count).map(|index| low(&format!("a{index}"), "x").covered());
        assert_eq!(judge(many(9).collect(), ErrorList::new(), Authority::Compared).mismatches.len(), 9);
        let judged = judge(many(FIELD_ERRORS).collect(), ErrorList::new(), Authority::Compared);
        assert_eq!((judged.errors.len(), judged.mismatches.len()), (FIELD_ERRORS, 0));
    }

    #[test]
    fn disagreement_is_told_and_the_authority_decides() {
        let own = FieldError::required(&FieldPath::new("b"), "");
        let judged =
            judge(all(&[low("a", "x").covered(), own.clone()]), all(&[low("c", "x")]), Authority::Compared);
        assert_eq!((judged.errors.len(), judged.mismatches.len()), (2, 2));
        let judged = judge(all(&[low("a", "x").covered(), own]), all(&[low("c", "x")]), Authority::Rules);
        assert_eq!(said(&judged.errors), ["b: Required value", "c: Invalid value: -1: x"]);
        assert!(
            judge(all(&[low("a", "x").covered()]), ErrorList::new(), Authority::Alone).mismatches.is_empty()
        );
        // Invalid errors without an origin match any.
        let nameless = FieldError::invalid(&FieldPath::new("a"), "-1", "x");
        assert_eq!(
            judge(all(&[nameless.clone().covered()]), all(&[nameless]), Authority::Compared).mismatches.len(),
            2
        );
    }
}
