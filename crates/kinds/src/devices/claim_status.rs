//! The status of ResourceClaims: the allocated devices.

use super::super::core::affinity;
use super::super::{WriteContext, messages};
use super::claim::Requests;
use super::common::{MOST_CONFIGS, at_most, configuration, driver_name, pool_name, raw, unique};
use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, present_mut};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

/// Removes the status of devices that are deallocated.
pub fn prepare_claim_status(new: &mut Value, old: &Value, _: &WriteContext<'_>) {
    fn devices<'a>(claim: &'a Value, path: &[&str]) -> BTreeSet<[&'a str; 3]> {
        claim.at(path).map(Value::items).unwrap_or_default().iter().map(device).collect()
    }
    fn device(one: &Value) -> [&str; 3] {
        ["driver", "pool", "device"].map(|field| one.str(field))
    }
    const GIVEN: [&str; 4] = ["status", "allocation", "devices", "results"];
    let (was, is) = (devices(old, &GIVEN), devices(new, &GIVEN));
    let gone: BTreeSet<[String; 3]> = was.difference(&is).map(|device| device.map(str::to_owned)).collect();
    let Some(status) = present_mut(new, "status").filter(|_| !gone.is_empty()) else { return };
    if let Some(Value::Array(told)) = status.get_mut("devices") {
        told.retain(|one| !gone.contains(&device(one).map(str::to_owned)));
        if told.is_empty() {
            status.remove("devices");
        }
    }
}

/// Validates an update of the status.
pub fn validate_claim_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    const MOST_USERS: usize = 256;
    let (status, was) = (FieldValue::of(new, "status"), FieldValue::of(old, "status"));
    let (users, allocation) = (status.child("reservedFor"), status.child("allocation"));
    for user in users.items() {
        for field in ["resource", "name", "uid"] {
            user.child(field).need(errors);
        }
    }
    at_most(&users, MOST_USERS, errors);
    unique(&users, "uid", errors);
    device_statuses(&status, errors);
    if !users.is_empty() && !allocation.is_set() {
        users.forbidden(errors, "may not be specified when `allocated` is not set");
    } else if meta::is_terminating(new) {
        let fields = |user: &FieldValue<'_>| {
            ["apiGroup", "resource", "name", "uid"].map(|field| user.str(field).to_owned())
        };
        let known: BTreeSet<[String; 4]> =
            was.child("reservedFor").items().map(|user| fields(&user)).collect();
        if users.items().any(|user| !known.contains(&fields(&user))) {
            let why =
                "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            users.forbidden(errors, why);
        }
    }
    if was.child("allocation").is_set() && allocation.is_set() {
        messages::same_structure(&allocation, &was.child("allocation"), "resource.AllocationResult", errors);
    } else if allocation.is_set() {
        allocation_result(new, &allocation, errors);
    }
}

fn allocation_result(claim: &Value, allocation: &FieldValue<'_>, errors: &mut ErrorList) {
    const MOST_RESULTS: usize = 32;
    let known = Requests::of(&FieldValue::of(claim, "spec").child("devices"));
    let (results, configs) =
        (allocation.child("devices").child("results"), allocation.child("devices").child("config"));
    for result in results.items() {
        known.check_name(&result.child("request"), errors);
        driver_name(&result.child("driver"), errors);
        pool_name(&result.child("pool"), errors);
        result.child("device").syntax(errors, names::dns_label);
    }
    at_most(&results, MOST_RESULTS, errors);
    for config in configs.items() {
        config.child("source").need_one_of(errors, &["FromClaim", "FromClass"]);
        known.check_names(&config.child("requests"), errors);
        configuration(&config, errors);
    }
    at_most(&configs, 2 * MOST_CONFIGS, errors);
    if allocation.child("nodeSelector").is_set() {
        affinity::node_selector(&allocation.child("nodeSelector"), errors);
    }
}

fn device_id<'a>(device: &FieldValue<'a>) -> [&'a str; 3] {
    ["driver", "pool", "device"].map(|field| device.child(field).text())
}

fn device_statuses(status: &FieldValue<'_>, errors: &mut ErrorList) {
    const MOST_CONDITIONS: usize = 8;
    const LONGEST_DATA: usize = 10 * 1_024;
    let allocated: BTreeSet<[&str; 3]> = status
        .child("allocation")
        .child("devices")
        .child("results")
        .items()
        .map(|result| device_id(&result))
        .collect();
    let mut seen = BTreeSet::new();
    for device in status.child("devices").items() {
        driver_name(&device.child("driver"), errors);
        pool_name(&device.child("pool"), errors);
        device.child("device").syntax(errors, names::dns_label);
        let id = device_id(&device);
        if !allocated.contains(&id) {
            let shown = format!("{}/{}/{}", id[0], id[1], id[2]);
            errors.push(FieldError::invalid(
                &device.path,
                &shown,
                "must be an allocated device in the claim",
            ));
        }
        at_most(&device.child("conditions"), MOST_CONDITIONS, errors);
        messages::conditions(&device.child("conditions"), errors);
        if device.child("data").is_set() {
            raw(&device.child("data"), LONGEST_DATA, errors);
        }
        network_data(&device.child("networkData"), errors);
        if !seen.insert(id) {
            let shown = format!("{}/{}/{}", id[0], id[1], id[2]);
            errors.push(FieldError::duplicate(&device.path.child("deviceID"), &shown));
        }
    }
}

fn network_data(data: &FieldValue<'_>, errors: &mut ErrorList) {
    const MOST_ADDRESSES: usize = 16;
    for (field, longest) in [("interfaceName", 256), ("hardwareAddress", 128)] {
        if data.child(field).text().len() > longest {
            errors.push(FieldError::too_long(&data.child(field).path, longest));
        }
    }
    let addresses = data.child("ips");
    for address in addresses.items() {
        match names::parse_cidr(address.text()) {
            None => {
                let why = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
                address.invalid_text(errors, why);
            }
            Some((ip, length)) if address.text() != format!("{ip}/{length}") => {
                let canonical = quoted(&format!("{ip}/{length}"));
                address.invalid_text(errors, &format!("must be in canonical form ({canonical})"));
            }
            Some(_) => {}
        }
    }
    at_most(&addresses, MOST_ADDRESSES, errors);
    unique(&addresses, "", errors);
}
