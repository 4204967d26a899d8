//! The parser of the schema table: one text file per group version, one fact per line.
//!
//! `schema/README.md` explains the format. The parser is strict: an unknown word is an error, because a silently dropped fact
//! would show up as a wrong response.

use std::fmt;

use super::validate::{Format, Rules};

/// The contents of one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The Protobuf package, from which the published names of the types follow.
    pub package: String,
    /// The group, empty for the core group.
    pub group: String,
    /// The version within the group.
    pub version: String,
    /// Whether the version is in discovery. Others only contribute types.
    pub served: bool,
    /// The resources, in the order of the file.
    pub resources: Vec<ResourceFact>,
    /// The types, in the order of the file.
    pub types: Vec<TypeFact>,
}

/// One resource of the version.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceFact {
    /// The name in paths.
    pub plural: String,
    /// The kind of its objects.
    pub kind: String,
    /// Whether it is namespaced.
    pub namespaced: bool,
    /// The singular name.
    pub singular: String,
    /// Abbreviations for command lines.
    pub short: Vec<String>,
    /// The categories it belongs to, such as `all`.
    pub categories: Vec<String>,
    /// The supported verbs, sorted.
    pub verbs: Vec<String>,
    /// The storage version; `None` if nothing is stored.
    pub storage: Option<(String, String)>,
    /// The release that introduced it.
    pub introduced: Option<(u32, u32)>,
    /// The release that deprecated it.
    pub deprecated: Option<(u32, u32)>,
    /// The release that removes it.
    pub removed: Option<(u32, u32)>,
    /// Its replacement.
    pub replacement: Option<String>,
    /// The feature gate that it depends on.
    pub gate: Option<String>,
    /// Its subresources.
    pub subs: Vec<SubFact>,
    /// The columns of its tables; empty means name and age.
    pub columns: Vec<ColumnFact>,
}

/// One subresource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SubFact {
    /// The name in paths.
    pub name: String,
    /// The group of its kind.
    pub group: String,
    /// The version of its kind.
    pub version: String,
    /// The kind of its bodies.
    pub kind: String,
    /// The supported verbs, sorted.
    pub verbs: Vec<String>,
    /// The feature gate that it depends on.
    pub gate: Option<String>,
}

/// One column of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnFact {
    /// The heading.
    pub name: String,
    /// The type of the cells.
    pub kind: String,
    /// The format of the cells, such as `name`.
    pub format: String,
    /// Zero for columns that are always shown.
    pub priority: u32,
    /// The field whose description the column has: its type as `package/version.Name`, and its JSON name.
    pub field: Option<(String, String)>,
    /// The description of a column that is not a single field.
    pub text: String,
}

/// One type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TypeFact {
    /// The name within the version.
    pub name: String,
    /// Whether it has kind and apiVersion.
    pub object: bool,
    /// Whether it is atomic for server-side apply.
    pub atomic: bool,
    /// `discriminator:field=Value,…` if at most one of its fields may be set.
    pub union: Option<String>,
    /// The type of a named list.
    pub wraps: Option<FieldType>,
    /// Its fields in JSON order.
    pub fields: Vec<FieldFact>,
}

/// One field of a type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldFact {
    /// The Protobuf number.
    pub number: u32,
    /// The JSON name; empty for an inlined type.
    pub name: String,
    /// The type of its value.
    pub shape: FieldType,
    /// Whether absent and zero differ.
    pub pointer: bool,
    /// Whether it is printed even if zero.
    pub emit: bool,
    /// Whether an empty list or map from a client differs from an absent one until it is stored.
    pub given: bool,
    /// Whether an absent time is printed as null.
    pub nullable: bool,
    /// Whether the published schema requires it.
    pub required: bool,
    /// Whether the published schema marks it as deprecated.
    pub deprecated: bool,
    /// How server-side apply merges a list.
    pub list: ListFact,
    /// Whether a map or struct is atomic for server-side apply, if the field itself specifies that.
    pub map_atomic: Option<bool>,
    /// The strategic merge patch settings: strategies and merge key.
    pub patch: Option<PatchFact>,
    /// The published default, as JSON.
    pub default: Option<String>,
    /// A default that the server sets but does not publish.
    pub fill: FillFact,
    /// The allowed values.
    pub values: Vec<String>,
    /// The allowed values of its items.
    pub item_values: Vec<String>,
    /// The validation rules of its values.
    pub rules: Rules,
}

/// The type of a field's value.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldType {
    /// A scalar, a type of this file, or `package/version.Type`.
    Name(String),
    /// A list.
    List(Box<FieldType>),
    /// A map with string keys.
    Map(Box<FieldType>),
}

impl Default for FieldType {
    fn default() -> FieldType {
        FieldType::Name(String::new())
    }
}

/// How server-side apply merges a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ListFact {
    /// Not stated, which means atomic.
    #[default]
    Unspecified,
    /// As a whole.
    Atomic,
    /// Item by item, identified by value.
    Set,
    /// Item by item, identified by these keys.
    Map(Vec<String>),
}

/// The strategic merge patch settings of a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchFact {
    /// `merge`, `replace`, `retainKeys`.
    pub strategies: Vec<String>,
    /// The field that identifies an item.
    pub key: Option<String>,
}

/// A default that the server sets but does not publish.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FillFact {
    /// None.
    #[default]
    None,
    /// This value, as JSON.
    Always(String),
    /// This value, as JSON, under a condition in code.
    Sometimes(String),
    /// A value that only code knows.
    Code,
}

/// An invalid line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct TableError {
    /// The line number, from 1.
    pub line: usize,
    /// The error.
    pub message: String,
}

/// The verbs of `all`, sorted.
const ALL_VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// The group and version of a file, without parsing the rest.
pub fn group_version(text: &str) -> Option<(&str, &str)> {
    let mut words = text.lines().find_map(|line| line.strip_prefix("group "))?.split_whitespace();
    let (group, _, version) = (words.next()?, words.next()?, words.next()?);
    Some((if group == "core" { "" } else { group }, version))
}

/// Parses one file.
pub fn parse(text: &str) -> Result<Facts, TableError> {
    let mut facts = Facts::default();
    for (index, line) in text.lines().enumerate() {
        let error = |message: String| TableError { line: index + 1, message };
        if line.is_empty() {
            continue;
        }
        match line.strip_prefix("  ") {
            Some(detail) => facts.detail(detail).map_err(error)?,
            None => facts.headline(line).map_err(error)?,
        }
    }
    if facts.version.is_empty() || facts.package.is_empty() {
        return Err(TableError { line: 1, message: "no package, group and version".to_owned() });
    }
    Ok(facts)
}

impl Facts {
    fn headline(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split_ascii_whitespace();
        match words.next().unwrap_or_default() {
            "package" => self.package = words.next().ok_or("no package")?.to_owned(),
            "group" => self.group_line(words)?,
            "resource" => {
                let resource = self.resource_line(words)?;
                self.resources.push(resource);
            }
            "type" => self.types.push(type_line(words)?),
            "wrapper" => {
                let name = words.next().ok_or("`wrapper` without a name")?.to_owned();
                let wraps = Some(shape(words.next().ok_or("`wrapper` without a type")?)?);
                self.types.push(TypeFact { name, wraps, ..TypeFact::default() });
            }
            word => return Err(format!("unknown word {word:?}")),
        }
        Ok(())
    }

    fn group_line<'a>(&mut self, mut words: impl Iterator<Item = &'a str>) -> Result<(), String> {
        let group = words.next().ok_or("no group")?;
        self.group = if group == "core" { String::new() } else { group.to_owned() };
        if words.next() != Some("version") {
            return Err("`group` without a version".to_owned());
        }
        self.version = words.next().ok_or("no version")?.to_owned();
        self.served = match words.next() {
            None => true,
            Some("unserved") => false,
            Some(word) => return Err(format!("unknown word {word:?}")),
        };
        Ok(())
    }

    fn resource_line<'a>(&self, mut words: impl Iterator<Item = &'a str>) -> Result<ResourceFact, String> {
        let mut resource = ResourceFact {
            plural: words.next().ok_or("`resource` without a name")?.to_owned(),
            kind: words.next().ok_or("`resource` without a kind")?.to_owned(),
            namespaced: match words.next() {
                Some("namespaced") => true,
                Some("cluster") => false,
                _ => return Err("`resource` without a scope".to_owned()),
            },
            ..ResourceFact::default()
        };
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("unknown word {word:?}"))?;
            match name {
                "singular" => resource.singular = value.to_owned(),
                "short" => resource.short = split_list(value),
                "categories" => resource.categories = split_list(value),
                "verbs" => resource.verbs = verbs(value),
                "storage" => {
                    let (group, version) = value.split_once('/').unwrap_or((&self.group, value));
                    resource.storage = Some((group.to_owned(), version.to_owned()));
                }
                "introduced" => resource.introduced = Some(release(value)?),
                "deprecated" => resource.deprecated = Some(release(value)?),
                "removed" => resource.removed = Some(release(value)?),
                "replacement" => resource.replacement = Some(value.to_owned()),
                "gate" => resource.gate = Some(value.to_owned()),
                _ => return Err(format!("unknown word {word:?}")),
            }
        }
        Ok(resource)
    }

    fn detail(&mut self, line: &str) -> Result<(), String> {
        let (first, rest) = line.split_once(' ').ok_or("incomplete line")?;
        match first {
            "sub" => {
                let sub = self.sub_line(rest)?;
                self.resources.last_mut().ok_or("`sub` before any `resource`")?.subs.push(sub);
            }
            "col" => {
                let column = column_line(rest)?;
                self.resources.last_mut().ok_or("`col` before any `resource`")?.columns.push(column);
            }
            number => {
                let number = number.parse().map_err(|_| format!("unknown word {number:?}"))?;
                let field = field_line(number, rest)?;
                self.types.last_mut().ok_or("field before any `type`")?.fields.push(field);
            }
        }
        Ok(())
    }

    fn sub_line(&self, line: &str) -> Result<SubFact, String> {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().ok_or("`sub` without a name")?.to_owned();
        let kind = words.next().ok_or("`sub` without a kind")?;
        let verbs = verbs(words.next().ok_or("`sub` without verbs")?);
        let gate = match words.next() {
            Some(word) => {
                let gate = word.strip_prefix("gate=").ok_or_else(|| format!("unknown word {word:?}"))?;
                Some(gate.to_owned())
            }
            None => None,
        };
        let (group, version, kind) = match kind.rsplit_once('.') {
            None => (self.group.as_str(), self.version.as_str(), kind),
            Some((path, kind)) => {
                let (group, version) = path.split_once('/').ok_or("a kind without a version")?;
                (group, version, kind)
            }
        };
        Ok(SubFact {
            name,
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            verbs,
            gate,
        })
    }
}

fn column_line(line: &str) -> Result<ColumnFact, String> {
    let (line, text) = line.split_once(" -- ").unwrap_or((line, ""));
    let (name, rest) = match line.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"').ok_or("an open quote")?,
        None => line.split_once(' ').ok_or("a column without a type")?,
    };
    let mut words = rest.split_ascii_whitespace();
    let kind = words.next().ok_or("a column without a type")?;
    let (kind, format) = kind.split_once('/').unwrap_or((kind, ""));
    let mut column = ColumnFact {
        name: name.to_owned(),
        kind: kind.to_owned(),
        format: format.to_owned(),
        text: text.to_owned(),
        ..ColumnFact::default()
    };
    for word in words {
        match word.split_once('=') {
            Some(("priority", number)) => {
                column.priority = number.parse().map_err(|_| format!("bad priority {number:?}"))?;
            }
            Some(("doc", path)) => {
                let (owner, field) = path.rsplit_once('.').ok_or("documentation of no field")?;
                column.field = Some((owner.to_owned(), field.to_owned()));
            }
            _ => return Err("unknown word after a column".to_owned()),
        }
    }
    Ok(column)
}

fn type_line<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<TypeFact, String> {
    let mut fact =
        TypeFact { name: words.next().ok_or("a type without a name")?.to_owned(), ..TypeFact::default() };
    for word in words {
        match word {
            "object" => fact.object = true,
            "atomic" => fact.atomic = true,
            word => {
                let union = word.strip_prefix("union(").and_then(|rest| rest.strip_suffix(')'));
                fact.union = Some(union.ok_or_else(|| format!("unknown word {word:?}"))?.to_owned());
            }
        }
    }
    Ok(fact)
}

fn field_line(number: u32, line: &str) -> Result<FieldFact, String> {
    let mut words = line.split_ascii_whitespace();
    let name = words.next().ok_or("a field without a name")?;
    let kind = words.next().ok_or("a field without a type")?;
    let (kind, pointer) = kind.strip_suffix('*').map_or((kind, false), |kind| (kind, true));
    let name = if name == "inline" { "" } else { name };
    let mut field =
        FieldFact { number, name: name.to_owned(), shape: shape(kind)?, pointer, ..FieldFact::default() };
    for word in words {
        flag(&mut field, word)?;
    }
    Ok(field)
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

fn flag(field: &mut FieldFact, word: &str) -> Result<(), String> {
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    match name {
        "emit" => field.emit = true,
        "given" => field.given = true,
        "null" => field.nullable = true,
        "req" => field.required = true,
        "deprecated" => field.deprecated = true,
        "list" => field.list = list_fact(value)?,
        "map" if value == "atomic" || value == "granular" => field.map_atomic = Some(value == "atomic"),
        "patch" => field.patch = Some(patch_fact(value)),
        "default" => field.default = Some(value.to_owned()),
        "fill" if value == "code" => field.fill = FillFact::Code,
        "fill" => field.fill = FillFact::Always(value.to_owned()),
        "fill?" => field.fill = FillFact::Sometimes(value.to_owned()),
        "enum" => field.values = enum_values(value),
        "itemenum" => field.item_values = enum_values(value),
        "must" => field.rules.must = true,
        "min" => field.rules.min = Some(number(value)?),
        "max" => field.rules.max = Some(number(value)?),
        "minlen" => field.rules.min_length = Some(number(value)?),
        "maxlen" => field.rules.max_length = Some(number(value)?),
        "minitems" => field.rules.min_items = Some(number(value)?),
        "maxitems" => field.rules.max_items = Some(number(value)?),
        "format" => {
            let format = Format::named(value).ok_or_else(|| format!("unknown format {value:?}"))?;
            field.rules.format = Some(format);
        }
        _ => return Err(format!("unknown word {word:?}")),
    }
    Ok(())
}

fn list_fact(value: &str) -> Result<ListFact, String> {
    match value {
        "atomic" => Ok(ListFact::Atomic),
        "set" => Ok(ListFact::Set),
        _ => value
            .strip_prefix("map(")
            .and_then(|keys| keys.strip_suffix(')'))
            .map(|keys| ListFact::Map(split_list(keys)))
            .ok_or_else(|| format!("unknown list type {value:?}")),
    }
}

fn patch_fact(value: &str) -> PatchFact {
    let (strategies, key) = match value.strip_suffix(')').and_then(|value| value.split_once('(')) {
        Some((strategies, key)) => (strategies, Some(key.to_owned())),
        None => (value, None),
    };
    PatchFact { strategies: split_list(strategies), key }
}

fn enum_values(value: &str) -> Vec<String> {
    // A word with a space is written as JSON, with an escape.
    let mut words: Vec<String> =
        value.split(',').map(|word| serde_json::from_str(word).unwrap_or_else(|_| word.to_owned())).collect();
    // The table has them in the order of messages; they are published alphabetically.
    words.sort_unstable();
    words
}

fn shape(word: &str) -> Result<FieldType, String> {
    let inner = |open, close| word.strip_prefix::<char>(open).map(|rest| rest.strip_suffix::<char>(close));
    match (inner('[', ']'), inner('{', '}')) {
        (Some(Some(item)), _) => Ok(FieldType::List(Box::new(shape(item)?))),
        (_, Some(Some(value))) => Ok(FieldType::Map(Box::new(shape(value)?))),
        (None, None) if !word.is_empty() => Ok(FieldType::Name(word.to_owned())),
        _ => Err(format!("unknown type {word:?}")),
    }
}

fn split_list(value: &str) -> Vec<String> {
    value.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn verbs(value: &str) -> Vec<String> {
    if value == "all" {
        return ALL_VERBS.iter().map(ToString::to_string).collect();
    }
    let mut verbs = split_list(value);
    verbs.sort_unstable();
    verbs
}

fn release(value: &str) -> Result<(u32, u32), String> {
    let invalid = || format!("bad release {value:?}");
    let (major, minor) = value.split_once('.').ok_or_else(invalid)?;
    Ok((major.parse().map_err(|_| invalid())?, minor.parse().map_err(|_| invalid())?))
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldType::Name(name) => f.write_str(name),
            FieldType::List(item) => write!(f, "[{item}]"),
            FieldType::Map(value) => write!(f, "{{{value}}}"),
        }
    }
}

#[cfg(test)]
mod tests;
