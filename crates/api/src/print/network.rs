//! Rows of services, endpoints and ingresses.

use std::collections::BTreeSet;

use pilothouse_apimachinery::value::Value;

use super::Printer;
use super::cells::{
    NONE, PrintedObject, UNSET, cells, first_few, first_few_of_count, int, items, joined, text_or, texts,
};
use super::labels::{labels, selector};
use crate::age::UNKNOWN;

/// The number of endpoints, ports or hosts that a cell lists.
const MAX_SHOWN: usize = 3;

/// The printer of a kind of group `networking.k8s.io`.
pub fn printer(kind: &str) -> Option<Printer> {
    Some(match kind {
        "Ingress" => ingress,
        "IngressClass" => ingress_class,
        "IPAddress" => ip_address,
        "NetworkPolicy" => network_policy,
        "ServiceCIDR" => service_cidr,
        _ => return None,
    })
}

/// Cells of a service.
pub fn service(object: &PrintedObject<'_>) -> Vec<Value> {
    let ports: Vec<String> = object.items("spec.ports").iter().map(port).collect();
    cells![
        object.name(),
        object.text("spec.type"),
        object.items("spec.clusterIPs").first().and_then(Value::as_str).unwrap_or(NONE),
        external_address(object),
        text_or(&ports.join(","), NONE),
        object.age(),
        labels(object.field("spec.selector"))
    ]
}

fn port(port: &Value) -> String {
    let (number, protocol) = (int(port, "port"), port.str("protocol"));
    match int(port, "nodePort") {
        node_port if node_port > 0 => format!("{number}:{node_port}/{protocol}"),
        _ => format!("{number}/{protocol}"),
    }
}

fn external_address(object: &PrintedObject<'_>) -> String {
    let external_ips = object.items("spec.externalIPs");
    match object.text("spec.type") {
        "ClusterIP" | "NodePort" => text_or(&joined(external_ips), NONE).to_owned(),
        "LoadBalancer" => {
            let balancers = balancers(object);
            let addresses: Vec<&str> = Some(balancers.as_str())
                .filter(|addresses| !addresses.is_empty())
                .into_iter()
                .chain(texts(external_ips))
                .collect();
            text_or(&addresses.join(","), "<pending>").to_owned()
        }
        "ExternalName" => object.text("spec.externalName").to_owned(),
        _ => UNKNOWN.to_owned(),
    }
}

/// The addresses or names of the load balancers, sorted.
fn balancers(object: &PrintedObject<'_>) -> String {
    let ingress = object.items("status.loadBalancer.ingress").iter();
    let addresses: BTreeSet<&str> = ingress
        .map(|entry| text_or(entry.str("ip"), entry.str("hostname")))
        .filter(|address| !address.is_empty())
        .collect();
    addresses.into_iter().collect::<Vec<_>>().join(",")
}

/// Cells of endpoints.
pub fn endpoints(object: &PrintedObject<'_>) -> Vec<Value> {
    let subsets = object.items("subsets");
    // Endpoints are all pairs of address and port: only those that are listed are built, the rest is counted.
    let (mut listed, mut count) = (Vec::new(), 0);
    for subset in subsets {
        let (addresses, ports) = (items(subset, "addresses"), items(subset, "ports"));
        count += addresses.len().saturating_mul(ports.len().max(1));
        let addresses = addresses.iter().map(|address| address.str("ip"));
        if ports.is_empty() {
            listed.extend(addresses.clone().take(MAX_SHOWN).map(str::to_owned));
        }
        for port in ports.iter().take(MAX_SHOWN) {
            let number = int(port, "port");
            listed.extend(addresses.clone().take(MAX_SHOWN).map(|ip| {
                if ip.contains(':') { format!("[{ip}]:{number}") } else { format!("{ip}:{number}") }
            }));
        }
        listed.truncate(MAX_SHOWN);
    }
    let listed =
        if subsets.is_empty() { NONE.to_owned() } else { first_few_of_count(&listed, MAX_SHOWN, count) };
    cells![object.name(), listed, object.age()]
}

/// Cells of an endpoint slice.
pub fn endpoint_slice(object: &PrintedObject<'_>) -> Vec<Value> {
    let ports: Vec<String> = object
        .items("ports")
        .iter()
        .map(|port| match port.get("port").and_then(Value::as_int) {
            Some(number) => number.to_string(),
            None => port.get("name").and_then(Value::as_str).unwrap_or("*").to_owned(),
        })
        .collect();
    let addresses: Vec<String> = object
        .items("endpoints")
        .iter()
        .flat_map(|endpoint| texts(items(endpoint, "addresses")))
        .map(str::to_owned)
        .collect();
    cells![
        object.name(),
        object.text("addressType"),
        text_or(&first_few(&ports, MAX_SHOWN), UNSET),
        text_or(&first_few(&addresses, MAX_SHOWN), UNSET),
        object.age()
    ]
}

fn ingress(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![
        object.name(),
        object.field("spec.ingressClassName").and_then(Value::as_str).unwrap_or(NONE),
        hosts(object.items("spec.rules")),
        balancers(object),
        if object.items("spec.tls").is_empty() { "80" } else { "80, 443" },
        object.age()
    ]
}

/// The first hosts of an ingress. Rules after those count as more hosts even if they name none.
fn hosts(rules: &[Value]) -> String {
    let hosts = rules.iter().enumerate().filter(|(_, rule)| !rule.str("host").is_empty());
    let listed: Vec<(usize, &str)> =
        hosts.map(|(position, rule)| (position, rule.str("host"))).take(MAX_SHOWN).collect();
    let names: Vec<&str> = listed.iter().map(|(_, host)| *host).collect();
    match listed.last() {
        None => "*".to_owned(),
        Some((last, _)) if listed.len() == MAX_SHOWN && last + 1 < rules.len() => {
            format!("{} + {} more...", names.join(","), rules.len() - MAX_SHOWN)
        }
        Some(_) => names.join(","),
    }
}

fn ingress_class(object: &PrintedObject<'_>) -> Vec<Value> {
    let parameters = object.field("spec.parameters").map_or_else(
        || NONE.to_owned(),
        |parameters| {
            let group = match parameters.get("apiGroup").and_then(Value::as_str) {
                Some(group) => format!(".{group}"),
                None => String::new(),
            };
            format!("{}{group}/{}", parameters.str("kind"), parameters.str("name"))
        },
    );
    cells![object.name(), object.text("spec.controller"), parameters, object.age()]
}

fn network_policy(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![object.name(), selector(object.field("spec.podSelector")), object.age()]
}

fn service_cidr(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![object.name(), joined(object.items("spec.cidrs")), object.age()]
}

fn ip_address(object: &PrintedObject<'_>) -> Vec<Value> {
    let parent = object.field("spec.parentRef").map_or_else(
        || NONE.to_owned(),
        |parent| {
            let mut reference = parent.str("resource").to_lowercase();
            if !parent.str("group").is_empty() {
                reference = format!("{reference}.{}", parent.str("group").to_lowercase());
            }
            if !parent.str("namespace").is_empty() {
                reference = format!("{reference}/{}", parent.str("namespace"));
            }
            format!("{reference}/{}", parent.str("name"))
        },
    );
    cells![object.name(), parent, object.age()]
}

#[cfg(test)]
mod tests {
    use crate::print::testing::assert_cells;

    #[test]
    fn service_cells_show_addresses_and_ports() {
        let object = |spec: &str, status: &str| {
            format!(
                r#"{{"metadata":{{"name":"s"}},"spec":{{"clusterIPs":["10.96.0.1"],
                    "ports":[{{"port":80,"protocol":"TCP"}},{{"port":53,"nodePort":30053,"protocol":"UDP"}}],
                    "selector":{{"a":"b"}},{spec}}},"status":{{"loadBalancer":{{{status}}}}}}}"#
            )
        };
        let balancers =
            r#""ingress":[{"hostname":"lb.example.com"},{"ip":"2.2.2.2","hostname":"x"},{"ip":"1.1.1.1"}]"#;
        for (spec, status, kind, address) in [
            (r#""type":"ClusterIP""#, "", "ClusterIP", "<none>"),
            (r#""type":"ClusterIP","externalIPs":["1.2.3.4","5.6.7.8"]"#, "", "ClusterIP", "1.2.3.4,5.6.7.8"),
            (r#""type":"NodePort""#, "", "NodePort", "<none>"),
            (r#""type":"LoadBalancer""#, "", "LoadBalancer", "<pending>"),
            (r#""type":"LoadBalancer""#, balancers, "LoadBalancer", "1.1.1.1,2.2.2.2,lb.example.com"),
            (
                r#""type":"LoadBalancer","externalIPs":["9.9.9.9"]"#,
                balancers,
                "LoadBalancer",
                "1.1.1.1,2.2.2.2,lb.example.com,9.9.9.9",
            ),
            (r#""type":"LoadBalancer","externalIPs":["9.9.9.9"]"#, "", "LoadBalancer", "9.9.9.9"),
            (r#""type":"ExternalName","externalName":"e.example.com""#, "", "ExternalName", "e.example.com"),
            (r#""type":"Odd""#, "", "Odd", "<unknown>"),
        ] {
            let row =
                format!(r#"["s","{kind}","10.96.0.1","{address}","80/TCP,53:30053/UDP","<unknown>","a=b"]"#);
            assert_cells("", "Service", &object(spec, status), &row);
        }
        assert_cells("", "Service", "{}", r#"["","","<none>","<unknown>","<none>","<unknown>","<none>"]"#);
    }

    #[test]
    fn endpoints_beyond_the_first_are_only_counted() {
        let many = |item: &str| vec![item; 50_000].join(",");
        let object = format!(
            r#"{{"metadata":{{"name":"e"}},"subsets":[{{"addresses":[{}],"ports":[{}]}}]}}"#,
            many(r#"{"ip":"1.1.1.1"}"#),
            many(r#"{"port":1}"#)
        );
        let cell = "1.1.1.1:1,1.1.1.1:1,1.1.1.1:1 + 2499999997 more...";
        assert_cells("", "Endpoints", &object, &format!(r#"["e","{cell}","<unknown>"]"#));
    }

    #[test]
    fn endpoints_cells_show_the_first_three() {
        let object = |subsets: &str| format!(r#"{{"metadata":{{"name":"e"}},"subsets":[{subsets}]}}"#);
        let two = r#"{"ip":"10.0.0.1"},{"ip":"fd00::1"}"#;
        for (subsets, cell) in [
            (String::new(), "<none>"),
            (format!(r#"{{"notReadyAddresses":[{two}]}}"#), ""),
            (format!(r#"{{"addresses":[{two}]}}"#), "10.0.0.1,fd00::1"),
            (format!(r#"{{"addresses":[{two}],"ports":[{{"port":80}}]}}"#), "10.0.0.1:80,[fd00::1]:80"),
            (
                format!(
                    r#"{{"addresses":[{two}],"ports":[{{"port":80}},{{"port":81}}]}},{{"addresses":[{{"ip":"10.0.0.9"}}]}}"#
                ),
                "10.0.0.1:80,[fd00::1]:80,10.0.0.1:81 + 2 more...",
            ),
        ] {
            assert_cells("", "Endpoints", &object(&subsets), &format!(r#"["e","{cell}","<unknown>"]"#));
        }
    }

    #[test]
    fn endpoint_slice_cells_show_ports_and_addresses() {
        let kind = ("discovery.k8s.io", "EndpointSlice");
        assert_cells(kind.0, kind.1, "{}", r#"["","","<unset>","<unset>","<unknown>"]"#);
        assert_cells(
            kind.0,
            kind.1,
            r#"{"metadata":{"name":"e"},"addressType":"IPv4","ports":[{"port":80},{"name":"web"},{},{"port":1}],
                "endpoints":[{"addresses":["1","2"]},{"addresses":["3","4","5"]}]}"#,
            r#"["e","IPv4","80,web,* + 1 more...","1,2,3 + 2 more...","<unknown>"]"#,
        );
    }

    #[test]
    fn ingress_cells_show_hosts_and_ports() {
        let object = |spec: &str| {
            format!(
                r#"{{"metadata":{{"name":"i"}},"spec":{{{spec}}},
                    "status":{{"loadBalancer":{{"ingress":[{{"ip":"1.1.1.1"}},{{"hostname":"very-long-name.example.com"}}]}}}}}}"#
            )
        };
        let address = "1.1.1.1,very-long-name.example.com";
        for (spec, class, hosts, ports) in [
            (r#""rules":[{}]"#, "<none>", "*", "80"),
            (r#""ingressClassName":"c","tls":[{}],"rules":[{"host":"a"},{}]"#, "c", "a", "80, 443"),
            (r#""rules":[{"host":"a"},{"host":"b"},{"host":"c"}]"#, "<none>", "a,b,c", "80"),
            (
                r#""rules":[{"host":"a"},{"host":"b"},{"host":"c"},{},{"host":"d"}]"#,
                "<none>",
                "a,b,c + 2 more...",
                "80",
            ),
        ] {
            let row = format!(r#"["i","{class}","{hosts}","{address}","{ports}","<unknown>"]"#);
            assert_cells("networking.k8s.io", "Ingress", &object(spec), &row);
        }
    }

    #[test]
    fn ingress_class_policy_cidr_and_address_cells() {
        let group = "networking.k8s.io";
        let object = |spec: &str| format!(r#"{{"metadata":{{"name":"x"}},"spec":{spec}}}"#);
        for (kind, spec, row) in [
            ("IngressClass", r#"{"controller":"c"}"#, r#"["x","c","<none>","<unknown>"]"#),
            (
                "IngressClass",
                r#"{"controller":"c","parameters":{"apiGroup":"g","kind":"K","name":"n"}}"#,
                r#"["x","c","K.g/n","<unknown>"]"#,
            ),
            ("IngressClass", r#"{"parameters":{"kind":"K","name":"n"}}"#, r#"["x","","K/n","<unknown>"]"#),
            ("NetworkPolicy", r#"{"podSelector":{"matchLabels":{"a":"b"}}}"#, r#"["x","a=b","<unknown>"]"#),
            ("NetworkPolicy", r#"{"podSelector":{}}"#, r#"["x","<none>","<unknown>"]"#),
            (
                "ServiceCIDR",
                r#"{"cidrs":["10.0.0.0/24","fd00::/112"]}"#,
                r#"["x","10.0.0.0/24,fd00::/112","<unknown>"]"#,
            ),
            ("IPAddress", "{}", r#"["x","<none>","<unknown>"]"#),
            (
                "IPAddress",
                r#"{"parentRef":{"resource":"services","namespace":"n","name":"s"}}"#,
                r#"["x","services/n/s","<unknown>"]"#,
            ),
            (
                "IPAddress",
                r#"{"parentRef":{"group":"Example.com","resource":"things","name":"s"}}"#,
                r#"["x","things.example.com/s","<unknown>"]"#,
            ),
        ] {
            assert_cells(group, kind, &object(spec), row);
        }
    }
}
