//! Rules of PUT.

/// What a PUT may do.
#[derive(Clone, Copy, Debug)]
pub struct UpdateRules {
    /// Whether it may create the object. The reference calls this AllowCreateOnUpdate.
    pub allows_create: bool,
    /// Whether it may overwrite the object without a resourceVersion. The reference calls this AllowUnconditionalUpdate.
    pub allows_unconditional: bool,
}

impl UpdateRules {
    /// It overwrites, but does not create.
    pub const DEFAULT: UpdateRules = UpdateRules { allows_create: false, allows_unconditional: true };
    /// It needs a resourceVersion.
    pub const CONDITIONAL: UpdateRules = UpdateRules { allows_unconditional: false, ..UpdateRules::DEFAULT };
    /// It overwrites or creates.
    pub const CREATE_ON_UPDATE: UpdateRules = UpdateRules { allows_create: true, ..UpdateRules::DEFAULT };
}
