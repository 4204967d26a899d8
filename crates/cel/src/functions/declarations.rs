//! The function libraries, and the tables of their functions: name, overload ID, signature.

use crate::value::NamedFormat;

type Row = (&'static str, &'static str, &'static str);

/// A function library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    /// The standard library of CEL.
    Standard,
    /// Optional values.
    Optionals,
    /// String functions.
    Strings,
    /// List functions.
    Lists,
    /// `find` and `findAll`.
    Regex,
    /// URLs.
    Urls,
    /// Quantities.
    Quantity,
    /// Set operations on lists.
    Sets,
    /// IP addresses.
    Ip,
    /// CIDRs.
    Cidr,
    /// Named string formats.
    Format,
    /// Comprehensions with two variables.
    TwoVariables,
    /// Semantic versions.
    Semver,
    /// Escaping for JSON Patch paths.
    JsonPatch,
    /// Authorization checks. The caller provides the values and their functions.
    Authorizer,
    /// Authorization checks for objects that selectors select.
    AuthorizerSelectors,
}

impl Library {
    /// The libraries that every release has that can be emulated.
    pub(crate) const BASE: [Library; 12] = [
        Library::Standard,
        Library::Optionals,
        Library::Strings,
        Library::Lists,
        Library::Regex,
        Library::Urls,
        Library::Quantity,
        Library::Sets,
        Library::Ip,
        Library::Cidr,
        Library::Format,
        Library::Authorizer,
    ];

    /// Its functions.
    pub(crate) fn declarations(self) -> &'static [Row] {
        match self {
            Library::Standard => STANDARD,
            Library::Optionals => OPTIONALS,
            Library::Strings => STRINGS,
            Library::Lists => LISTS,
            Library::Regex => REGEX,
            Library::Urls => URLS,
            Library::Quantity => QUANTITY,
            Library::Sets => SETS,
            Library::Ip => IP,
            Library::Cidr => CIDR,
            Library::Format => FORMAT,
            Library::TwoVariables => TWO_VARIABLES,
            Library::Semver => SEMVER,
            Library::JsonPatch => JSON_PATCH,
            Library::Authorizer => AUTHORIZER,
            Library::AuthorizerSelectors => AUTHORIZER_SELECTORS,
        }
    }

    /// Overloads that are generated for each element type.
    pub(crate) fn generated_declarations(self) -> Vec<(String, String, String)> {
        let row = |name: &str, id: String, signature: String| (name.to_owned(), id, signature);
        let mut rows = Vec::new();
        match self {
            Library::Standard => {
                for (name, operation) in
                    [("_<_", "less"), ("_<=_", "less_equals"), ("_>_", "greater"), ("_>=_", "greater_equals")]
                {
                    for (left, right) in COMPARABLE_TYPES {
                        let (left_name, right_name) = (overload_type_name(left), overload_type_name(right));
                        let id = if left == right {
                            format!("{operation}_{left_name}")
                        } else {
                            format!("{operation}_{left_name}_{right_name}")
                        };
                        rows.push(row(name, id, format!("({left}, {right}) -> bool")));
                    }
                }
                for (name, component) in TIME_COMPONENTS {
                    rows.push(row(
                        name,
                        format!("timestamp_to_{component}"),
                        "timestamp.() -> int".to_owned(),
                    ));
                    rows.push(row(
                        name,
                        format!("timestamp_to_{component}_with_tz"),
                        "timestamp.(string) -> int".to_owned(),
                    ));
                    if matches!(*component, "hours" | "minutes" | "seconds" | "milliseconds") {
                        rows.push(row(
                            name,
                            format!("duration_to_{component}"),
                            "duration.() -> int".to_owned(),
                        ));
                    }
                }
            }
            Library::Lists => {
                for kind in ["int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes"] {
                    rows.push(row(
                        "isSorted",
                        format!("list_{kind}_is_sorted_bool"),
                        format!("list({kind}).() -> bool"),
                    ));
                    for name in ["max", "min"] {
                        rows.push(row(
                            name,
                            format!("list_{kind}_{name}_{kind}"),
                            format!("list({kind}).() -> {kind}"),
                        ));
                    }
                }
                for kind in ["int", "uint", "double", "duration"] {
                    rows.push(row(
                        "sum",
                        format!("list_{kind}_sum_{kind}"),
                        format!("list({kind}).() -> {kind}"),
                    ));
                }
            }
            Library::Format => {
                for format in NamedFormat::ALL {
                    let name = format!("format.{}", format.function);
                    rows.push(row(&name, name.clone(), "() -> format".to_owned()));
                }
            }
            _ => {}
        }
        rows
    }
}

fn overload_type_name(kind: &str) -> String {
    if matches!(kind, "int" | "uint") { format!("{kind}64") } else { kind.to_owned() }
}

const COMPARABLE_TYPES: [(&str, &str); 14] = [
    ("bool", "bool"),
    ("int", "int"),
    ("int", "double"),
    ("int", "uint"),
    ("uint", "uint"),
    ("uint", "double"),
    ("uint", "int"),
    ("double", "double"),
    ("double", "int"),
    ("double", "uint"),
    ("string", "string"),
    ("bytes", "bytes"),
    ("timestamp", "timestamp"),
    ("duration", "duration"),
];

const TIME_COMPONENTS: &[(&str, &str)] = &[
    ("getFullYear", "year"),
    ("getMonth", "month"),
    ("getDayOfYear", "day_of_year"),
    ("getDayOfMonth", "day_of_month"),
    ("getDate", "day_of_month_1_based"),
    ("getDayOfWeek", "day_of_week"),
    ("getHours", "hours"),
    ("getMinutes", "minutes"),
    ("getSeconds", "seconds"),
    ("getMilliseconds", "milliseconds"),
];

const STANDARD: &[Row] = &[
    ("_?_:_", "conditional", "(bool, A, A) -> A"),
    ("_&&_", "logical_and", "(bool, bool) -> bool"),
    ("_||_", "logical_or", "(bool, bool) -> bool"),
    ("!_", "logical_not", "(bool) -> bool"),
    ("@not_strictly_false", "not_strictly_false", "(bool) -> bool"),
    ("_==_", "equals", "(A, A) -> bool"),
    ("_!=_", "not_equals", "(A, A) -> bool"),
    ("_+_", "add_bytes", "(bytes, bytes) -> bytes"),
    ("_+_", "add_double", "(double, double) -> double"),
    ("_+_", "add_duration_duration", "(duration, duration) -> duration"),
    ("_+_", "add_duration_timestamp", "(duration, timestamp) -> timestamp"),
    ("_+_", "add_timestamp_duration", "(timestamp, duration) -> timestamp"),
    ("_+_", "add_int64", "(int, int) -> int"),
    ("_+_", "add_list", "(list(A), list(A)) -> list(A)"),
    ("_+_", "add_string", "(string, string) -> string"),
    ("_+_", "add_uint64", "(uint, uint) -> uint"),
    ("_/_", "divide_double", "(double, double) -> double"),
    ("_/_", "divide_int64", "(int, int) -> int"),
    ("_/_", "divide_uint64", "(uint, uint) -> uint"),
    ("_%_", "modulo_int64", "(int, int) -> int"),
    ("_%_", "modulo_uint64", "(uint, uint) -> uint"),
    ("_*_", "multiply_double", "(double, double) -> double"),
    ("_*_", "multiply_int64", "(int, int) -> int"),
    ("_*_", "multiply_uint64", "(uint, uint) -> uint"),
    ("-_", "negate_double", "(double) -> double"),
    ("-_", "negate_int64", "(int) -> int"),
    ("_-_", "subtract_double", "(double, double) -> double"),
    ("_-_", "subtract_duration_duration", "(duration, duration) -> duration"),
    ("_-_", "subtract_int64", "(int, int) -> int"),
    ("_-_", "subtract_timestamp_duration", "(timestamp, duration) -> timestamp"),
    ("_-_", "subtract_timestamp_timestamp", "(timestamp, timestamp) -> duration"),
    ("_-_", "subtract_uint64", "(uint, uint) -> uint"),
    ("_[_]", "index_list", "(list(A), int) -> A"),
    ("_[_]", "index_map", "(map(A, B), A) -> B"),
    ("@in", "in_list", "(A, list(A)) -> bool"),
    ("@in", "in_map", "(A, map(A, B)) -> bool"),
    ("size", "size_bytes", "(bytes) -> int"),
    ("size", "bytes_size", "bytes.() -> int"),
    ("size", "size_list", "(list(A)) -> int"),
    ("size", "list_size", "list(A).() -> int"),
    ("size", "size_map", "(map(A, B)) -> int"),
    ("size", "map_size", "map(A, B).() -> int"),
    ("size", "size_string", "(string) -> int"),
    ("size", "string_size", "string.() -> int"),
    ("type", "type", "(A) -> type(A)"),
    ("bool", "bool_to_bool", "(bool) -> bool"),
    ("bool", "string_to_bool", "(string) -> bool"),
    ("bytes", "bytes_to_bytes", "(bytes) -> bytes"),
    ("bytes", "string_to_bytes", "(string) -> bytes"),
    ("double", "double_to_double", "(double) -> double"),
    ("double", "int64_to_double", "(int) -> double"),
    ("double", "string_to_double", "(string) -> double"),
    ("double", "uint64_to_double", "(uint) -> double"),
    ("duration", "duration_to_duration", "(duration) -> duration"),
    ("duration", "int64_to_duration", "(int) -> duration"),
    ("duration", "string_to_duration", "(string) -> duration"),
    ("dyn", "to_dyn", "(A) -> dyn"),
    ("int", "int64_to_int64", "(int) -> int"),
    ("int", "double_to_int64", "(double) -> int"),
    ("int", "duration_to_int64", "(duration) -> int"),
    ("int", "string_to_int64", "(string) -> int"),
    ("int", "timestamp_to_int64", "(timestamp) -> int"),
    ("int", "uint64_to_int64", "(uint) -> int"),
    ("string", "string_to_string", "(string) -> string"),
    ("string", "bool_to_string", "(bool) -> string"),
    ("string", "bytes_to_string", "(bytes) -> string"),
    ("string", "double_to_string", "(double) -> string"),
    ("string", "duration_to_string", "(duration) -> string"),
    ("string", "int64_to_string", "(int) -> string"),
    ("string", "timestamp_to_string", "(timestamp) -> string"),
    ("string", "uint64_to_string", "(uint) -> string"),
    ("timestamp", "timestamp_to_timestamp", "(timestamp) -> timestamp"),
    ("timestamp", "int64_to_timestamp", "(int) -> timestamp"),
    ("timestamp", "string_to_timestamp", "(string) -> timestamp"),
    ("uint", "uint64_to_uint64", "(uint) -> uint"),
    ("uint", "double_to_uint64", "(double) -> uint"),
    ("uint", "int64_to_uint64", "(int) -> uint"),
    ("uint", "string_to_uint64", "(string) -> uint"),
    ("contains", "contains_string", "string.(string) -> bool"),
    ("endsWith", "ends_with_string", "string.(string) -> bool"),
    ("startsWith", "starts_with_string", "string.(string) -> bool"),
    ("matches", "matches", "(string, string) -> bool"),
    ("matches", "matches_string", "string.(string) -> bool"),
];

const OPTIONALS: &[Row] = &[
    ("optional.of", "optional_of", "(A) -> optional(A)"),
    ("optional.ofNonZeroValue", "optional_ofNonZeroValue", "(A) -> optional(A)"),
    ("optional.none", "optional_none", "() -> optional(A)"),
    ("value", "optional_value", "optional(A).() -> A"),
    ("hasValue", "optional_hasValue", "optional(A).() -> bool"),
    ("or", "optional_or_optional", "optional(A).(optional(A)) -> optional(A)"),
    ("orValue", "optional_orValue_value", "optional(A).(A) -> A"),
    ("_?._", "select_optional_field", "(dyn, string) -> optional(A)"),
    ("_[?_]", "list_optindex_optional_int", "(list(A), int) -> optional(A)"),
    ("_[?_]", "optional_list_optindex_optional_int", "(optional(list(A)), int) -> optional(A)"),
    ("_[?_]", "map_optindex_optional_value", "(map(A, B), A) -> optional(B)"),
    ("_[?_]", "optional_map_optindex_optional_value", "(optional(map(A, B)), A) -> optional(B)"),
    ("_[_]", "optional_list_index_int", "(optional(list(A)), int) -> optional(A)"),
    ("_[_]", "optional_map_index_value", "(optional(map(A, B)), A) -> optional(B)"),
    ("last", "list_last", "list(A).() -> optional(A)"),
    ("first", "list_first", "list(A).() -> optional(A)"),
    ("optional.unwrap", "optional_unwrap", "(list(optional(A))) -> list(A)"),
    ("unwrapOpt", "optional_unwrapOpt", "list(optional(A)).() -> list(A)"),
];

const STRINGS: &[Row] = &[
    ("charAt", "string_char_at_int", "string.(int) -> string"),
    ("indexOf", "string_index_of_string", "string.(string) -> int"),
    ("indexOf", "string_index_of_string_int", "string.(string, int) -> int"),
    ("lastIndexOf", "string_last_index_of_string", "string.(string) -> int"),
    ("lastIndexOf", "string_last_index_of_string_int", "string.(string, int) -> int"),
    ("lowerAscii", "string_lower_ascii", "string.() -> string"),
    ("replace", "string_replace_string_string", "string.(string, string) -> string"),
    ("replace", "string_replace_string_string_int", "string.(string, string, int) -> string"),
    ("split", "string_split_string", "string.(string) -> list(string)"),
    ("split", "string_split_string_int", "string.(string, int) -> list(string)"),
    ("substring", "string_substring_int", "string.(int) -> string"),
    ("substring", "string_substring_int_int", "string.(int, int) -> string"),
    ("trim", "string_trim", "string.() -> string"),
    ("upperAscii", "string_upper_ascii", "string.() -> string"),
    ("format", "string_format", "string.(list(dyn)) -> string"),
    ("strings.quote", "strings_quote", "(string) -> string"),
    ("join", "list_join", "list(string).() -> string"),
    ("join", "list_join_string", "list(string).(string) -> string"),
];

const LISTS: &[Row] = &[
    ("indexOf", "list_a_index_of_int", "list(A).(A) -> int"),
    ("lastIndexOf", "list_a_last_index_of_int", "list(A).(A) -> int"),
];

const REGEX: &[Row] = &[
    ("find", "string_find_string", "string.(string) -> string"),
    ("findAll", "string_find_all_string", "string.(string) -> list(string)"),
    ("findAll", "string_find_all_string_int", "string.(string, int) -> list(string)"),
];

const URLS: &[Row] = &[
    ("url", "string_to_url", "(string) -> url"),
    ("getScheme", "url_get_scheme", "url.() -> string"),
    ("getHost", "url_get_host", "url.() -> string"),
    ("getHostname", "url_get_hostname", "url.() -> string"),
    ("getPort", "url_get_port", "url.() -> string"),
    ("getEscapedPath", "url_get_escaped_path", "url.() -> string"),
    ("getQuery", "url_get_query", "url.() -> map(string, list(string))"),
    ("isURL", "is_url_string", "(string) -> bool"),
];

const QUANTITY: &[Row] = &[
    ("quantity", "string_to_quantity", "(string) -> quantity"),
    ("isQuantity", "is_quantity_string", "(string) -> bool"),
    ("sign", "quantity_sign", "(quantity) -> int"),
    ("isGreaterThan", "quantity_is_greater_than", "quantity.(quantity) -> bool"),
    ("isLessThan", "quantity_is_less_than", "quantity.(quantity) -> bool"),
    ("compareTo", "quantity_compare_to", "quantity.(quantity) -> int"),
    ("asApproximateFloat", "quantity_get_float", "quantity.() -> double"),
    ("asInteger", "quantity_get_int", "quantity.() -> int"),
    ("isInteger", "quantity_is_integer", "quantity.() -> bool"),
    ("add", "quantity_add", "quantity.(quantity) -> quantity"),
    ("add", "quantity_add_int", "quantity.(int) -> quantity"),
    ("sub", "quantity_sub", "quantity.(quantity) -> quantity"),
    ("sub", "quantity_sub_int", "quantity.(int) -> quantity"),
];

const SETS: &[Row] = &[
    ("sets.contains", "list_sets_contains_list", "(list(A), list(A)) -> bool"),
    ("sets.equivalent", "list_sets_equivalent_list", "(list(A), list(A)) -> bool"),
    ("sets.intersects", "list_sets_intersects_list", "(list(A), list(A)) -> bool"),
];

const IP: &[Row] = &[
    ("ip", "string_to_ip", "(string) -> ip"),
    ("family", "ip_family", "ip.() -> int"),
    ("ip.isCanonical", "ip_is_canonical", "(string) -> bool"),
    ("isUnspecified", "ip_is_unspecified", "ip.() -> bool"),
    ("isLoopback", "ip_is_loopback", "ip.() -> bool"),
    ("isLinkLocalMulticast", "ip_is_link_local_multicast", "ip.() -> bool"),
    ("isLinkLocalUnicast", "ip_is_link_local_unicast", "ip.() -> bool"),
    ("isGlobalUnicast", "ip_is_global_unicast", "ip.() -> bool"),
    ("isIP", "is_ip", "(string) -> bool"),
    ("string", "ip_to_string", "(ip) -> string"),
];

const CIDR: &[Row] = &[
    ("cidr", "string_to_cidr", "(string) -> cidr"),
    ("containsIP", "cidr_contains_ip_string", "cidr.(string) -> bool"),
    ("containsIP", "cidr_contains_ip_ip", "cidr.(ip) -> bool"),
    ("containsCIDR", "cidr_contains_cidr_string", "cidr.(string) -> bool"),
    ("containsCIDR", "cidr_contains_cidr", "cidr.(cidr) -> bool"),
    ("ip", "cidr_ip", "cidr.() -> ip"),
    ("prefixLength", "cidr_prefix_length", "cidr.() -> int"),
    ("masked", "cidr_masked", "cidr.() -> cidr"),
    ("isCIDR", "is_cidr", "(string) -> bool"),
    ("string", "cidr_to_string", "(cidr) -> string"),
];

const FORMAT: &[Row] = &[
    ("validate", "format-validate", "format.(string) -> optional(list(string))"),
    ("format.named", "format-named", "(string) -> optional(format)"),
];

const TWO_VARIABLES: &[Row] = &[
    ("cel.@mapInsert", "@mapInsert_map_key_value", "(map(A, B), A, B) -> map(A, B)"),
    ("cel.@mapInsert", "@mapInsert_map_map", "(map(A, B), map(A, B)) -> map(A, B)"),
];

const JSON_PATCH: &[Row] =
    &[("jsonpatch.escapeKey", "string_jsonpatch_escapeKey_string", "(string) -> string")];

const SEMVER: &[Row] = &[
    ("semver", "string_to_semver", "(string) -> semver"),
    ("semver", "string_bool_to_semver", "(string, bool) -> semver"),
    ("isSemver", "is_semver_string", "(string) -> bool"),
    ("isSemver", "is_semver_string_bool", "(string, bool) -> bool"),
    ("isGreaterThan", "semver_is_greater_than", "semver.(semver) -> bool"),
    ("isLessThan", "semver_is_less_than", "semver.(semver) -> bool"),
    ("compareTo", "semver_compare_to", "semver.(semver) -> int"),
    ("major", "semver_major", "semver.() -> int"),
    ("minor", "semver_minor", "semver.() -> int"),
    ("patch", "semver_patch", "semver.() -> int"),
];

const AUTHORIZER: &[Row] = &[
    ("path", "authorizer_path", "authorizer.(string) -> path_check"),
    ("group", "authorizer_group", "authorizer.(string) -> group_check"),
    ("serviceAccount", "authorizer_serviceaccount", "authorizer.(string, string) -> authorizer"),
    ("resource", "groupcheck_resource", "group_check.(string) -> resource_check"),
    ("subresource", "resourcecheck_subresource", "resource_check.(string) -> resource_check"),
    ("namespace", "resourcecheck_namespace", "resource_check.(string) -> resource_check"),
    ("name", "resourcecheck_name", "resource_check.(string) -> resource_check"),
    ("check", "pathcheck_check", "path_check.(string) -> decision"),
    ("check", "resourcecheck_check", "resource_check.(string) -> decision"),
    ("errored", "decision_errored", "decision.() -> bool"),
    ("error", "decision_error", "decision.() -> string"),
    ("allowed", "decision_allowed", "decision.() -> bool"),
    ("reason", "decision_reason", "decision.() -> string"),
];

const AUTHORIZER_SELECTORS: &[Row] = &[
    ("fieldSelector", "authorizer_fieldselector", "resource_check.(string) -> resource_check"),
    ("labelSelector", "authorizer_labelselector", "resource_check.(string) -> resource_check"),
];
