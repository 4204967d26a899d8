//! The parameters of operations.

use std::borrow::Cow;

use pilothouse_apimachinery::schema::{Scalar, Type, TypeId};

use super::Sources;
use super::json::JsonWriter;
use super::names::{self, META};
use crate::descriptions;

const PRETTY: &str = "If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent \
                      indicates a browser or command-line HTTP tool (curl and wget).";
const NAMESPACE: &str = "object name and auth scope, such as for teams and projects";

/// The location of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ParameterLocation {
    /// In the path; always required.
    Path,
    /// In the query.
    Query,
}

/// One parameter. The order is that of documents.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Parameter {
    pub(super) name: Cow<'static, str>,
    pub(super) location: ParameterLocation,
    pub(super) kind: &'static str,
    pub(super) description: Cow<'static, str>,
}

impl Parameter {
    fn text(
        name: &'static str,
        location: ParameterLocation,
        description: impl Into<Cow<'static, str>>,
    ) -> Parameter {
        Parameter { name: Cow::Borrowed(name), location, kind: "string", description: description.into() }
    }

    pub(super) fn pretty() -> Parameter {
        Parameter::text("pretty", ParameterLocation::Query, PRETTY)
    }

    pub(super) fn namespace() -> Parameter {
        Parameter::text("namespace", ParameterLocation::Path, NAMESPACE)
    }

    /// The `name` path parameter.
    pub(super) fn name(kind: &str) -> Parameter {
        Parameter::text("name", ParameterLocation::Path, format!("name of the {kind}"))
    }

    pub(super) fn path() -> Parameter {
        Parameter::text("path", ParameterLocation::Path, "path to the resource")
    }

    pub(super) fn log_path() -> Parameter {
        Parameter::text("logpath", ParameterLocation::Path, "path to the log")
    }

    fn location_name(&self) -> &'static str {
        match self.location {
            ParameterLocation::Path => "path",
            ParameterLocation::Query => "query",
        }
    }

    /// Writes it for v3.
    pub(super) fn v3(&self, out: &mut JsonWriter) {
        out.object(|out| {
            out.field("name", &self.name);
            out.field("in", self.location_name());
            if !self.description.is_empty() {
                out.field("description", &self.description);
            }
            if self.location == ParameterLocation::Path {
                out.key("required").raw(b"true");
            }
            out.key("schema").object(|out| {
                out.field("type", self.kind);
                out.key("uniqueItems").raw(b"true");
            });
        });
    }

    /// Writes it for v2. The name of a shared parameter depends on the order of its fields.
    pub(super) fn v2(&self, out: &mut JsonWriter) {
        out.object(|out| {
            out.key("uniqueItems").raw(b"true");
            out.field("type", self.kind);
            if !self.description.is_empty() {
                out.field("description", &self.description);
            }
            out.field("name", &self.name);
            out.field("in", self.location_name());
            if self.location == ParameterLocation::Path {
                out.key("required").raw(b"true");
            }
        });
    }

    /// Whether v2 writes it inline: a parameter that mentions one kind, and those for which old clients do not follow
    /// references.
    pub(super) fn is_inline(&self) -> bool {
        matches!(&*self.name, "name" | "fieldValidation" | "dryRun")
    }
}

impl Sources<'_> {
    /// The fields of a type of the meta group as query parameters.
    pub(super) fn options(&self, name: &str) -> Vec<Parameter> {
        self.registry
            .meta(name)
            .map(|id| self.query_parameters(id, &format!("{META}.{name}")))
            .unwrap_or_default()
    }

    /// The fields of a type as query parameters, except for those that a query cannot express.
    pub(super) fn query_parameters(&self, id: TypeId, published: &str) -> Vec<Parameter> {
        let Some(structure) = self.registry.structure(id) else { return Vec::new() };
        let fields = structure.fields.iter().skip(if structure.object { 2 } else { 0 });
        fields
            .filter_map(|field| {
                Some(Parameter {
                    name: field.name.to_string().into(),
                    location: ParameterLocation::Query,
                    kind: self.parameter_type(field.ty)?,
                    description: descriptions::for_field(published, &field.name).unwrap_or_default().into(),
                })
            })
            .collect()
    }

    /// The published name of a struct.
    pub(super) fn published(&self, id: TypeId) -> String {
        self.registry.structure(id).map(names::of_struct).unwrap_or_default()
    }

    fn parameter_type(&self, id: TypeId) -> Option<&'static str> {
        match self.registry.get(id) {
            Type::List(list) => self.parameter_type(list.item),
            Type::Scalar(Scalar::String) => Some("string"),
            Type::Scalar(Scalar::Bool) => Some("boolean"),
            Type::Scalar(Scalar::Int32 | Scalar::Int64) => Some("integer"),
            _ => None,
        }
    }
}
