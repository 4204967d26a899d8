//! The Protobuf messages of OpenAPI v2 and v3, as far as the documents use them.

use FieldEncoding::{
    Any, Bool, Choice, Default, Double, Each, Integer, Map, Message as Msg, SchemaOrBool, Text, Wrapped,
};

/// A message: its fields by JSON name, in the order of their numbers.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) fields: &'static [(&'static str, u32, FieldEncoding)],
    /// The number of the fields that begin with `x-`.
    pub(super) extensions: u32,
}

/// The encoding of a JSON value.
pub(super) enum FieldEncoding {
    /// A string.
    Text,
    /// A boolean.
    Bool,
    /// An integer.
    Integer,
    /// A number.
    Double,
    /// A schema, or a boolean instead.
    SchemaOrBool(&'static FieldEncoding),
    /// A default value in v3.
    Default,
    /// Anything, as YAML.
    Any,
    /// A message.
    Message(&'static Message),
    /// Every item of a list.
    Each(&'static FieldEncoding),
    /// Wrapped in a message, with this field number.
    Wrapped(u32, &'static FieldEncoding),
    /// A map: entries of name and value, wrapped in a message, with this field number.
    Map(u32, &'static FieldEncoding),
    /// One of several encodings, depending on the fields and their values.
    Choice(Choose),
}

/// Chooses an encoding: the first function tells whether a field exists, the second whether it has this JSON value.
pub(super) type Choose = fn(&dyn Fn(&str) -> bool, &dyn Fn(&str, &str) -> bool) -> &'static FieldEncoding;

impl std::fmt::Debug for FieldEncoding {
    /// Only the name of the type, because messages are recursive.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FieldEncoding")
    }
}

const TEXTS: FieldEncoding = Each(&Text);

/// A v2 document.
pub(super) static V2: Message = Message {
    fields: &[
        ("swagger", 1, Text),
        ("info", 2, Msg(&Message { fields: &[("title", 1, Text), ("version", 2, Text)], extensions: 7 })),
        ("paths", 8, Map(2, &Msg(&PATH_V2))),
        ("definitions", 9, Map(1, &Msg(&SCHEMA_V2))),
        ("parameters", 10, Map(1, &PARAMETER_V2)),
        ("security", 12, Each(&SECURITY)),
        ("securityDefinitions", 13, Map(1, &Wrapped(2, &Msg(&API_KEY_V2)))),
    ],
    extensions: 16,
};

/// Security requirements: names, each with a list of scopes.
const SECURITY: FieldEncoding = Map(1, &Wrapped(1, &TEXTS));

static API_KEY_V2: Message = Message {
    fields: &[("type", 1, Text), ("name", 2, Text), ("in", 3, Text), ("description", 4, Text)],
    extensions: 5,
};

static PATH_V2: Message = Message {
    fields: &[
        ("get", 2, Msg(&OPERATION_V2)),
        ("put", 3, Msg(&OPERATION_V2)),
        ("post", 4, Msg(&OPERATION_V2)),
        ("delete", 5, Msg(&OPERATION_V2)),
        ("options", 6, Msg(&OPERATION_V2)),
        ("head", 7, Msg(&OPERATION_V2)),
        ("patch", 8, Msg(&OPERATION_V2)),
        ("parameters", 9, Each(&PARAMETER_OR_REFERENCE_V2)),
    ],
    extensions: 10,
};

static OPERATION_V2: Message = Message {
    fields: &[
        ("tags", 1, TEXTS),
        ("description", 3, Text),
        ("operationId", 5, Text),
        ("produces", 6, TEXTS),
        ("consumes", 7, TEXTS),
        ("parameters", 8, Each(&PARAMETER_OR_REFERENCE_V2)),
        ("responses", 9, Map(1, &Wrapped(1, &Msg(&RESPONSE_V2)))),
        ("schemes", 10, TEXTS),
    ],
    extensions: 13,
};

static RESPONSE_V2: Message = Message {
    fields: &[("description", 1, Text), ("schema", 2, Wrapped(1, &Msg(&SCHEMA_V2)))],
    extensions: 5,
};

static PARAMETER_OR_REFERENCE_V2: FieldEncoding =
    Choice(|has, _| if has("$ref") { &REFERENCED } else { &PARAMETER_ITEM_V2 });
static PARAMETER_ITEM_V2: FieldEncoding = Wrapped(1, &PARAMETER_V2);
static REFERENCED: FieldEncoding = Wrapped(2, &Msg(&REFERENCE));
static REFERENCE: Message = Message { fields: &[("$ref", 1, Text)], extensions: 0 };

static PARAMETER_V2: FieldEncoding = Choice(|_, is| {
    if is("in", "\"body\"") {
        &BODY_V2
    } else if is("in", "\"path\"") {
        &IN_PATH_V2
    } else {
        &IN_QUERY_V2
    }
});
static BODY_V2: FieldEncoding = Wrapped(
    1,
    &Msg(&Message {
        fields: &[
            ("description", 1, Text),
            ("name", 2, Text),
            ("in", 3, Text),
            ("required", 4, Bool),
            ("schema", 5, Msg(&SCHEMA_V2)),
        ],
        extensions: 6,
    }),
);
static IN_QUERY_V2: FieldEncoding = Wrapped(
    2,
    &Wrapped(
        3,
        &Msg(&Message {
            fields: &[
                ("required", 1, Bool),
                ("in", 2, Text),
                ("description", 3, Text),
                ("name", 4, Text),
                ("type", 6, Text),
                ("uniqueItems", 20, Bool),
            ],
            extensions: 23,
        }),
    ),
);
static IN_PATH_V2: FieldEncoding = Wrapped(
    2,
    &Wrapped(
        4,
        &Msg(&Message {
            fields: &[
                ("required", 1, Bool),
                ("in", 2, Text),
                ("description", 3, Text),
                ("name", 4, Text),
                ("type", 5, Text),
                ("uniqueItems", 19, Bool),
            ],
            extensions: 22,
        }),
    ),
);

static SCHEMA_V2: Message = Message {
    fields: &[
        ("$ref", 1, Text),
        ("format", 2, Text),
        ("title", 3, Text),
        ("description", 4, Text),
        ("default", 5, Any),
        ("multipleOf", 6, Double),
        ("maximum", 7, Double),
        ("exclusiveMaximum", 8, Bool),
        ("minimum", 9, Double),
        ("exclusiveMinimum", 10, Bool),
        ("maxLength", 11, Integer),
        ("minLength", 12, Integer),
        ("pattern", 13, Text),
        ("maxItems", 14, Integer),
        ("minItems", 15, Integer),
        ("uniqueItems", 16, Bool),
        ("maxProperties", 17, Integer),
        ("minProperties", 18, Integer),
        ("required", 19, TEXTS),
        ("enum", 20, Each(&Any)),
        ("additionalProperties", 21, SchemaOrBool(&Msg(&SCHEMA_V2))),
        ("type", 22, Wrapped(1, &Text)),
        ("items", 23, Wrapped(1, &Msg(&SCHEMA_V2))),
        ("allOf", 24, Each(&Msg(&SCHEMA_V2))),
        ("properties", 25, Map(1, &Msg(&SCHEMA_V2))),
    ],
    extensions: 31,
};

/// A v3 document.
pub(super) static V3: Message = Message {
    fields: &[
        ("openapi", 1, Text),
        ("info", 2, Msg(&Message { fields: &[("title", 1, Text), ("version", 6, Text)], extensions: 7 })),
        ("paths", 4, Map(1, &Msg(&PATH_V3))),
        ("components", 5, Msg(&COMPONENTS)),
        ("security", 6, Each(&SECURITY)),
    ],
    extensions: 9,
};

static COMPONENTS: Message = Message {
    fields: &[
        ("schemas", 1, Map(1, &SCHEMA_OR_REFERENCE)),
        ("securitySchemes", 7, Map(1, &Wrapped(1, &Msg(&SECURITY_SCHEME)))),
    ],
    extensions: 10,
};

static SECURITY_SCHEME: Message = Message {
    fields: &[("type", 1, Text), ("description", 2, Text), ("name", 3, Text), ("in", 4, Text)],
    extensions: 9,
};

static PATH_V3: Message = Message {
    fields: &[
        ("get", 4, Msg(&OPERATION_V3)),
        ("put", 5, Msg(&OPERATION_V3)),
        ("post", 6, Msg(&OPERATION_V3)),
        ("delete", 7, Msg(&OPERATION_V3)),
        ("options", 8, Msg(&OPERATION_V3)),
        ("head", 9, Msg(&OPERATION_V3)),
        ("patch", 10, Msg(&OPERATION_V3)),
        ("parameters", 13, Each(&PARAMETER_V3)),
    ],
    extensions: 14,
};

static OPERATION_V3: Message = Message {
    fields: &[
        ("tags", 1, TEXTS),
        ("description", 3, Text),
        ("operationId", 5, Text),
        ("parameters", 6, Each(&PARAMETER_V3)),
        ("requestBody", 7, Wrapped(1, &Msg(&REQUEST_BODY))),
        ("responses", 8, Map(2, &Wrapped(1, &Msg(&RESPONSE_V3)))),
    ],
    extensions: 13,
};

static REQUEST_BODY: Message =
    Message { fields: &[("content", 2, Map(1, &Msg(&MEDIA_TYPE))), ("required", 3, Bool)], extensions: 4 };

static RESPONSE_V3: Message =
    Message { fields: &[("description", 1, Text), ("content", 3, Map(1, &Msg(&MEDIA_TYPE)))], extensions: 5 };

static MEDIA_TYPE: Message = Message { fields: &[("schema", 1, SCHEMA_OR_REFERENCE)], extensions: 5 };

static PARAMETER_V3: FieldEncoding = Wrapped(
    1,
    &Msg(&Message {
        fields: &[
            ("name", 1, Text),
            ("in", 2, Text),
            ("description", 3, Text),
            ("required", 4, Bool),
            ("schema", 10, SCHEMA_OR_REFERENCE),
        ],
        extensions: 14,
    }),
);

const SCHEMA_OR_REFERENCE: FieldEncoding =
    Choice(|has, _| if has("$ref") { &REFERENCED } else { &SCHEMA_ITEM });
static SCHEMA_ITEM: FieldEncoding = Wrapped(1, &Msg(&SCHEMA_V3));

static SCHEMA_V3: Message = Message {
    fields: &[
        ("nullable", 1, Bool),
        ("title", 9, Text),
        ("multipleOf", 10, Double),
        ("maximum", 11, Double),
        ("exclusiveMaximum", 12, Bool),
        ("minimum", 13, Double),
        ("exclusiveMinimum", 14, Bool),
        ("maxLength", 15, Integer),
        ("minLength", 16, Integer),
        ("pattern", 17, Text),
        ("maxItems", 18, Integer),
        ("minItems", 19, Integer),
        ("uniqueItems", 20, Bool),
        ("maxProperties", 21, Integer),
        ("minProperties", 22, Integer),
        ("required", 23, TEXTS),
        ("enum", 24, Each(&Any)),
        ("type", 25, Text),
        ("allOf", 26, Each(&SCHEMA_OR_REFERENCE)),
        ("oneOf", 27, Each(&SCHEMA_OR_REFERENCE)),
        ("anyOf", 28, Each(&SCHEMA_OR_REFERENCE)),
        ("not", 29, Msg(&SCHEMA_V3)),
        ("items", 30, Wrapped(1, &SCHEMA_OR_REFERENCE)),
        ("properties", 31, Map(1, &SCHEMA_OR_REFERENCE)),
        ("additionalProperties", 32, SchemaOrBool(&SCHEMA_OR_REFERENCE)),
        ("default", 33, Default),
        ("description", 34, Text),
        ("format", 35, Text),
    ],
    extensions: 36,
};
