//! What surrounds the items of a list, in each encoding.

use std::sync::Arc;

use bytes::Bytes;
use pilothouse_actors::object::Object;

use super::objects::Objects;
use crate::api::catalog::resource::Resource;
use crate::api::codec::{self, cbor, protobuf};
use crate::api::media::Encoding;
use crate::api::print;
use crate::api::response_format::{Representation, ResponseFormat};
use crate::api::status::{Result, Status};
use crate::api::value::Value;
use crate::limits::LIST_TURN_BYTES;

/// Objects that are encoded before the worker's other requests get a turn.
pub(crate) const ITEMS_PER_TURN: usize = 256;

/// An empty list in the form of a watch event. It tells a client that builds a list from events the kind of that list.
pub(crate) fn blueprint(objects: &Objects, resource: &Resource, form: ResponseFormat) -> Result<Bytes> {
    let (kind, api_version) = list_kind(resource, form.shape);
    let (head, tail) = match form.encoding {
        Encoding::Json | Encoding::Yaml => {
            let list =
                format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{{}},"items":null}}"#);
            return Ok(Bytes::from(list + "\n"));
        }
        Encoding::Protobuf => protobuf_ends(objects, resource, form, "{}", &[])?,
        Encoding::Cbor => cbor_ends(resource, form, "{}", 0)?,
    };
    Ok([head, tail].concat().into())
}

/// The kind and apiVersion of the list.
pub(crate) fn list_kind(resource: &Resource, shape: Representation) -> (&str, &str) {
    match shape {
        Representation::Metadata(version) => ("PartialObjectMetadataList", version.api_version()),
        _ => (&resource.list_kind, &resource.api_version),
    }
}

/// The text before the first item and after the last one, in JSON.
pub(crate) fn json_ends(
    resource: &Resource,
    form: ResponseFormat,
    list_meta: &str,
    empty: bool,
) -> (Bytes, Bytes) {
    if let Representation::Table(version, _) = form.shape {
        let (columns, mut head, mut tail) = (print::columns(resource), Vec::new(), Vec::new());
        if empty {
            let own = !resource.columns.is_empty();
            print::without_rows(&mut head, Some(&columns), version, list_meta.as_bytes(), own);
            return (Bytes::from(head), Bytes::from_static(b"\n"));
        }
        print::head(&mut head, Some(&columns), version, list_meta.as_bytes());
        print::tail(&mut tail);
        tail.push(b'\n');
        return (Bytes::from(head), Bytes::from(tail));
    }
    let (kind, api_version) = list_kind(resource, form.shape);
    if empty && matches!(form.shape, Representation::Metadata(_)) {
        // A null list, though lists of whole objects are empty arrays: the reference has always done so.
        let all = format!(
            r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{list_meta},"items":null}}"#
        );
        return (Bytes::from(all), Bytes::from_static(b"\n"));
    }
    let head = format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{list_meta},"items":["#);
    (Bytes::from(head), Bytes::from_static(b"]}\n"))
}

/// Encodes the items in Protobuf, all of them, because the envelope states the total length. The encoded items are cached with
/// their objects. Yields to other requests in between.
pub(crate) async fn protobuf_items(
    objects: &Objects,
    resource: &Resource,
    form: ResponseFormat,
    items: &[Arc<Object>],
) -> Result<Vec<Bytes>> {
    let mut messages = Vec::with_capacity(items.len());
    let (mut encoded, mut bytes) = (0, 0);
    for object in items {
        messages.push(objects.protobuf_message(resource, form, object)?);
        (encoded, bytes) = (encoded + 1, bytes + object.bytes.len());
        if encoded == ITEMS_PER_TURN || bytes > LIST_TURN_BYTES {
            tokio::task::yield_now().await;
            (encoded, bytes) = (0, 0);
        }
    }
    Ok(messages)
}

/// The bytes before the first item and after the last one, in Protobuf.
pub(crate) fn protobuf_ends(
    objects: &Objects,
    resource: &Resource,
    form: ResponseFormat,
    list_meta: &str,
    messages: &[Bytes],
) -> Result<(Bytes, Bytes)> {
    let total =
        messages.iter().map(|message| protobuf::list_item_header(message.len()).len() + message.len());
    let (kind, api_version) = list_kind(resource, form.shape);
    let meta = read_meta(list_meta)?;
    let (head, tail) = protobuf::list_envelope(api_version, kind, &meta, &objects.registry, total.sum());
    Ok((Bytes::from(head), Bytes::from(tail)))
}

/// The bytes before the first item and after the last one, in CBOR.
pub(crate) fn cbor_ends(
    resource: &Resource,
    form: ResponseFormat,
    list_meta: &str,
    items: usize,
) -> Result<(Bytes, Bytes)> {
    let (kind, api_version) = list_kind(resource, form.shape);
    let frame = cbor::list_frame(kind, api_version, &read_meta(list_meta)?, items);
    Ok((Bytes::from(frame.head), Bytes::from(frame.tail)))
}

pub(crate) fn read_meta(list_meta: &str) -> Result<Value> {
    codec::json::read(list_meta.as_bytes()).map_err(|error| Status::internal(error.to_string()))
}
