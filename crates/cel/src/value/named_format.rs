//! Named string formats.

use pilothouse_apimachinery::formats::Format;
use pilothouse_apimachinery::names;

use super::url::Url;

/// A named format.
#[derive(Debug)]
pub struct NamedFormat {
    /// The function that returns it.
    pub function: &'static str,
    /// The name of the format.
    pub name: &'static str,
    /// The assumed length of its pattern, for cost estimates.
    pub pattern_size: u64,
    check: fn(&str) -> Vec<String>,
}

impl NamedFormat {
    /// All formats.
    pub const ALL: &'static [NamedFormat] = &[
        NamedFormat {
            function: "dns1123Label",
            name: "DNS1123Label",
            pattern_size: 30,
            check: |text| names::label_name(text, false),
        },
        NamedFormat {
            function: "dns1123Subdomain",
            name: "DNS1123Subdomain",
            pattern_size: 60,
            check: |text| names::subdomain_name(text, false),
        },
        NamedFormat {
            function: "dns1035Label",
            name: "DNS1035Label",
            pattern_size: 30,
            check: |text| names::dns_1035_name(text, false),
        },
        NamedFormat {
            function: "qualifiedName",
            name: "QualifiedName",
            pattern_size: 60,
            check: names::qualified_name,
        },
        NamedFormat {
            function: "dns1123LabelPrefix",
            name: "DNS1123LabelPrefix",
            pattern_size: 30,
            check: |text| names::label_name(text, true),
        },
        NamedFormat {
            function: "dns1123SubdomainPrefix",
            name: "DNS1123SubdomainPrefix",
            pattern_size: 60,
            check: |text| names::subdomain_name(text, true),
        },
        NamedFormat {
            function: "dns1035LabelPrefix",
            name: "DNS1035LabelPrefix",
            pattern_size: 30,
            check: |text| names::dns_1035_name(text, true),
        },
        NamedFormat {
            function: "labelValue",
            name: "LabelValue",
            pattern_size: 40,
            check: names::label_value,
        },
        NamedFormat {
            function: "uri",
            name: "URI",
            pattern_size: 1_103,
            check: |text| Url::parse(text).err().into_iter().collect(),
        },
        NamedFormat {
            function: "uuid",
            name: "uuid",
            pattern_size: 79,
            check: |text| check_schema_format("uuid", text, "does not match the UUID format"),
        },
        NamedFormat {
            function: "byte",
            name: "byte",
            pattern_size: 84,
            check: |text| check_schema_format("byte", text, "invalid base64"),
        },
        NamedFormat {
            function: "date",
            name: "date",
            pattern_size: 146,
            check: |text| check_schema_format("date", text, "invalid date"),
        },
        NamedFormat {
            function: "datetime",
            name: "datetime",
            pattern_size: 146,
            check: |text| check_schema_format("datetime", text, "invalid datetime"),
        },
    ];

    /// The format that a function returns.
    pub fn by_function(function: &str) -> Option<&'static NamedFormat> {
        NamedFormat::ALL.iter().find(|format| format.function == function)
    }

    /// The errors of a text; empty if it has the format.
    pub fn validate(&self, text: &str) -> Vec<String> {
        (self.check)(text)
    }
}

fn check_schema_format(name: &str, text: &str, message: &str) -> Vec<String> {
    if Format::named(name).is_some_and(|format| format.holds(text)) {
        Vec::new()
    } else {
        vec![message.to_owned()]
    }
}
