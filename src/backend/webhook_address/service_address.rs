//! Resolves the address of a service: its cluster IP, or one of its endpoints.

use pilothouse_actors::permit::Permit;
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, TypeName};

use crate::random;

use super::super::Backend;

type Found = Result<(String, u16), String>;

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
pub async fn service(
    backend: &Backend,
    permit: &Permit,
    to_endpoints: bool,
    ServicePort { namespace, name, port }: ServicePort<'_>,
) -> Found {
    let key = Key::namespaced(namespace, name);
    let service = get(backend, permit, ("services", "Service"), key.clone()).await?;
    if !to_endpoints {
        return of_cluster(&service, name, port);
    }
    let port_name = routed(&service, name, port)?;
    let endpoints = get(backend, permit, ("endpoints", "Endpoints"), key).await?;
    of_endpoints(&endpoints, name, &port_name, &mut random::below)
}

async fn get(
    backend: &Backend,
    permit: &Permit,
    (resource, kind): (&str, &str),
    key: Key,
) -> Result<Value, String> {
    let name = key.name().to_owned();
    let found = backend.stores.get(&TypeName::new(resource), key, permit).await;
    let object = found.map_err(|error| match error {
        // The reference's listers use the singular.
        StoreError::NotFound => format!("{} {} not found", resource.trim_end_matches('s'), quoted(&name)),
        error => error.to_string(),
    })?;
    let read = backend.objects.load_kind(&GroupVersion::new("", "v1"), kind, &object);
    read.map_err(|status| status.message.clone())
}

fn ports(service: &Value) -> &[Value] {
    service.at(&["spec", "ports"]).map(Value::items).unwrap_or_default()
}

fn number(port: &Value) -> Option<u16> {
    port.get("port").and_then(Value::as_int).and_then(|port| u16::try_from(port).ok())
}

fn port_of<'a>(service: &'a Value, name: &str, port: u16) -> Result<&'a Value, String> {
    let found = ports(service).iter().find(|known| number(known) == Some(port));
    found.ok_or_else(|| format!("no service port {port} found for service {}", quoted(name)))
}

fn sort(service: &Value) -> &str {
    service.get("spec").map_or("", |spec| spec.str("type"))
}

fn of_cluster(service: &Value, name: &str, port: u16) -> Found {
    let spec = service.get("spec").unwrap_or(&Value::Null);
    match sort(service) {
        "ClusterIP" if spec.str("clusterIP") == "None" => {
            Err("cannot route to service with ClusterIP \"None\"".to_owned())
        }
        "ClusterIP" | "LoadBalancer" | "NodePort" => {
            port_of(service, name, port)?;
            Ok((spec.str("clusterIP").to_owned(), port))
        }
        "ExternalName" => Ok((spec.str("externalName").to_owned(), port)),
        other => Err(format!("unsupported service type {}", quoted(other))),
    }
}

/// The name of the port, if the service has endpoints.
fn routed(service: &Value, name: &str, port: u16) -> Result<String, String> {
    match sort(service) {
        "ClusterIP" | "LoadBalancer" | "NodePort" => Ok(port_of(service, name, port)?.str("name").to_owned()),
        other => Err(format!("unsupported service type {}", quoted(other))),
    }
}

/// One of the addresses, chosen by `random`, which returns numbers below its argument.
fn of_endpoints(
    endpoints: &Value,
    name: &str,
    port_name: &str,
    random: &mut dyn FnMut(usize) -> usize,
) -> Found {
    let list = |value: &Value, field: &str| value.get(field).map(Value::items).unwrap_or_default().to_vec();
    let subsets = list(endpoints, "subsets");
    let first = if subsets.is_empty() { 0 } else { random(subsets.len()) };
    for subset in subsets.iter().cycle().skip(first).take(subsets.len()) {
        let (addresses, ports) = (list(subset, "addresses"), list(subset, "ports"));
        let port = ports.iter().find(|port| port.str("name") == port_name).and_then(number);
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
    fn services_are_reached_as_the_reference_reaches_them() {
        let spec = r#""clusterIP":"10.0.0.1","ports":[{"name":"a","port":443}]"#;
        let of = |spec: &str, port| of_cluster(&value(&format!(r#"{{"spec":{{{spec}}}}}"#)), "s", port);
        let at = |host: &str, port| Ok((host.to_owned(), port));
        assert_eq!(of(&format!(r#""type":"ClusterIP",{spec}"#), 443), at("10.0.0.1", 443));
        assert_eq!(
            of(&format!(r#""type":"NodePort",{spec}"#), 80),
            Err("no service port 80 found for service \"s\"".to_owned())
        );
        assert_eq!(
            of(r#""type":"ClusterIP","clusterIP":"None""#, 443),
            Err("cannot route to service with ClusterIP \"None\"".to_owned())
        );
        assert_eq!(of(r#""type":"ExternalName","externalName":"e.x""#, 7), at("e.x", 7));
        let external = value(r#"{"spec":{"type":"ExternalName"}}"#);
        assert_eq!(routed(&external, "s", 1), Err("unsupported service type \"ExternalName\"".to_owned()));
    }

    #[test]
    fn endpoints_with_the_port_are_found() {
        let endpoints = value(
            r#"{"subsets":[{"ports":[{"name":"a","port":1}]},{"addresses":[{"ip":"1.1.1.1"}],"ports":[{"name":"b","port":2}]},
                {"addresses":[{"ip":"2.2.2.2"},{"ip":"3.3.3.3"}],"ports":[{"name":"a","port":3}]}]}"#,
        );
        for seed in 0..3 {
            let found = of_endpoints(&endpoints, "s", "a", &mut |most| seed.min(most - 1));
            assert_eq!(found.unwrap().1, 3, "{seed}");
        }
        let none = Err("no endpoints available for service \"s\"".to_owned());
        assert_eq!(of_endpoints(&endpoints, "s", "c", &mut |_| 0), none);
        assert_eq!(of_endpoints(&Value::Null, "s", "a", &mut |_| 0), none);
    }
}
