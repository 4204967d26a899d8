//! Field ownership (managedFields) of the objects that a call writes.

use std::borrow::Cow;

use pilothouse_api::subresources::SubresourceStrategy;
use pilothouse_apimachinery::codec::SET_ITEM_BYTES;
use pilothouse_apimachinery::managed_fields::scale_view::ScaleView;
use pilothouse_apimachinery::managed_fields::{self, Conversion, Versions, Write};
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::SERVER_NAME;
use pilothouse_kinds::{self as kinds, CONVERSIONS, FieldPaths};

use crate::limits::SMALL_BODY_BYTES;

use super::objects::Objects;
use super::request_memory::{MemoryPriority, RequestReservation};
use super::{Backend, Call};

/// Fields that no new object can set.
const CREATE_RESET_FIELDS: [&[&str]; 2] =
    [&["metadata", "deletionTimestamp"], &["metadata", "deletionGracePeriodSeconds"]];

impl Backend {
    /// Reserves memory for the managedFields of set items in a body of this version. The size of the body does not tell how many
    /// there are: items of other lists need none.
    pub fn reserve_set_items(
        &self,
        call: &Call<'_>,
        version: &GroupVersion,
        value: &Value,
    ) -> Result<Option<RequestReservation>> {
        // A small patch may change a large object, but not on a worker thread.
        let is_small = call.body.bytes.len() <= SMALL_BODY_BYTES && call.work().is_limited();
        if is_small || call.memory_priority() == MemoryPriority::Granted {
            return Ok(None);
        }
        let items = managed_fields::count_set_items(&self.objects.versions(call), version, value);
        let bytes = items.saturating_mul(SET_ITEM_BYTES);
        (items > 0).then(|| self.requests.reserve(bytes, call.memory_priority())).transpose()
    }
}

impl Objects {
    /// Updates managedFields in the new state of the call's object. Must run before admission, whose changes get no owner.
    pub fn record(&self, call: &Call<'_>, old: Option<&Value>, new: &mut Value) {
        let mut reset = reset_fields(call).to_vec();
        if old.is_none() {
            reset.extend_from_slice(&CREATE_RESET_FIELDS);
        }
        let (manager, now) = (call.manager(), self.now());
        managed_fields::record(&self.versions(call), &call.owned_write(&manager, &now, &reset), old, new);
    }

    /// Reads the subresource of the path, with its managedFields.
    pub(crate) fn view_with_owners<'v>(
        &self,
        call: &Call<'_>,
        strategy: &SubresourceStrategy,
        object: &'v Value,
    ) -> Result<Cow<'v, Value>> {
        let mut view = strategy.show(object)?;
        if let Some(scale) = self.scale_view(call, strategy) {
            scale.share_managers(object, view.to_mut());
        }
        Ok(view)
    }

    /// Writes `body` as the subresource into the object, with updated field ownership.
    pub(crate) fn write_view(
        &self,
        call: &Call<'_>,
        strategy: &SubresourceStrategy,
        object: &Value,
        body: Value,
    ) -> Result<Value> {
        let scale = self.scale_view(call, strategy);
        let owners = scale.as_ref().map(|scale| scale.owners(object, &body));
        let mut new =
            strategy.write(object, body).map_err(|errors| call.invalid_body(call.name(), &errors))?;
        if let Some(owners) = owners {
            owners.store(&mut new);
        }
        Ok(new)
    }

    /// How managedFields of the shared field are mapped, if the subresource shares one with its object.
    fn scale_view<'a>(
        &'a self,
        call: &'a Call<'_>,
        strategy: &'a SubresourceStrategy,
    ) -> Option<ScaleView<'a>> {
        let field = strategy.shared_field()?;
        Some(ScaleView {
            whole: self.whole_versions(call),
            version: &call.resource().gv,
            shown: call.body_kind().0,
            field,
        })
    }

    /// The versions of [`Call::body_kind`].
    pub(crate) fn versions<'a>(&'a self, call: &'a Call<'_>) -> Versions<'a> {
        let (gv, kind) = call.body_kind();
        if *kind == *call.resource().kind {
            return self.whole_versions(call);
        }
        // A subresource of another kind is never stored in that form.
        Versions {
            registry: &self.registry,
            kind,
            stored: gv,
            conversion: Conversion::Table(CONVERSIONS),
            is_custom: false,
        }
    }

    fn whole_versions<'a>(&'a self, call: &'a Call<'_>) -> Versions<'a> {
        let has_webhook = call.resource().custom.as_ref().is_some_and(|custom| custom.conversion.is_some());
        Versions {
            registry: self.registry_of(call.resource()),
            kind: &call.resource().kind,
            stored: &call.stored().version,
            conversion: match has_webhook {
                true => Conversion::Webhook(&call.converted_versions),
                false => Conversion::Table(CONVERSIONS),
            },
            is_custom: call.resource().custom.is_some(),
        }
    }
}

/// The fields that the call cannot set.
pub(crate) fn reset_fields(call: &Call<'_>) -> FieldPaths {
    let kind = call.kind();
    kind.rules.reset_fields.for_subresource(call.subresource(), kind.has_status)
}

/// A change that this server makes itself.
pub(crate) struct ServerWrite<'a> {
    /// The version in which the object is stored.
    pub version: &'a GroupVersion,
    /// Its kind.
    pub kind: &'a str,
    /// The subresource, empty for the object itself.
    pub subresource: &'a str,
    /// The time of the change.
    pub now: &'a str,
}

/// Updates managedFields for a change that this server makes itself.
pub(crate) fn record_server_fields(
    registry: &Registry,
    write: &ServerWrite<'_>,
    old: Option<&Value>,
    new: &mut Value,
) {
    let ServerWrite { version, kind, subresource, now } = *write;
    let versions = Versions {
        registry,
        kind,
        stored: version,
        conversion: Conversion::Table(CONVERSIONS),
        is_custom: false,
    };
    let rules = kinds::rules(&version.group, kind);
    let reset = rules.reset_fields.for_subresource(subresource, !subresource.is_empty());
    let write = Write { manager: SERVER_NAME, version, subresource, now, reset };
    managed_fields::record(&versions, &write, old, new);
}

impl Call<'_> {
    /// The field manager: from the query or the user agent.
    pub(crate) fn manager(&self) -> String {
        managed_fields::manager_name(&self.query.text("fieldManager"), self.requester.user_agent)
    }

    /// The parameters of the managedFields update.
    pub(crate) fn owned_write<'a>(
        &'a self,
        manager: &'a str,
        now: &'a str,
        reset: &'a [&'a [&'a str]],
    ) -> Write<'a> {
        Write { manager, version: self.body_kind().0, subresource: self.subresource(), now, reset }
    }
}
