//! The status of ResourceClaims: the allocated devices.

use super::super::core::affinity;
use super::super::{WriteContext, messages};
use super::claim::Requests;
use super::common::{
    MAX_CONFIGS, limit_items, validate_configuration, validate_driver_name, validate_pool_name,
    validate_raw_object, validate_unique,
};
use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, present_mut};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

/// Removes the status of devices that are deallocated.
pub fn prepare_claim_status(new: &mut Value, old: &Value, _: &WriteContext<'_>) {
    fn devices<'a>(claim: &'a Value, path: &[&str]) -> BTreeSet<[&'a str; 3]> {
        claim.get_path(path).map(Value::items).unwrap_or_default().iter().map(device).collect()
    }
    fn device(item: &Value) -> [&str; 3] {
        ["driver", "pool", "device"].map(|field| item.str(field))
    }
    const RESULTS: [&str; 4] = ["status", "allocation", "devices", "results"];
    let (old_devices, new_devices) = (devices(old, &RESULTS), devices(new, &RESULTS));
    let deallocated: BTreeSet<[String; 3]> =
        old_devices.difference(&new_devices).map(|device| device.map(str::to_owned)).collect();
    let Some(status) = present_mut(new, "status").filter(|_| !deallocated.is_empty()) else { return };
    if let Some(Value::Array(statuses)) = status.get_mut("devices") {
        statuses.retain(|item| !deallocated.contains(&device(item).map(str::to_owned)));
        if statuses.is_empty() {
            status.remove("devices");
        }
    }
}

/// Validates an update of the status.
pub fn validate_claim_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    const MAX_USERS: usize = 256;
    let (status, old_status) = (FieldValue::top_level(new, "status"), FieldValue::top_level(old, "status"));
    let (users, allocation) = (status.child("reservedFor"), status.child("allocation"));
    for user in users.items() {
        for field in ["resource", "name", "uid"] {
            user.child(field).need(errors);
        }
    }
    limit_items(&users, MAX_USERS, errors);
    validate_unique(&users, "uid", errors);
    validate_device_statuses(&status, errors);
    if !users.is_empty() && !allocation.is_set() {
        users.forbidden(errors, "may not be specified when `allocated` is not set");
    } else if meta::is_terminating(new) {
        let fields = |user: &FieldValue<'_>| {
            ["apiGroup", "resource", "name", "uid"].map(|field| user.str(field).to_owned())
        };
        let old_users: BTreeSet<[String; 4]> =
            old_status.child("reservedFor").items().map(|user| fields(&user)).collect();
        if users.items().any(|user| !old_users.contains(&fields(&user))) {
            let detail =
                "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            users.forbidden(errors, detail);
        }
    }
    if old_status.child("allocation").is_set() && allocation.is_set() {
        messages::validate_struct_unchanged(
            &allocation,
            &old_status.child("allocation"),
            "resource.AllocationResult",
            errors,
        );
    } else if allocation.is_set() {
        validate_allocation(new, &allocation, errors);
    }
}

fn validate_allocation(claim: &Value, allocation: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_RESULTS: usize = 32;
    let requests = Requests::collect(&FieldValue::top_level(claim, "spec").child("devices"));
    let (results, configs) =
        (allocation.child("devices").child("results"), allocation.child("devices").child("config"));
    for result in results.items() {
        requests.validate_name(&result.child("request"), errors);
        validate_driver_name(&result.child("driver"), errors);
        validate_pool_name(&result.child("pool"), errors);
        result.child("device").syntax(errors, names::dns_label);
    }
    limit_items(&results, MAX_RESULTS, errors);
    for config in configs.items() {
        config.child("source").need_one_of(errors, &["FromClaim", "FromClass"]);
        requests.validate_names(&config.child("requests"), errors);
        validate_configuration(&config, errors);
    }
    limit_items(&configs, 2 * MAX_CONFIGS, errors);
    if allocation.child("nodeSelector").is_set() {
        affinity::validate_node_selector(&allocation.child("nodeSelector"), errors);
    }
}

fn device_id<'a>(device: &FieldValue<'a>) -> [&'a str; 3] {
    ["driver", "pool", "device"].map(|field| device.child(field).text())
}

fn validate_device_statuses(status: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_CONDITIONS: usize = 8;
    const MAX_DATA_LENGTH: usize = 10 * 1_024;
    let allocated: BTreeSet<[&str; 3]> = status
        .child("allocation")
        .child("devices")
        .child("results")
        .items()
        .map(|result| device_id(&result))
        .collect();
    let mut seen = BTreeSet::new();
    for device in status.child("devices").items() {
        validate_driver_name(&device.child("driver"), errors);
        validate_pool_name(&device.child("pool"), errors);
        device.child("device").syntax(errors, names::dns_label);
        let id = device_id(&device);
        if !allocated.contains(&id) {
            let rendered = format!("{}/{}/{}", id[0], id[1], id[2]);
            errors.push(FieldError::invalid(
                &device.path,
                &rendered,
                "must be an allocated device in the claim",
            ));
        }
        limit_items(&device.child("conditions"), MAX_CONDITIONS, errors);
        messages::conditions(&device.child("conditions"), errors);
        if device.child("data").is_set() {
            validate_raw_object(&device.child("data"), MAX_DATA_LENGTH, errors);
        }
        validate_network_data(&device.child("networkData"), errors);
        if !seen.insert(id) {
            let rendered = format!("{}/{}/{}", id[0], id[1], id[2]);
            errors.push(FieldError::duplicate(&device.path.child("deviceID"), &rendered));
        }
    }
}

fn validate_network_data(data: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_ADDRESSES: usize = 16;
    for (field, max_length) in [("interfaceName", 256), ("hardwareAddress", 128)] {
        if data.child(field).text().len() > max_length {
            errors.push(FieldError::too_long(&data.child(field).path, max_length));
        }
    }
    let addresses = data.child("ips");
    for address in addresses.items() {
        match names::parse_cidr(address.text()) {
            None => {
                let detail = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
                address.invalid_text(errors, detail);
            }
            Some(cidr) if address.text() != cidr.to_string() => {
                let canonical = quoted(&cidr.to_string());
                address.invalid_text(errors, &format!("must be in canonical form ({canonical})"));
            }
            Some(_) => {}
        }
    }
    limit_items(&addresses, MAX_ADDRESSES, errors);
    validate_unique(&addresses, "", errors);
}
