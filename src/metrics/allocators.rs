//! The allocators of cluster IPs and node ports.

use std::time::Duration;

use prometheus::{DEFAULT_BUCKETS, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::registration::{MetricRegistry, Result};
use super::remove_stale;

/// Who has chosen an address or a port: the label `scope` of the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationScope {
    /// The client.
    Static,
    /// The allocator.
    Dynamic,
}

impl AllocationScope {
    fn label(self) -> &'static str {
        match self {
            AllocationScope::Static => "static",
            AllocationScope::Dynamic => "dynamic",
        }
    }
}

/// How many items of a range are taken, and how many are free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeUse {
    /// Those that are taken.
    pub allocated: u64,
    /// Those that are free.
    pub available: u64,
}

/// Allocations of addresses and ports.
pub struct AllocatorMetrics {
    allocated_addresses: IntGaugeVec,
    available_addresses: IntGaugeVec,
    addresses: IntCounterVec,
    address_errors: IntCounterVec,
    durations: HistogramVec,
    allocated_ports: IntGauge,
    available_ports: IntGauge,
    ports: IntCounterVec,
    port_errors: IntCounterVec,
    address_faults: IntCounterVec,
    port_faults: IntCounterVec,
    /// Repairs of addresses and of ports that have failed.
    failed_repairs: [IntCounter; 2],
}

/// What a repair has found, as the metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairFault {
    /// It is taken, and nobody has it.
    Leak,
    /// Somebody has it, and it is not taken.
    Missing,
    /// Two have it.
    Duplicate,
    /// It is outside of the range.
    OutOfRange,
}

impl RepairFault {
    fn label(self) -> &'static str {
        match self {
            RepairFault::Leak => "leak",
            RepairFault::Missing => "repair",
            RepairFault::Duplicate => "duplicate",
            RepairFault::OutOfRange => "outOfRange",
        }
    }
}

impl AllocatorMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<AllocatorMetrics> {
        let address = |suffix: &str| format!("kube_apiserver_clusterip_allocator_{suffix}");
        let port = |suffix: &str| format!("kube_apiserver_nodeport_allocator_{suffix}");
        let failed_repairs = |name: &str, help: &str| registry.counter(name, help);
        Ok(AllocatorMetrics {
            address_faults: registry.counters(
                "apiserver_clusterip_repair_ip_errors_total",
                "Cluster IPs that a repair found not to be as they should, by what is wrong.",
                &["type"],
            )?,
            port_faults: registry.counters(
                "apiserver_nodeport_repair_port_errors_total",
                "Node ports that a repair found not to be as they should, by what is wrong.",
                &["type"],
            )?,
            failed_repairs: [
                failed_repairs("apiserver_clusterip_repair_reconcile_errors_total", "Repairs of cluster IPs that failed.")?,
                failed_repairs("apiserver_nodeport_repair_reconcile_errors_total", "Repairs of node ports that failed.")?,
            ],
            allocated_addresses: registry.gauges(
                address("allocated_ips"),
                "Cluster IPs of a range that are taken.",
                &["cidr"],
            )?,
            available_addresses: registry.gauges(
                address("available_ips"),
                "Cluster IPs of a range that are free.",
                &["cidr"],
            )?,
            addresses: registry.counters(
                address("allocation_total"),
                "Cluster IPs that were allocated, by range and whether the client has chosen them (static or dynamic).",
                &["cidr", "scope"],
            )?,
            address_errors: registry.counters(
                address("allocation_errors_total"),
                "Cluster IPs that could not be allocated, by range and whether the client has chosen them (static or dynamic).",
                &["cidr", "scope"],
            )?,
            durations: registry.histograms(
                address("allocation_duration_seconds"),
                "How long it took to allocate a cluster IP, by range.",
                &["cidr"],
                DEFAULT_BUCKETS,
            )?,
            allocated_ports: registry.gauge(port("allocated_ports"), "Node ports that are taken.")?,
            available_ports: registry.gauge(port("available_ports"), "Node ports that are free.")?,
            ports: registry.counters(
                port("allocation_total"),
                "Node ports that were allocated, by whether the client has chosen them (static or dynamic).",
                &["scope"],
            )?,
            port_errors: registry.counters(
                port("allocation_errors_total"),
                "Node ports that could not be allocated, by whether the client has chosen them (static or dynamic).",
                &["scope"],
            )?,
        })
    }

    /// Counts the allocation of an address of a range.
    pub fn count_address(&self, range: &str, scope: AllocationScope, is_allocated: bool, elapsed: Duration) {
        let counters = if is_allocated { &self.addresses } else { &self.address_errors };
        counters.with_label_values(&[range, scope.label()]).inc();
        self.durations.with_label_values(&[range]).observe(elapsed.as_secs_f64());
    }

    /// Counts the allocation of a port.
    pub fn count_port(&self, scope: AllocationScope, is_allocated: bool) {
        let counters = if is_allocated { &self.ports } else { &self.port_errors };
        counters.with_label_values(&[scope.label()]).inc();
    }

    /// Counts an address that is not as it should be.
    pub fn count_address_fault(&self, fault: RepairFault) {
        self.address_faults.with_label_values(&[fault.label()]).inc();
    }

    /// Counts a port that is not as it should be.
    pub fn count_port_fault(&self, fault: RepairFault) {
        self.port_faults.with_label_values(&[fault.label()]).inc();
    }

    /// Counts a repair of both that has failed.
    pub fn count_failed_repair(&self) {
        self.failed_repairs.iter().for_each(IntCounter::inc);
    }

    /// Sets how many addresses of each range are taken.
    pub fn set_addresses(&self, ranges: &[(String, RangeUse)]) {
        let existing = ranges.iter().map(|(range, _)| range.as_str()).collect();
        for gauges in [&self.allocated_addresses, &self.available_addresses] {
            remove_stale(gauges, &existing);
        }
        for (range, RangeUse { allocated, available }) in ranges {
            self.allocated_addresses.with_label_values(&[range]).set(number(*allocated));
            self.available_addresses.with_label_values(&[range]).set(number(*available));
        }
    }

    /// Sets how many ports are taken.
    pub fn set_ports(&self, RangeUse { allocated, available }: RangeUse) {
        self.allocated_ports.set(number(allocated));
        self.available_ports.set(number(available));
    }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_counted_by_range_and_scope() {
        let registry = prometheus::Registry::new();
        let allocators = AllocatorMetrics::new(&MetricRegistry::new(&registry)).unwrap();
        allocators.count_address("10.0.0.0/24", AllocationScope::Dynamic, true, Duration::from_millis(20));
        allocators.count_address("10.0.0.0/24", AllocationScope::Static, false, Duration::from_millis(20));
        allocators.count_port(AllocationScope::Static, true);
        allocators.count_port(AllocationScope::Dynamic, false);
        let ranges = |names: &[&str]| -> Vec<(String, RangeUse)> {
            names.iter().map(|name| ((*name).to_owned(), RangeUse { allocated: 2, available: 252 })).collect()
        };
        allocators.set_addresses(&ranges(&["10.0.0.0/24", "10.9.0.0/24"]));
        allocators.set_addresses(&ranges(&["10.0.0.0/24"]));
        allocators.set_ports(RangeUse { allocated: 3, available: 2_765 });
        allocators.count_address_fault(RepairFault::Leak);
        allocators.count_port_fault(RepairFault::Duplicate);
        allocators.count_failed_repair();
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            r#"kube_apiserver_clusterip_allocator_allocated_ips{cidr="10.0.0.0/24"} 2"#,
            r#"kube_apiserver_clusterip_allocator_available_ips{cidr="10.0.0.0/24"} 252"#,
            r#"kube_apiserver_clusterip_allocator_allocation_total{cidr="10.0.0.0/24",scope="dynamic"} 1"#,
            r#"kube_apiserver_clusterip_allocator_allocation_errors_total{cidr="10.0.0.0/24",scope="static"} 1"#,
            r#"kube_apiserver_clusterip_allocator_allocation_duration_seconds_count{cidr="10.0.0.0/24"} 2"#,
            r#"apiserver_clusterip_repair_ip_errors_total{type="leak"} 1"#,
            r#"apiserver_nodeport_repair_port_errors_total{type="duplicate"} 1"#,
            "apiserver_clusterip_repair_reconcile_errors_total 1",
            "apiserver_nodeport_repair_reconcile_errors_total 1",
            "kube_apiserver_nodeport_allocator_allocated_ports 3",
            "kube_apiserver_nodeport_allocator_available_ports 2765",
            r#"kube_apiserver_nodeport_allocator_allocation_total{scope="static"} 1"#,
            r#"kube_apiserver_nodeport_allocator_allocation_errors_total{scope="dynamic"} 1"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("10.9.0.0"), "{text}");
    }
}
