//! DenyServiceExternalIPs: a service with an arbitrary external IP could take the traffic of others.

use std::collections::BTreeSet;

use pilothouse_apimachinery::value::Value;

use super::{Operation, Outcome, Plugin, Write, done};

/// Refuses services with new external IPs.
pub struct DenyServiceExternalIps;

impl Plugin for DenyServiceExternalIps {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete && write.is_of("", "services")
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, service: &'a Value) -> Outcome<'a> {
        if adds_addresses(service, write.old) {
            return done(Err(write.forbidden(service, "Use of external IPs is denied by admission control")));
        }
        done(Ok(()))
    }
}

fn addresses(service: &Value) -> BTreeSet<&str> {
    let list = service.get_path(&["spec", "externalIPs"]).map(Value::items).unwrap_or_default();
    list.iter().filter_map(Value::as_str).collect()
}

fn adds_addresses(new: &Value, old: Option<&Value>) -> bool {
    !addresses(new).is_subset(&old.map(addresses).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_external_ips_may_be_removed_but_not_added() {
        let service = |addresses: &[&str]| {
            let mut service = Value::object();
            service.entry("spec").set("externalIPs", addresses.to_vec());
            service
        };
        assert!(
            adds_addresses(&service(&["a"]), None)
                && adds_addresses(&service(&["a", "b"]), Some(&service(&["a"])))
        );
        assert!(
            !adds_addresses(&service(&["a"]), Some(&service(&["b", "a"])))
                && !adds_addresses(&Value::object(), None)
        );
    }
}
