//! Rules of `metadata`.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::meta::{self, MetaRules};
use pilothouse_apimachinery::names::{self, NameRule};
use pilothouse_apimachinery::value::Value;

use super::Generation;

/// The name, the finalizers and the generation of a kind's objects.
#[derive(Clone, Copy, Debug)]
pub struct MetadataRules {
    /// The syntax of names.
    pub name: NameRule,
    /// Validates the name, or generateName, against the object.
    pub validate_name: fn(object: &Value, name: &str) -> Option<String>,
    /// Gives a name to an object that has only a `generateName`. `random` returns random numbers below a bound. Returns whether
    /// another call could give another name. The reference calls this the NameGenerator.
    pub generate_name: fn(object: &mut Value, random: &mut dyn FnMut(usize) -> usize) -> bool,
    /// Whether a finalizer without a domain must be a standard one.
    pub requires_standard_finalizers: bool,
    /// When the generation is increased.
    pub generation: Generation,
    /// When the metadata of a new object is validated.
    pub validation_order: MetadataOrder,
    /// The metadata validations that an update repeats.
    pub revalidation: MetaRevalidation,
}

impl MetadataRules {
    /// Names are DNS subdomains, and there is no generation.
    pub const DEFAULT: MetadataRules = MetadataRules {
        name: names::subdomain_name,
        validate_name: meta::any_name,
        generate_name: meta::generate_name,
        requires_standard_finalizers: true,
        generation: Generation::NONE,
        validation_order: MetadataOrder::First,
        revalidation: MetaRevalidation::WholeAndChange,
    };
    /// The generation counts changes of the spec.
    pub const SPEC_GENERATION: MetadataRules =
        MetadataRules { generation: Generation::SPEC, ..MetadataRules::DEFAULT };

    /// The part that decides about the validation of the metadata.
    pub(crate) fn meta_rules(&self, namespaced: bool) -> MetaRules {
        MetaRules {
            name: self.name,
            validate_name: self.validate_name,
            namespaced,
            requires_standard_finalizers: self.requires_standard_finalizers,
        }
    }
}

/// When the metadata of a new object is validated. Clients see the order of the errors.
#[derive(Clone, Copy, Debug)]
pub enum MetadataOrder {
    /// Before everything else.
    First,
    /// After this validation, and before the others.
    After(fn(object: &Value, errors: &mut ErrorList)),
    /// Last, and only if nothing else is wrong.
    Last,
}

/// Which metadata validations an update repeats. Some kinds of the reference validate metadata several times, and each error
/// appears as often among the causes of the Status, so clients see the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaRevalidation {
    /// None.
    No,
    /// The update validation of the metadata.
    Change,
    /// The full validation of the metadata, with the kind's syntax of names.
    Whole,
    /// Both.
    WholeAndChange,
    /// The full validation twice: the kind validates an update both as a create and as an update.
    WholeTwice,
    /// The full validation twice, and the update validation.
    WholeTwiceAndChange,
}

impl MetaRevalidation {
    /// The number of additional full validations and of update validations.
    pub fn times(self) -> (usize, usize) {
        match self {
            MetaRevalidation::No => (0, 0),
            MetaRevalidation::Change => (0, 1),
            MetaRevalidation::Whole => (1, 0),
            MetaRevalidation::WholeAndChange => (1, 1),
            MetaRevalidation::WholeTwice => (2, 0),
            MetaRevalidation::WholeTwiceAndChange => (2, 1),
        }
    }
}
