//! Resolves the address of a service: its cluster IP, or one of its endpoints.

use pilothouse_actors::permit::Permit;
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::status::GroupResource;
use pilothouse_apimachinery::stored_type::StoredType;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::object::Key;

use crate::pki::random;

use super::super::Backend;

type AddressResult = Result<(String, u16), String>;

/// A port of a service.
#[derive(Clone, Copy)]
pub struct ServicePort<'a> {
    /// The namespace of the service.
    pub namespace: &'a str,
    /// The name of the service.
    pub name: &'a str,
    /// The number of the port.
    pub port: u16,
}

/// The address of this port of a service. Errors are in the reference's words.
pub async fn resolve(
    backend: &Backend,
    permit: &Permit,
    to_endpoints: bool,
    ServicePort { namespace, name, port }: ServicePort<'_>,
) -> AddressResult {
    let key = Key::namespaced(namespace, name);
    let service = get(backend, permit, &SERVICES, key.clone()).await?;
    if !to_endpoints {
        return cluster_address(&service, name, port);
    }
    let port_name = routed_port_name(&service, name, port)?;
    let endpoints = get(backend, permit, &ENDPOINTS, key).await?;
    endpoint_address(&endpoints, name, &port_name, &mut random::below)
}

const SERVICES: StoredType = StoredType::v1("", "services", "Service");
const ENDPOINTS: StoredType = StoredType::v1("", "endpoints", "Endpoints");

async fn get(
    backend: &Backend,
    permit: &Permit,
    stored_type: &StoredType,
    key: Key,
) -> Result<Value, String> {
    // The reference's listers use the singular.
    let singular = stored_type.resource.trim_end_matches('s');
    let reported = GroupResource { group: stored_type.group, resource: singular };
    let value = backend.read_stored(stored_type, key, permit, reported).await;
    value.map_err(|status| status.message.clone())
}

fn ports(service: &Value) -> &[Value] {
    service.get_path(&["spec", "ports"]).map(Value::items).unwrap_or_default()
}

fn port_number(port: &Value) -> Option<u16> {
    port.get("port").and_then(Value::as_int).and_then(|port| u16::try_from(port).ok())
}

fn find_port<'a>(service: &'a Value, name: &str, port: u16) -> Result<&'a Value, String> {
    let entry = ports(service).iter().find(|entry| port_number(entry) == Some(port));
    entry.ok_or_else(|| format!("no service port {port} found for service {}", quoted(name)))
}

fn service_type(service: &Value) -> &str {
    service.get("spec").map_or("", |spec| spec.str("type"))
}

fn cluster_address(service: &Value, name: &str, port: u16) -> AddressResult {
    let spec = service.get("spec").unwrap_or(&Value::Null);
    match service_type(service) {
        "ClusterIP" if spec.str("clusterIP") == "None" => {
            Err("cannot route to service with ClusterIP \"None\"".to_owned())
        }
        "ClusterIP" | "LoadBalancer" | "NodePort" => {
            find_port(service, name, port)?;
            Ok((spec.str("clusterIP").to_owned(), port))
        }
        "ExternalName" => Ok((spec.str("externalName").to_owned(), port)),
        other => Err(format!("unsupported service type {}", quoted(other))),
    }
}

/// The name of the port, if the service has endpoints.
fn routed_port_name(service: &Value, name: &str, port: u16) -> Result<String, String> {
    match service_type(service) {
        "ClusterIP" | "LoadBalancer" | "NodePort" => {
            Ok(find_port(service, name, port)?.str("name").to_owned())
        }
        other => Err(format!("unsupported service type {}", quoted(other))),
    }
}

/// One of the addresses, chosen by `random`, which returns numbers below its argument.
fn endpoint_address(
    endpoints: &Value,
    name: &str,
    port_name: &str,
    random: &mut dyn FnMut(usize) -> usize,
) -> AddressResult {
    let list = |value: &Value, field: &str| value.get(field).map(Value::items).unwrap_or_default().to_vec();
    let subsets = list(endpoints, "subsets");
    let first = if subsets.is_empty() { 0 } else { random(subsets.len()) };
    for subset in subsets.iter().cycle().skip(first).take(subsets.len()) {
        let (addresses, ports) = (list(subset, "addresses"), list(subset, "ports"));
        let port = ports.iter().find(|port| port.str("name") == port_name).and_then(port_number);
        let (Some(port), false) = (port, addresses.is_empty()) else { continue };
        if let Some(address) = addresses.get(random(addresses.len())) {
            return Ok((address.str("ip").to_owned(), port));
        }
    }
    Err(format!("no endpoints available for service {}", quoted(name)))
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;

    fn value(text: &str) -> Value {
        json::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn service_address_by_service_type() {
        let spec = r#""clusterIP":"10.0.0.1","ports":[{"name":"a","port":443}]"#;
        let resolve =
            |spec: &str, port| cluster_address(&value(&format!(r#"{{"spec":{{{spec}}}}}"#)), "s", port);
        let address = |host: &str, port| Ok((host.to_owned(), port));
        assert_eq!(resolve(&format!(r#""type":"ClusterIP",{spec}"#), 443), address("10.0.0.1", 443));
        assert_eq!(
            resolve(&format!(r#""type":"NodePort",{spec}"#), 80),
            Err("no service port 80 found for service \"s\"".to_owned())
        );
        assert_eq!(
            resolve(r#""type":"ClusterIP","clusterIP":"None""#, 443),
            Err("cannot route to service with ClusterIP \"None\"".to_owned())
        );
        assert_eq!(resolve(r#""type":"ExternalName","externalName":"e.x""#, 7), address("e.x", 7));
        let external = value(r#"{"spec":{"type":"ExternalName"}}"#);
        assert_eq!(
            routed_port_name(&external, "s", 1),
            Err("unsupported service type \"ExternalName\"".to_owned())
        );
    }

    #[test]
    fn endpoint_address_picks_subset_with_port() {
        let endpoints = value(
            r#"{"subsets":[{"ports":[{"name":"a","port":1}]},{"addresses":[{"ip":"1.1.1.1"}],"ports":[{"name":"b","port":2}]},
                {"addresses":[{"ip":"2.2.2.2"},{"ip":"3.3.3.3"}],"ports":[{"name":"a","port":3}]}]}"#,
        );
        for seed in 0..3 {
            let address = endpoint_address(&endpoints, "s", "a", &mut |bound| seed.min(bound - 1));
            assert_eq!(address.unwrap().1, 3, "{seed}");
        }
        let none = Err("no endpoints available for service \"s\"".to_owned());
        assert_eq!(endpoint_address(&endpoints, "s", "c", &mut |_| 0), none);
        assert_eq!(endpoint_address(&Value::Null, "s", "a", &mut |_| 0), none);
    }
}
