//! Custom objects: JSON with sorted fields, or CBOR, in any version that their definition ever had.

use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom_resource::CustomResource;
use pilothouse_api::draft::build_draft;
use pilothouse_apimachinery::codec::{self, cbor};
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::meta;
use pilothouse_types::object::{Draft, Key, Pairs};

use super::{Body, ValueError, ValueErrorReason, ValueOptions};

/// The value of a custom object. Its fields are sorted, as the reference has no type whose order they could have.
pub(super) fn encode(options: ValueOptions, draft: &Draft) -> Result<Vec<u8>, ValueError> {
    let tree = json::read(&draft.bytes);
    let mut tree = tree.map_err(|_| ValueError::new(ValueErrorReason::CorruptDraft))?;
    if tree.get("metadata").is_some() {
        tree.entry("metadata").remove("resourceVersion");
    }
    meta::drop_self_link(&mut tree);
    if options.custom_cbor {
        return Ok(cbor::encode(&tree));
    }
    let mut text = json::to_json(&tree);
    text.push(b'\n');
    Ok(text)
}

/// Decodes a custom object in the version that it names. It is neither pruned nor defaulted: that is done for the version of each
/// reader, because a definition may change while its objects stay.
pub(super) fn decode(
    resource: &Resource,
    custom: &CustomResource,
    key: &Key,
    value: &[u8],
) -> Result<Draft, ValueError> {
    let body = Body::read(value, &custom.registry)?;
    if body.kind != *custom.kind || *body.version.group != *resource.gv.group {
        return Err(body.of_other_kind(&custom.kind));
    }
    let ty = custom.registry.free_object();
    let object = match body.source {
        Encoding::Json => codec::decode_stored(&body.bytes, ty, &custom.registry),
        Encoding::Cbor => {
            cbor::decode_as(&body.bytes, ty, &custom.registry).ok().map(|decoded| decoded.value)
        }
        Encoding::Protobuf | Encoding::Yaml => None,
    };
    let mut object = object.ok_or_else(|| ValueError::malformed("it is no custom object"))?;
    meta::drop_self_link(&mut object);
    // Only a webhook can convert another version, so its fields are extracted when a selector needs them.
    let is_stored_version = object.str("apiVersion") == &*custom.storage_api_version;
    let fields = match is_stored_version || custom.conversion.is_none() {
        true => custom.stored_fields(&object),
        false => Pairs::default(),
    };
    let encoded = codec::encode_draft(&custom.registry, ty, &object);
    Ok(build_draft(encoded, key.clone(), &object, fields))
}
