//! The kinds of the group `resource.k8s.io`: claims of devices, and who has some. Older versions say the same with one
//! level less; their mistakes are told as those of the newest.

mod claim;
mod claim_status;
mod class;
mod selector;
mod share;
mod slice;
#[cfg(test)]
mod tests;

pub use self::claim::{
    default_claim, default_template, validate_claim, validate_claim_update, validate_template,
    validate_template_update,
};
pub use self::claim_status::validate_claim_status;
pub use self::class::{validate_class, validate_taint_rule};
pub use self::slice::{validate_slice, validate_slice_update};
