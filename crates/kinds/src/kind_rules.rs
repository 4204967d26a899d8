//! The rules of one kind, by concern. Each concern is a file of its own. Its `DEFAULT` is what most kinds do, so that a kind states
//! only what differs:
//!
//! ```text
//! pub const RULES: KindRules = KindRules {
//!     metadata: MetadataRules { name: names::label_name, ..MetadataRules::DEFAULT },
//!     validation: ValidationRules { validate, validate_update, ..ValidationRules::DEFAULT },
//!     ..KindRules::DEFAULT
//! };
//! ```

mod defaulting;
mod deletion;
mod generation;
mod metadata;
mod pod_spec;
mod preparation;
mod reset_fields;
mod status;
mod update;
mod validation;
mod warnings;

pub use defaulting::DefaultingRules;
pub use deletion::{DeletionRules, FirstDeletion, GarbageCollection};
pub use generation::Generation;
pub use metadata::{MetaRevalidation, MetadataOrder, MetadataRules};
pub use pod_spec::PodSpecPath;
pub use preparation::PreparationRules;
pub use reset_fields::{FieldPaths, ResetFields};
pub(crate) use status::keep_metadata;
pub use status::{StatusMeta, StatusRules};
pub use update::UpdateRules;
pub use validation::{Revalidation, ValidationRules};
pub use warnings::WarningRules;

use crate::gated::Gated;

/// The rules of one kind, in the order in which a write meets them. The reference calls this its strategy.
pub struct KindRules {
    /// The name, the finalizers and the generation.
    pub metadata: MetadataRules,
    /// What a PUT may do.
    pub update: UpdateRules,
    /// The place of the PodSpec, for pods and kinds with a pod template.
    pub pod_spec: PodSpecPath,
    /// Defaults that the schema cannot express.
    pub defaulting: DefaultingRules,
    /// The fields of feature gates. Those of disabled features are dropped, after managedFields were updated.
    pub gated: &'static [Gated],
    /// Fields that a write sets or keeps.
    pub preparation: PreparationRules,
    /// Errors.
    pub validation: ValidationRules,
    /// Warnings about accepted or refused objects.
    pub warnings: WarningRules,
    /// The status, and updates of the status subresource.
    pub status: StatusRules,
    /// Fields that a write cannot set, and does not own.
    pub reset_fields: ResetFields,
    /// Deletion and garbage collection.
    pub deletion: DeletionRules,
}

impl KindRules {
    /// A kind that differs in nothing from most others.
    pub const DEFAULT: KindRules = KindRules {
        metadata: MetadataRules::DEFAULT,
        update: UpdateRules::DEFAULT,
        pod_spec: PodSpecPath::NONE,
        defaulting: DefaultingRules::DEFAULT,
        gated: &[],
        preparation: PreparationRules::DEFAULT,
        validation: ValidationRules::DEFAULT,
        warnings: WarningRules::DEFAULT,
        status: StatusRules::DEFAULT,
        reset_fields: ResetFields::DEFAULT,
        deletion: DeletionRules::DEFAULT,
    };
}
