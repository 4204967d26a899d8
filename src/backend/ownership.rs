//! Field ownership (managedFields) of the objects that a call writes.

use std::borrow::Cow;

use pilothouse_api::subresources::SubresourceStrategy;
use pilothouse_apimachinery::codec::SET_ITEM_BYTES;
use pilothouse_apimachinery::managed_fields::scale_view::ScaleView;
use pilothouse_apimachinery::managed_fields::{self, Versions, Write};
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::SERVER_NAME;

use crate::limits::SMALL_BODY_BYTES;

use super::objects::Objects;
use super::request_memory::{BodyMemory, Claim};
use super::{Backend, Call};

/// Fields that no new object can set.
const NEVER_NEW: [&[&str]; 2] =
    [&["metadata", "deletionTimestamp"], &["metadata", "deletionGracePeriodSeconds"]];

impl Backend {
    /// Reserves what the owners of the items of sets take in a body of this version: the text of the body does not tell those from
    /// items of other lists, which have none.
    pub fn reserve_set_items(
        &self,
        call: &Call<'_>,
        version: &GroupVersion,
        value: &Value,
    ) -> Result<Option<BodyMemory>> {
        // A small patch may change a large object, but not on a worker.
        let is_small = call.body.len() <= SMALL_BODY_BYTES && call.work.is_limited();
        if is_small || call.claim() == Claim::Granted {
            return Ok(None);
        }
        let items = managed_fields::count_set_items(&self.objects.versions(call), version, value);
        let bytes = items.saturating_mul(SET_ITEM_BYTES);
        (items > 0).then(|| self.requests.reserve(bytes, call.claim())).transpose()
    }
}

impl Objects {
    /// Updates managedFields in the new state of the call's object. Before admission: its changes get no owner.
    pub fn record(&self, call: &Call<'_>, old: Option<&Value>, new: &mut Value) {
        let mut reset = self.reset(call);
        if old.is_none() {
            reset.extend_from_slice(&NEVER_NEW);
        }
        let (manager, now) = (call.manager(), self.now());
        managed_fields::record(&self.versions(call), &call.owned_write(&manager, &now, &reset), old, new);
    }

    /// Updates managedFields for a change that this server makes itself to an object of another kind.
    pub(crate) fn record_own(
        &self,
        version: &GroupVersion,
        kind: &str,
        subresource: &str,
        old: &Value,
        new: &mut Value,
    ) {
        record_own(&self.registry, (version, kind), subresource, &self.now(), Some(old), new);
    }

    /// The subresource of the path, with the owners of its fields.
    pub(crate) fn show_owned<'v>(
        &self,
        call: &Call<'_>,
        part: &SubresourceStrategy,
        object: &'v Value,
    ) -> Result<Cow<'v, Value>> {
        let mut shown = part.show(object)?;
        if let Some(view) = self.view(call, part) {
            view.lend(object, shown.to_mut());
        }
        Ok(shown)
    }

    /// Writes `body` as the subresource into the object, with updated field ownership.
    pub(crate) fn write_owned(
        &self,
        call: &Call<'_>,
        part: &SubresourceStrategy,
        object: &Value,
        body: Value,
    ) -> Result<Value> {
        let view = self.view(call, part);
        let owned = view.as_ref().map(|view| view.owners(object, &body));
        let mut new = part.write(object, body).map_err(|errors| call.invalid_body(call.name, &errors))?;
        if let Some(owners) = owned {
            owners.store(&mut new);
        }
        Ok(new)
    }

    /// The field that a subresource of another kind shares with its object.
    fn view<'a>(&'a self, call: &'a Call<'_>, part: &'a SubresourceStrategy) -> Option<ScaleView<'a>> {
        let field = part.shared_field()?;
        Some(ScaleView {
            whole: self.whole_versions(call),
            version: &call.resource.gv,
            shown: call.shown_kind().0,
            field,
        })
    }

    /// The versions of the shown kind.
    pub(crate) fn versions<'a>(&'a self, call: &'a Call<'_>) -> Versions<'a> {
        let (gv, kind) = call.shown_kind();
        if *kind == *call.resource.kind {
            return self.whole_versions(call);
        }
        // A subresource of another kind is never stored in that form.
        Versions { registry: &self.registry, kind, stored: gv, elsewhere: None, is_custom: false }
    }

    fn whole_versions<'a>(&'a self, call: &'a Call<'_>) -> Versions<'a> {
        let converts = call.resource.custom.as_ref().is_some_and(|custom| custom.conversion.is_some());
        Versions {
            registry: self.registry_of(call.resource),
            kind: &call.resource.kind,
            stored: &call.stored.version,
            elsewhere: converts.then_some(&call.elsewhere),
            is_custom: call.resource.custom.is_some(),
        }
    }

    /// The fields that the call cannot set.
    pub(crate) fn reset(&self, call: &Call<'_>) -> Vec<&'static [&'static str]> {
        let has_status = call.kind().has_status;
        if call.resource.custom.is_some() {
            return managed_fields::custom_reset_fields(call.subresource, has_status).to_vec();
        }
        managed_fields::reset_fields(call.of().group, &call.resource.kind, call.subresource, has_status)
            .to_vec()
    }
}

/// Updates managedFields for a change that this server makes itself.
pub(crate) fn record_own(
    registry: &Registry,
    (version, kind): (&GroupVersion, &str),
    subresource: &str,
    now: &str,
    old: Option<&Value>,
    new: &mut Value,
) {
    let versions = Versions { registry, kind, stored: version, elsewhere: None, is_custom: false };
    let reset = managed_fields::reset_fields(&version.group, kind, subresource, !subresource.is_empty());
    let write = Write { manager: SERVER_NAME, version, subresource, now, reset };
    managed_fields::record(&versions, &write, old, new);
}

impl Call<'_> {
    /// The field manager: from the query or the user agent.
    pub(crate) fn manager(&self) -> String {
        managed_fields::manager_name(&self.query.text("fieldManager"), self.user_agent)
    }

    /// The write as field ownership sees it.
    pub(crate) fn owned_write<'a>(
        &'a self,
        manager: &'a str,
        now: &'a str,
        reset: &'a [&'a [&'a str]],
    ) -> Write<'a> {
        Write { manager, version: self.shown_kind().0, subresource: self.subresource, now, reset }
    }
}
