//! What the fields of the built-in kinds mean, in words.

/// What a type is for. `published` is its published name, such as `io.k8s.api.core.v1.PodSpec`.
pub fn of_type(_published: &str) -> Option<&'static str> {
    None
}

/// What a field of a type is for, by its JSON name.
pub fn of_field(_published: &str, _field: &str) -> Option<&'static str> {
    None
}
