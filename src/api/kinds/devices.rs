//! The kinds of the group `resource.k8s.io`: claims of devices, and who has some. Older versions say the same with one
//! level less; their mistakes are told as those of the newest.

use std::collections::{BTreeMap, BTreeSet};

use super::check::{Node, same};
use super::core::affinity;
use super::{Errors, say};
use crate::api::field::{FieldError, Path, quoted};
use crate::api::value::Value;
use crate::api::{meta, names};

const MOST_REQUESTS: usize = 32;
const MOST_SELECTORS: usize = 32;
const MOST_CONSTRAINTS: usize = 32;
const MOST_CONFIGS: usize = 32;
const MOST_CHOICES: usize = 8;
const LONGEST_EXPRESSION: usize = 10 * 1_024;
const LONGEST_PARAMETERS: usize = 10 * 1_024;
const LONGEST_POOL: usize = 253;
const LONGEST_ID: usize = 32;
const NO_REQUEST: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

fn at_most(list: &Node<'_>, most: usize, errors: &mut Errors) {
    if list.len() > most {
        errors.push(FieldError::too_many(&list.path, list.len(), most));
    }
}

/// Says which items of a list have a key that others have already.
fn unique<'a>(list: &Node<'a>, field: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for item in list.items() {
        let key = if field.is_empty() { item } else { item.child(field) };
        if !seen.insert(key.text()) {
            errors.push(FieldError::duplicate(&key.path, &quoted(key.text())));
        }
    }
}

fn driver_name(name: &Node<'_>, errors: &mut Errors) {
    const LONGEST: usize = 63;
    name.need(errors);
    if name.text().len() > LONGEST {
        errors.push(FieldError::too_long(&name.path, LONGEST));
    }
    for wrong in names::dns_subdomain(&name.text().to_lowercase()) {
        name.invalid_text(errors, &wrong);
    }
}

fn pool_name(name: &Node<'_>, errors: &mut Errors) {
    if !name.need(errors) {
        return;
    }
    if name.text().len() > LONGEST_POOL {
        errors.push(FieldError::too_long(&name.path, LONGEST_POOL));
    }
    for part in name.text().split('/') {
        meta::texts(errors, &name.path, part, names::dns_subdomain(part));
    }
}

/// The requests of a claim and the choices below them.
struct Requests<'a> {
    choices: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Requests<'a> {
    fn of(devices: &Node<'a>) -> Requests<'a> {
        let name = |one: &'a Value| one.str("name");
        let mut choices = BTreeMap::new();
        for request in devices.read("requests").items() {
            // The first of a name counts.
            choices.entry(name(request)).or_insert_with(|| {
                request.get("firstAvailable").map(Value::items).unwrap_or_default().iter().map(name).collect()
            });
        }
        Requests { choices }
    }

    fn has(&self, name: &str) -> bool {
        let (first, choice) = name.split_once('/').map_or((name, None), |(first, rest)| (first, Some(rest)));
        let choices = self.choices.get(first);
        choices.is_some_and(|choices| choice.is_none_or(|choice| choices.contains(choice)))
    }

    fn check_names(&self, list: &Node<'_>, errors: &mut Errors) {
        for name in list.items() {
            self.check_name(&name, errors);
        }
        at_most(list, MOST_REQUESTS, errors);
        unique(list, "", errors);
    }

    fn check_name(&self, name: &Node<'_>, errors: &mut Errors) {
        if name.text().matches('/').count() > 1 {
            name.invalid(errors, NO_REQUEST);
            return;
        }
        for part in name.text().split('/') {
            meta::texts(errors, &name.path, part, names::dns_label(part));
        }
        if !self.has(name.text()) {
            name.invalid_text(errors, NO_REQUEST);
        }
    }
}

fn claim_spec(spec: &Node<'_>, errors: &mut Errors) {
    let devices = spec.child("devices");
    let requests = devices.child("requests");
    for request in requests.items() {
        validate_request(&request, errors);
    }
    at_most(&requests, MOST_REQUESTS, errors);
    unique(&requests, "name", errors);
    let known = Requests::of(&devices);
    let constraints = devices.child("constraints");
    for constraint in constraints.items() {
        known.check_names(&constraint.child("requests"), errors);
        let attribute = constraint.child("matchAttribute");
        if attribute.is_set() {
            qualified_name(attribute.text(), &attribute.path, errors);
            if !attribute.is_empty() && !attribute.text().contains('/') {
                attribute.invalid(errors, "must include a domain");
            }
        } else {
            attribute.required(errors, "");
        }
    }
    at_most(&constraints, MOST_CONSTRAINTS, errors);
    let configs = devices.child("config");
    for config in configs.items() {
        known.check_names(&config.child("requests"), errors);
        configuration(&config, errors);
    }
    at_most(&configs, MOST_CONFIGS, errors);
}

fn validate_request(request: &Node<'_>, errors: &mut Errors) {
    const ONE: &str = "exactly one of `exactly` or `firstAvailable` is required";
    request.child("name").syntax(errors, names::dns_label);
    let choices = request.child("firstAvailable");
    for choice in choices.items() {
        choice.child("name").syntax(errors, names::dns_label);
        one_request(&choice, errors);
    }
    if !choices.is_empty() {
        at_most(&choices, MOST_CHOICES, errors);
        unique(&choices, "name", errors);
    }
    let flat = ["deviceClassName", "selectors", "count", "adminAccess", "tolerations"];
    let exactly = if request.child("exactly").is_set() {
        Some(request.child("exactly"))
    } else {
        let is_flat = flat.iter().any(|field| request.child(field).is_set());
        is_flat.then(|| Node { value: request.value, path: request.path.child("exactly") })
    };
    if let Some(exactly) = &exactly {
        one_request(exactly, errors);
    }
    match (exactly.is_some(), !choices.is_empty()) {
        (false, false) => request.required(errors, ONE),
        (true, true) => {
            let why = format!("{ONE}, but multiple fields are set");
            errors.push(FieldError::invalid(&request.path, "\"null\"", &why));
        }
        _ => {}
    }
}

fn one_request(request: &Node<'_>, errors: &mut Errors) {
    request.child("deviceClassName").need_syntax(errors, names::dns_subdomain);
    selectors(&request.child("selectors"), errors);
    let (mode, count) = (request.child("allocationMode"), request.child("count"));
    match mode.text() {
        "All" if count.number() != 0 => {
            count.invalid(errors, "must not be specified when allocationMode is 'All'");
        }
        "All" => {}
        "ExactCount" if count.number() <= 0 => {
            let shown = count.number().to_string();
            errors.push(FieldError::invalid(&count.path, &shown, "must be greater than zero"));
        }
        "ExactCount" => {}
        _ => mode.one_of(errors, &["All", "ExactCount"]),
    }
    for toleration in request.child("tolerations").items() {
        validate_toleration(&toleration, errors);
    }
}

fn validate_toleration(toleration: &Node<'_>, errors: &mut Errors) {
    let (key, value) = (toleration.child("key"), toleration.child("value"));
    key.syntax_if_set(errors, names::qualified_name);
    match toleration.child("operator").text() {
        "Exists" if !value.is_empty() => value.invalid(errors, "must be empty for operator `Exists`"),
        "Exists" => {}
        "Equal" => value.syntax(errors, names::label_value),
        _ => toleration.child("operator").need_one_of(errors, &["Equal", "Exists"]),
    }
    if !toleration.child("effect").is_empty() {
        toleration.child("effect").one_of(errors, &["NoExecute", "NoSchedule"]);
    }
}

fn validate_taint(taint: &Node<'_>, errors: &mut Errors) {
    taint.child("key").syntax(errors, names::qualified_name);
    taint.child("value").syntax_if_set(errors, names::label_value);
    taint.child("effect").need_one_of(errors, &["NoExecute", "NoSchedule"]);
}

fn selectors(list: &Node<'_>, errors: &mut Errors) {
    for selector in list.items() {
        let expression = selector.child("cel");
        if !expression.is_set() {
            expression.required(errors, "");
        } else if expression.child("expression").text().len() > LONGEST_EXPRESSION {
            errors.push(FieldError::too_long(&expression.child("expression").path, LONGEST_EXPRESSION));
        }
    }
    at_most(list, MOST_SELECTORS, errors);
}

fn configuration(config: &Node<'_>, errors: &mut Errors) {
    let opaque = config.child("opaque");
    if !opaque.is_set() {
        opaque.required(errors, "");
        return;
    }
    driver_name(&opaque.child("driver"), errors);
    raw(&opaque.child("parameters"), LONGEST_PARAMETERS, errors);
}

/// Checks data of a form that only a driver knows.
fn raw(data: &Node<'_>, longest: usize, errors: &mut Errors) {
    match data.value {
        Value::Null => data.required(errors, ""),
        Value::Object(_) if data.shown().len() > longest => {
            errors.push(FieldError::too_long(&data.path, longest));
        }
        Value::Object(_) => {}
        _ => {
            let why = "parameters must be a valid JSON object";
            errors.push(FieldError::invalid(&data.path, &quoted("<value omitted>"), why));
        }
    }
}

/// Checks a name that may have a domain.
fn qualified_name(name: &str, path: &Path, errors: &mut Errors) {
    let domain = |part: &str, errors: &mut Errors| {
        let value = Value::from(part);
        driver_name(&Node { value: &value, path: path.clone() }, errors);
    };
    let required = |why: &str, errors: &mut Errors| errors.push(FieldError::required(path, why));
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [""] => required("name required", errors),
        [id] => identifier(id, path, errors),
        [first, id] => {
            if first.is_empty() {
                required("the domain must not be empty", errors);
            } else {
                domain(first, errors);
            }
            if id.is_empty() {
                required("the name must not be empty", errors);
            } else {
                identifier(id, path, errors);
            }
        }
        _ => {}
    }
}

fn identifier(id: &str, path: &Path, errors: &mut Errors) {
    const WRONG: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of \
        alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is \
        '[A-Za-z_][A-Za-z0-9_]*')";
    if id.len() > LONGEST_ID {
        errors.push(FieldError::too_long(path, LONGEST_ID));
    }
    let fits = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !fits || id.bytes().next().is_none_or(|first| first.is_ascii_digit()) {
        errors.push(FieldError::type_invalid(path, &quoted(id), WRONG));
    }
}

/// Checks a ResourceClaim.
pub fn validate_claim(claim: &Value, errors: &mut Errors) {
    claim_spec(&Node::of(claim, "spec"), errors);
}

/// Checks a changed ResourceClaim: what is claimed stays. The whole is looked at twice.
pub fn validate_claim_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_claim(new, errors);
    say::same_structure(&Node::of(new, "spec"), &Node::of(old, "spec"), "resource.ResourceClaimSpec", errors);
    validate_claim(new, errors);
}

/// Checks a changed status of a ResourceClaim.
pub fn validate_claim_status(new: &Value, old: &Value, errors: &mut Errors) {
    const MOST_USERS: usize = 256;
    let (status, was) = (Node::of(new, "status"), Node::of(old, "status"));
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
        let fields =
            |user: &Node<'_>| ["apiGroup", "resource", "name", "uid"].map(|field| user.str(field).to_owned());
        let known: BTreeSet<[String; 4]> =
            was.child("reservedFor").items().map(|user| fields(&user)).collect();
        if users.items().any(|user| !known.contains(&fields(&user))) {
            let why =
                "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            users.forbidden(errors, why);
        }
    }
    if was.child("allocation").is_set() && allocation.is_set() {
        say::same_structure(&allocation, &was.child("allocation"), "resource.AllocationResult", errors);
    } else if allocation.is_set() {
        allocation_result(new, &allocation, errors);
    }
}

fn allocation_result(claim: &Value, allocation: &Node<'_>, errors: &mut Errors) {
    const MOST_RESULTS: usize = 32;
    let known = Requests::of(&Node::of(claim, "spec").child("devices"));
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

fn device_id<'a>(device: &Node<'a>) -> [&'a str; 3] {
    ["driver", "pool", "device"].map(|field| device.child(field).text())
}

fn device_statuses(status: &Node<'_>, errors: &mut Errors) {
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
        say::conditions(&device.child("conditions"), errors);
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

fn network_data(data: &Node<'_>, errors: &mut Errors) {
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

/// Checks a ResourceClaimTemplate.
pub fn validate_template(template: &Value, errors: &mut Errors) {
    let spec = Node::of(template, "spec");
    let metadata = spec.child("metadata");
    let labels = metadata.child("labels");
    meta::validate_labels(Some(labels.value), &labels.path, errors);
    let annotations = metadata.child("annotations");
    meta::validate_annotations(Some(annotations.value), &annotations.path, errors);
    claim_spec(&spec.child("spec"), errors);
}

/// Checks a changed ResourceClaimTemplate: it stays as it is. The whole is looked at twice.
pub fn validate_template_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_template(new, errors);
    let kind = "resource.ResourceClaimTemplateSpec";
    say::same_structure(&Node::of(new, "spec"), &Node::of(old, "spec"), kind, errors);
    validate_template(new, errors);
}

/// Checks a DeviceClass.
pub fn validate_class(class: &Value, errors: &mut Errors) {
    let spec = Node::of(class, "spec");
    selectors(&spec.child("selectors"), errors);
    for config in spec.child("config").items() {
        configuration(&config, errors);
    }
    at_most(&spec.child("config"), MOST_CONFIGS, errors);
}

/// Checks a changed DeviceClass. The whole is looked at twice.
pub fn validate_class_update(new: &Value, _old: &Value, errors: &mut Errors) {
    validate_class(new, errors);
    validate_class(new, errors);
}

/// Checks a DeviceTaintRule.
pub fn validate_taint_rule(rule: &Value, errors: &mut Errors) {
    let spec = Node::of(rule, "spec");
    let chosen = spec.child("deviceSelector");
    if chosen.child("deviceClassName").is_set() {
        chosen.child("deviceClassName").syntax(errors, names::dns_subdomain);
    }
    if chosen.child("driver").is_set() {
        driver_name(&chosen.child("driver"), errors);
    }
    if chosen.child("pool").is_set() {
        pool_name(&chosen.child("pool"), errors);
    }
    if chosen.child("device").is_set() {
        chosen.child("device").syntax(errors, names::dns_label);
    }
    selectors(&chosen.child("selectors"), errors);
    validate_taint(&spec.child("taint"), errors);
}

/// Checks a changed DeviceTaintRule.
pub fn validate_taint_rule_update(new: &Value, _old: &Value, errors: &mut Errors) {
    validate_taint_rule(new, errors);
}

/// Checks a ResourceSlice.
pub fn validate_slice(slice: &Value, errors: &mut Errors) {
    slice_head(slice, errors);
    slice_body(slice, errors);
}

/// Checks a changed ResourceSlice: whose devices it tells of stays.
pub fn validate_slice_update(new: &Value, old: &Value, errors: &mut Errors) {
    slice_head(new, errors);
    let (spec, was) = (Node::of(new, "spec"), Node::of(old, "spec"));
    let table = [
        (spec.child("pool").child("name"), was.child("pool").child("name")),
        (spec.child("driver"), was.child("driver")),
        (spec.child("nodeName"), was.child("nodeName")),
    ];
    for (now, before) in table {
        if !same(Some(now.value), Some(before.value)) {
            now.invalid(errors, meta::IMMUTABLE);
        }
    }
    slice_body(new, errors);
}

fn slice_head(slice: &Value, errors: &mut Errors) {
    let spec = Node::of(slice, "spec");
    let pool = spec.child("pool");
    driver_name(&spec.child("driver"), errors);
    pool_name(&pool.child("name"), errors);
    let count = pool.child("resourceSliceCount");
    if count.number() <= 0 {
        let shown = count.number().to_string();
        errors.push(FieldError::invalid(&count.path, &shown, "must be greater than zero"));
    }
    if pool.child("generation").number() < 0 {
        pool.child("generation").invalid(errors, "must be greater than or equal to zero");
    }
}

/// Checks where something is: one of a few ways to say it. Answers which are used.
fn places(holder: &Node<'_>, empty: &str, errors: &mut Errors) -> Vec<&'static str> {
    let mut used = Vec::new();
    let (node, chosen) = (holder.child("nodeName"), holder.child("nodeSelector"));
    if node.is_set() && node.is_empty() {
        node.invalid_text(errors, empty);
    } else if node.is_set() {
        used.push("`nodeName`");
        node.syntax(errors, names::dns_subdomain);
    }
    if chosen.is_set() {
        used.push("`nodeSelector`");
        affinity::node_selector(&chosen, errors);
    }
    for (field, shown) in [("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")]
    {
        match holder.child(field).value.as_bool() {
            Some(true) => used.push(shown),
            Some(false) => holder.child(field).invalid(errors, "must be either unset or set to true"),
            None => {}
        }
    }
    used
}

fn slice_body(slice: &Value, errors: &mut Errors) {
    const MOST_DEVICES: usize = 128;
    const MOST_SHARED: usize = 32;
    const MOST_DEVICE_COUNTERS: usize = 1_024;
    const ONE: &str =
        "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    let spec = Node::of(slice, "spec");
    let used = places(&spec, "must be either unset or set to a non-empty string", errors);
    let terms = spec.child("nodeSelector").child("nodeSelectorTerms");
    if spec.child("nodeSelector").is_set() && terms.len() != 1 {
        let why = "must have exactly one node selector term";
        say::structure(&terms.path, "[]core.NodeSelectorTerm", errors, why);
    }
    match used.len() {
        0 => spec.required(errors, ONE),
        1 => {}
        _ => {
            let shown = quoted(&format!("{{{}}}", used.join(", ")));
            let why = format!("{ONE}, but multiple fields are set");
            errors.push(FieldError::invalid(&spec.path, &shown, &why));
        }
    }
    let (devices, shared) = (spec.child("devices"), spec.child("sharedCounters"));
    let mut sets = BTreeMap::new();
    for set in shared.value.items() {
        // The first of a name counts.
        sets.entry(set.str("name")).or_insert(set);
    }
    for device in devices.items() {
        validate_device(&device, &spec, &sets, errors);
    }
    at_most(&devices, MOST_DEVICES, errors);
    unique(&devices, "name", errors);
    let count = |list: &Node<'_>| list.items().map(|set| set.child("counters").len()).sum::<usize>();
    let in_devices: usize =
        devices.items().map(|device| count(&basic(&device).child("consumesCounters"))).sum();
    if in_devices > MOST_DEVICE_COUNTERS {
        let why = format!("the total number of counters in devices must not exceed {MOST_DEVICE_COUNTERS}");
        errors.push(FieldError::invalid(&devices.path, &in_devices.to_string(), &why));
    }
    if count(&shared) > MOST_SHARED {
        let why = format!("the total number of shared counters must not exceed {MOST_SHARED}");
        errors.push(FieldError::invalid(&shared.path, &count(&shared).to_string(), &why));
    }
    for set in shared.items() {
        set.child("name").need_syntax(errors, names::dns_label);
        counters(&set.child("counters"), errors);
    }
    unique(&shared, "name", errors);
}

fn counters(map: &Node<'_>, errors: &mut Errors) {
    map.need(errors);
    for (name, entry) in map.entries() {
        meta::texts(errors, &entry.path, name, names::dns_label(name));
    }
}

/// What a device says, one level deeper in an older version.
fn basic<'a>(device: &Node<'a>) -> Node<'a> {
    match device.child("basic").value {
        Value::Null => device.clone(),
        value => Node { value, path: device.path.clone() },
    }
}

fn validate_device(device: &Node<'_>, spec: &Node<'_>, shared: &BTreeMap<&str, &Value>, errors: &mut Errors) {
    const MOST_ATTRIBUTES: usize = 32;
    const MOST_TAINTS: usize = 4;
    const MOST_COUNTERS: usize = 32;
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when \
                       `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    device.child("name").syntax(errors, names::dns_label);
    let device = basic(device);
    let (attributes, capacity) = (device.child("attributes"), device.child("capacity"));
    let total = attributes.len() + capacity.len();
    if total > MOST_ATTRIBUTES {
        let why = format!("the total number of attributes and capacities must not exceed {MOST_ATTRIBUTES}");
        errors.push(FieldError::invalid(&device.path, &total.to_string(), &why));
    }
    for (name, attribute) in attributes.entries() {
        qualified_name(name, &attribute.path, errors);
        validate_attribute(&attribute, errors);
    }
    for (name, entry) in capacity.entries() {
        qualified_name(name, &entry.path, errors);
    }
    for taint in device.child("taints").items() {
        validate_taint(&taint, errors);
    }
    at_most(&device.child("taints"), MOST_TAINTS, errors);
    let consumed = device.child("consumesCounters");
    for set in consumed.items() {
        set.child("counterSet").need(errors);
        counters(&set.child("counters"), errors);
    }
    unique(&consumed, "counterSet", errors);
    let used: usize = consumed.items().map(|set| set.child("counters").len()).sum();
    if used > MOST_COUNTERS {
        let why = format!("the total number of counters must not exceed {MOST_COUNTERS}");
        errors.push(FieldError::invalid(&device.path, &used.to_string(), &why));
    }
    for set in consumed.items() {
        consumes(&set, shared, errors);
    }
    if spec.child("perDeviceNodeSelection").is_true() {
        let used = places(&device, "must not be empty", errors);
        match used.len() {
            0 => device.required(errors, ONE),
            1 => {}
            _ => {
                let shown = quoted(&format!("{{{}}}", used.join(", ")));
                errors.push(FieldError::invalid(&device.path, &shown, ONE));
            }
        }
    } else if ["nodeName", "nodeSelector", "allNodes"].iter().any(|field| device.child(field).is_set()) {
        let why = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to \
                   true in the ResourceSlice spec";
        errors.push(FieldError::invalid(&device.path, "\"null\"", why));
    }
}

fn consumes(set: &Node<'_>, shared: &BTreeMap<&str, &Value>, errors: &mut Errors) {
    let name = set.child("counterSet");
    let Some(known) = shared.get(name.text()) else {
        name.invalid_text(errors, "must reference a counterSet defined in the ResourceSlice sharedCounters");
        return;
    };
    for (counter, _) in set.child("counters").entries() {
        if known.at(&["counters", counter]).is_none() {
            let why = "must reference a counter defined in the ResourceSlice sharedCounters";
            errors.push(FieldError::invalid(&set.child("counters").path, &quoted(counter), why));
        }
    }
}

fn validate_attribute(attribute: &Node<'_>, errors: &mut Errors) {
    const LONGEST: usize = 64;
    let fields = ["bool", "int", "string", "version"];
    for field in ["string", "version"] {
        let value = attribute.child(field);
        if field == "version" && value.is_set() && super::small::version(value.text()).is_none() {
            value.invalid_text(errors, "must be a string compatible with semver.org spec 2.0.0");
        }
        if value.text().len() > LONGEST {
            errors.push(FieldError::too_long(&value.path, LONGEST));
        }
    }
    match fields.iter().filter(|field| attribute.child(field).is_set()).count() {
        0 => attribute.required(errors, "exactly one value must be specified"),
        1 => {}
        _ => say::structure(
            &attribute.path,
            "resource.DeviceAttribute",
            errors,
            "exactly one value must be specified",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{each_change_refused, each_refused, object};
    use super::*;

    #[test]
    fn each_rule_of_a_claim_refuses() {
        let base = object(
            r#"{"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"c","allocationMode":"ExactCount","count":1,
                "selectors":[{"cel":{"expression":"true"}}],"tolerations":[{"operator":"Exists"}]}},
                {"name":"f","firstAvailable":[{"name":"s","deviceClassName":"c","allocationMode":"All"}]}],
                "constraints":[{"requests":["r","f/s"],"matchAttribute":"a.b/c"}],
                "config":[{"requests":["r"],"opaque":{"driver":"a.b","parameters":{"x":1}}}]}}}"#,
        );
        let request = |rest: &str| format!("spec.devices.requests.0.exactly.{rest}");
        let table: Vec<(String, &str, &str)> = vec![
            (request("deviceClassName"), "null", "requests[0].exactly.deviceClassName: Required value"),
            (request("allocationMode"), r#""X""#, "supported values: \"All\", \"ExactCount\""),
            (request("allocationMode"), r#""All""#, "must not be specified when allocationMode is 'All'"),
            (request("count"), "0", "count: Invalid value: 0: must be greater than zero"),
            (request("selectors"), "[{}]", "selectors[0].cel: Required value"),
            (request("tolerations"), r#"[{"operator":"X"}]"#, "supported values: \"Equal\", \"Exists\""),
            (
                request("tolerations"),
                r#"[{"operator":"Exists","value":"v"}]"#,
                "must be empty for operator `Exists`",
            ),
            (
                "spec.devices.constraints.0.requests".into(),
                r#"["x"]"#,
                "constraints[0].requests[0]: Invalid value: \"x\": must be the name of a request",
            ),
            (
                "spec.devices.constraints.0.requests".into(),
                r#"["r","r"]"#,
                "requests[1]: Duplicate value: \"r\"",
            ),
            ("spec.devices.constraints.0.matchAttribute".into(), r#""c""#, "must include a domain"),
            ("spec.devices.constraints.0.matchAttribute".into(), "null", "matchAttribute: Required value"),
            ("spec.devices.config.0.opaque".into(), "null", "config[0].opaque: Required value"),
            (
                "spec.devices.config.0.opaque.parameters".into(),
                "[1]",
                "parameters must be a valid JSON object",
            ),
        ];
        for (path, json, wanted) in &table {
            each_refused(&base, validate_claim, &[(path.as_str(), json, wanted)]);
        }
        each_change_refused(
            &base,
            validate_claim_update,
            &[(
                "spec.devices.requests.0.exactly.count",
                "2",
                "spec: Invalid value: resource.ResourceClaimSpec{}: field is immutable",
            )],
        );
        let flat = object(
            r#"{"spec":{"devices":{"requests":[{"name":"r","deviceClassName":"c","allocationMode":"All"}]}}}"#,
        );
        each_refused(
            &flat,
            validate_claim,
            &[(
                "spec.devices.requests.0.deviceClassName",
                r#""A""#,
                "spec.devices.requests[0].exactly.deviceClassName: Invalid value: \"A\"",
            )],
        );
        each_change_refused(
            &flat,
            validate_claim_status,
            &[
                (
                    "status.reservedFor",
                    r#"[{"resource":"pods","name":"p","uid":"u"}]"#,
                    "may not be specified when `allocated` is not set",
                ),
                (
                    "status.devices",
                    r#"[{"driver":"d","pool":"p","device":"x"}]"#,
                    "status.devices[0]: Invalid value: d/p/x: must be an allocated device in the claim",
                ),
                (
                    "status.allocation",
                    r#"{"devices":{"results":[{"request":"q","driver":"d","pool":"p","device":"x"}]}}"#,
                    "results[0].request: Invalid value: \"q\": must be the name of a request",
                ),
            ],
        );
    }

    #[test]
    fn each_rule_of_a_slice_refuses() {
        let base = object(
            r#"{"spec":{"driver":"a.b","pool":{"name":"p","resourceSliceCount":1},"nodeName":"n","sharedCounters":[{"name":"s","counters":{"c":{"value":"1"}}}],
                "devices":[{"name":"d","attributes":{"x":{"int":1}},"capacity":{"m":{"value":"1"}},
                "consumesCounters":[{"counterSet":"s","counters":{"c":{"value":"1"}}}]}]}}"#,
        );
        each_refused(
            &base,
            validate_slice,
            &[
                ("spec.driver", r#""a_b""#, "spec.driver: Invalid value: \"a_b\""),
                ("spec.pool.resourceSliceCount", "0", "must be greater than zero"),
                ("spec.nodeName", "null", "spec: Required value: exactly one of `nodeName`"),
                (
                    "spec.allNodes",
                    "true",
                    "spec: Invalid value: \"{`nodeName`, `allNodes`}\": exactly one of",
                ),
                ("spec.allNodes", "false", "must be either unset or set to true"),
                (
                    "spec.devices.0.attributes.x",
                    "{}",
                    "attributes[x]: Required value: exactly one value must be specified",
                ),
                (
                    "spec.devices.0.attributes.x",
                    r#"{"version":"1"}"#,
                    "must be a string compatible with semver.org spec 2.0.0",
                ),
                (
                    "spec.devices.0.attributes.1x",
                    r#"{"int":1}"#,
                    "attributes[1x]: Invalid value: \"1x\": a valid C identifier",
                ),
                ("spec.devices.0.taints", r#"[{"key":"k"}]"#, "taints[0].effect: Required value"),
                (
                    "spec.devices.0.consumesCounters.0.counterSet",
                    r#""z""#,
                    "must reference a counterSet defined in the ResourceSlice sharedCounters",
                ),
                (
                    "spec.devices.0.consumesCounters.0.counters",
                    r#"{"z":{"value":"1"}}"#,
                    "must reference a counter defined in the ResourceSlice sharedCounters",
                ),
                (
                    "spec.devices.0.nodeName",
                    r#""n""#,
                    "can only be set if `perDeviceNodeSelection` is set to true",
                ),
            ],
        );
        each_change_refused(
            &base,
            validate_slice_update,
            &[("spec.nodeName", r#""m""#, "spec.nodeName: Invalid value: \"m\": field is immutable")],
        );
        each_refused(
            &object(
                r#"{"spec":{"taint":{"key":"k","effect":"NoExecute"},"deviceSelector":{"driver":"a.b"}}}"#,
            ),
            validate_taint_rule,
            &[
                ("spec.taint.effect", r#""X""#, "supported values: \"NoExecute\", \"NoSchedule\""),
                ("spec.deviceSelector.pool", r#""A""#, "spec.deviceSelector.pool: Invalid value: \"A\""),
            ],
        );
        each_refused(
            &object(r#"{"spec":{"selectors":[{"cel":{"expression":"x"}}]}}"#),
            validate_class,
            &[("spec.config", "[{}]", "spec.config[0].opaque: Required value")],
        );
        each_refused(
            &object(r#"{"spec":{"metadata":{"labels":{"a":"b"}},"spec":{}}}"#),
            validate_template,
            &[("spec.metadata.labels.a", r#""-""#, "spec.metadata.labels: Invalid value: \"-\"")],
        );
    }
}
