//! Rows of services, endpoints and ingresses.

use std::collections::BTreeSet;

use pilothouse_apimachinery::value::Value;

use super::Printer;
use super::cells::{
    NONE, PrintedObject, UNSET, cells, first_few, first_few_of, int, items, joined, or, texts,
};
use super::labels::{labels, selector};
use crate::age::UNKNOWN;

/// How many of the things that stand behind a name are shown.
const FEW: usize = 3;

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
pub fn service(it: &PrintedObject<'_>) -> Vec<Value> {
    let ports: Vec<String> = it.items("spec.ports").iter().map(port).collect();
    cells![
        it.name(),
        it.text("spec.type"),
        it.items("spec.clusterIPs").first().and_then(Value::as_str).unwrap_or(NONE),
        external_address(it),
        or(&ports.join(","), NONE),
        it.age(),
        labels(it.at("spec.selector"))
    ]
}

fn port(port: &Value) -> String {
    let (number, protocol) = (int(port, "port"), port.str("protocol"));
    match int(port, "nodePort") {
        node_port if node_port > 0 => format!("{number}:{node_port}/{protocol}"),
        _ => format!("{number}/{protocol}"),
    }
}

fn external_address(it: &PrintedObject<'_>) -> String {
    let given = it.items("spec.externalIPs");
    match it.text("spec.type") {
        "ClusterIP" | "NodePort" => or(&joined(given), NONE).to_owned(),
        "LoadBalancer" => {
            let balancers = balancers(it);
            let all: Vec<&str> = Some(balancers.as_str())
                .filter(|all| !all.is_empty())
                .into_iter()
                .chain(texts(given))
                .collect();
            or(&all.join(","), "<pending>").to_owned()
        }
        "ExternalName" => it.text("spec.externalName").to_owned(),
        _ => UNKNOWN.to_owned(),
    }
}

/// The addresses or names of the load balancers, sorted.
fn balancers(it: &PrintedObject<'_>) -> String {
    let points = it.items("status.loadBalancer.ingress").iter();
    let all: BTreeSet<&str> = points
        .map(|point| or(point.str("ip"), point.str("hostname")))
        .filter(|address| !address.is_empty())
        .collect();
    all.into_iter().collect::<Vec<_>>().join(",")
}

/// Cells of endpoints.
pub fn endpoints(it: &PrintedObject<'_>) -> Vec<Value> {
    let subsets = it.items("subsets");
    // Every address is reached on every port: only those that are shown are made, the rest is counted.
    let (mut shown, mut count) = (Vec::new(), 0);
    for subset in subsets {
        let (addresses, ports) = (items(subset, "addresses"), items(subset, "ports"));
        count += addresses.len().saturating_mul(ports.len().max(1));
        let addresses = addresses.iter().map(|address| address.str("ip"));
        if ports.is_empty() {
            shown.extend(addresses.clone().take(FEW).map(str::to_owned));
        }
        for port in ports.iter().take(FEW) {
            let number = int(port, "port");
            shown.extend(addresses.clone().take(FEW).map(|ip| {
                if ip.contains(':') { format!("[{ip}]:{number}") } else { format!("{ip}:{number}") }
            }));
        }
        shown.truncate(FEW);
    }
    let shown = if subsets.is_empty() { NONE.to_owned() } else { first_few_of(&shown, FEW, count) };
    cells![it.name(), shown, it.age()]
}

/// Cells of an endpoint slice.
pub fn endpoint_slice(it: &PrintedObject<'_>) -> Vec<Value> {
    let ports: Vec<String> = it
        .items("ports")
        .iter()
        .map(|port| match port.get("port").and_then(Value::as_int) {
            Some(number) => number.to_string(),
            None => port.get("name").and_then(Value::as_str).unwrap_or("*").to_owned(),
        })
        .collect();
    let addresses: Vec<String> = it
        .items("endpoints")
        .iter()
        .flat_map(|endpoint| texts(items(endpoint, "addresses")))
        .map(str::to_owned)
        .collect();
    cells![
        it.name(),
        it.text("addressType"),
        or(&first_few(&ports, FEW), UNSET),
        or(&first_few(&addresses, FEW), UNSET),
        it.age()
    ]
}

fn ingress(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![
        it.name(),
        it.at("spec.ingressClassName").and_then(Value::as_str).unwrap_or(NONE),
        hosts(it.items("spec.rules")),
        balancers(it),
        if it.items("spec.tls").is_empty() { "80" } else { "80, 443" },
        it.age()
    ]
}

/// The first hosts of an ingress. Rules after those count as more hosts even if they name none.
fn hosts(rules: &[Value]) -> String {
    let hosts = rules.iter().enumerate().filter(|(_, rule)| !rule.str("host").is_empty());
    let shown: Vec<(usize, &str)> =
        hosts.map(|(position, rule)| (position, rule.str("host"))).take(FEW).collect();
    let names: Vec<&str> = shown.iter().map(|(_, host)| *host).collect();
    match shown.last() {
        None => "*".to_owned(),
        Some((last, _)) if shown.len() == FEW && last + 1 < rules.len() => {
            format!("{} + {} more...", names.join(","), rules.len() - FEW)
        }
        Some(_) => names.join(","),
    }
}

fn ingress_class(it: &PrintedObject<'_>) -> Vec<Value> {
    let parameters = it.at("spec.parameters").map_or_else(
        || NONE.to_owned(),
        |parameters| {
            let group = match parameters.get("apiGroup").and_then(Value::as_str) {
                Some(group) => format!(".{group}"),
                None => String::new(),
            };
            format!("{}{group}/{}", parameters.str("kind"), parameters.str("name"))
        },
    );
    cells![it.name(), it.text("spec.controller"), parameters, it.age()]
}

fn network_policy(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![it.name(), selector(it.at("spec.podSelector")), it.age()]
}

fn service_cidr(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![it.name(), joined(it.items("spec.cidrs")), it.age()]
}

fn ip_address(it: &PrintedObject<'_>) -> Vec<Value> {
    let parent = it.at("spec.parentRef").map_or_else(
        || NONE.to_owned(),
        |parent| {
            let mut shown = parent.str("resource").to_lowercase();
            if !parent.str("group").is_empty() {
                shown = format!("{shown}.{}", parent.str("group").to_lowercase());
            }
            if !parent.str("namespace").is_empty() {
                shown = format!("{shown}/{}", parent.str("namespace"));
            }
            format!("{shown}/{}", parent.str("name"))
        },
    );
    cells![it.name(), parent, it.age()]
}

#[cfg(test)]
mod tests {
    use crate::print::testing::shows;

    #[test]
    fn services_tell_how_they_are_reached() {
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
            shows("", "Service", &object(spec, status), &row);
        }
        shows("", "Service", "{}", r#"["","","<none>","<unknown>","<none>","<unknown>","<none>"]"#);
    }

    #[test]
    fn endpoints_are_counted_without_being_made() {
        let many = |item: &str| vec![item; 50_000].join(",");
        let object = format!(
            r#"{{"metadata":{{"name":"e"}},"subsets":[{{"addresses":[{}],"ports":[{}]}}]}}"#,
            many(r#"{"ip":"1.1.1.1"}"#),
            many(r#"{"port":1}"#)
        );
        let cell = "1.1.1.1:1,1.1.1.1:1,1.1.1.1:1 + 2499999997 more...";
        shows("", "Endpoints", &object, &format!(r#"["e","{cell}","<unknown>"]"#));
    }

    #[test]
    fn endpoints_show_the_first_three() {
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
            shows("", "Endpoints", &object(&subsets), &format!(r#"["e","{cell}","<unknown>"]"#));
        }
    }

    #[test]
    fn slices_show_ports_and_addresses() {
        let kind = ("discovery.k8s.io", "EndpointSlice");
        shows(kind.0, kind.1, "{}", r#"["","","<unset>","<unset>","<unknown>"]"#);
        shows(
            kind.0,
            kind.1,
            r#"{"metadata":{"name":"e"},"addressType":"IPv4","ports":[{"port":80},{"name":"web"},{},{"port":1}],
                "endpoints":[{"addresses":["1","2"]},{"addresses":["3","4","5"]}]}"#,
            r#"["e","IPv4","80,web,* + 1 more...","1,2,3 + 2 more...","<unknown>"]"#,
        );
    }

    #[test]
    fn ingresses_show_hosts_and_ports() {
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
            shows("networking.k8s.io", "Ingress", &object(spec), &row);
        }
    }

    #[test]
    fn the_rest_of_the_network() {
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
            shows(group, kind, &object(spec), row);
        }
    }
}
