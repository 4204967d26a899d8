//! The libraries that not every release has: which of them an environment offers.

use pilothouse_apimachinery::version::{MinorVersion, RELEASE};

use super::Library;

/// The release that introduced comprehensions with two variables.
const TWO_VARIABLES_SINCE: MinorVersion = (1, 32);
/// The release that introduced semantic versions.
const SEMVER_SINCE: MinorVersion = (1, 33);

/// The recent libraries of an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentLibraries {
    /// Authorization checks with selectors.
    pub selectors: bool,
    /// Comprehensions with two variables.
    pub two_variables: bool,
    /// Semantic versions.
    pub semver: bool,
}

/// Those of new expressions in this release, without settings.
impl Default for RecentLibraries {
    fn default() -> RecentLibraries {
        RecentLibraries::of_new_expressions((RELEASE.0, RELEASE.1 - 1), true)
    }
}

impl RecentLibraries {
    /// All of them: for expressions that are stored already, which some release accepted, and for those in files.
    pub const STORED: RecentLibraries =
        RecentLibraries { selectors: true, two_variables: true, semver: true };

    /// How many values there are.
    pub const COUNT: usize = 8;

    /// Those of new expressions: what `compatibility` understands, the release that a rollback may go back to. `selectors`: whether
    /// the feature of that name is enabled.
    pub fn of_new_expressions(compatibility: MinorVersion, selectors: bool) -> RecentLibraries {
        RecentLibraries {
            selectors,
            two_variables: compatibility >= TWO_VARIABLES_SINCE,
            semver: compatibility >= SEMVER_SINCE,
        }
    }

    /// A number below [`Self::COUNT`], for tables by value.
    pub fn index(self) -> usize {
        usize::from(self.selectors) | usize::from(self.two_variables) << 1 | usize::from(self.semver) << 2
    }

    /// The value with this number.
    pub fn with_index(index: usize) -> RecentLibraries {
        RecentLibraries { selectors: index & 1 != 0, two_variables: index & 2 != 0, semver: index & 4 != 0 }
    }

    /// All libraries of an environment that has these.
    pub fn libraries(self) -> Vec<Library> {
        let recent = [
            (self.selectors, Library::AuthorizerSelectors),
            (self.two_variables, Library::TwoVariables),
            (self.semver, Library::Semver),
        ];
        let recent = recent.into_iter().filter(|(is_included, _)| *is_included).map(|(_, library)| library);
        Library::BASE.into_iter().chain(recent).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_expressions_have_what_the_previous_release_understands() {
        for (compatibility, two_variables) in [((1, 31), false), ((1, 32), true)] {
            let expected = RecentLibraries { selectors: false, two_variables, semver: false };
            assert_eq!(RecentLibraries::of_new_expressions(compatibility, false), expected);
        }
        assert!(RecentLibraries::of_new_expressions((1, 33), false).semver);
        assert_eq!(RecentLibraries::default(), RecentLibraries { semver: false, ..RecentLibraries::STORED });
    }

    #[test]
    fn each_value_has_a_number() {
        for index in 0..RecentLibraries::COUNT {
            assert_eq!(RecentLibraries::with_index(index).index(), index);
        }
    }
}
