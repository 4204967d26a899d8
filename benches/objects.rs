//! The cost of decoding, validating and encoding one object, and of an RBAC decision, without a server.
//!
//! `cargo bench --bench objects` measures time with criterion. `cargo bench --bench objects -- instructions` counts
//! instructions with valgrind instead, which a busy machine does not change; `-- memory` says what the roles and bindings
//! weigh that decisions are made from. docs/numbers.md keeps what it printed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods
)]

use std::hint::black_box;
use std::process::Command;

use criterion::Criterion;
use pilothouse_apimachinery::codec::{self, protobuf};
use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::managed_fields::apply::apply;
use pilothouse_apimachinery::managed_fields::{self, Conversion, Versions, Write};
use pilothouse_apimachinery::schema::{GroupVersionKind, Registry, TypeId, default};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_authorization::rbac::index::{
    Binding, Index, RoleRef, RuleLookup, Subject, read_binding, read_role,
};
use pilothouse_authorization::rbac::role::Role;
use pilothouse_authorization::rbac::rule::Rule;
use pilothouse_kinds::{self as kinds, Kind, UserInfo, WriteContext};
use pilothouse_types::authorization::{Action, Target};
use pilothouse_types::identity::Identity;

/// The allocator of the binary: half of the cost of an object is allocation.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A Pod as a controller writes it: about 2 KiB of JSON.
const POD: &str = include_str!("support/pod.json");

/// A pod in all forms that are measured.
struct Bench {
    registry: Registry,
    kind: GroupVersionKind,
    ty: TypeId,
    writer: UserInfo,
    decoded: Value,
    stored: Vec<u8>,
    protobuf: Vec<u8>,
    /// The stored pod after five managers have applied to it, and the configuration of one of them.
    owned: Vec<u8>,
    applied: String,
}

/// The time of all writes.
const NOW: &str = "2024-01-01T00:00:00Z";

impl Bench {
    fn new() -> Bench {
        let registry = Registry::builtin().unwrap();
        let kind = GroupVersionKind::new("", "v1", "Pod");
        let ty = registry.lookup(&kind).unwrap();
        let mut decoded = codec::decode_object(POD.as_bytes(), &kind, &registry).unwrap().value;
        kinds::apply_defaults(kinds::rules("", "Pod"), &mut decoded, EnabledFeatures::RELEASE);
        default::apply(&registry, ty, &mut decoded);
        let stored = codec::encode(&registry, ty, &decoded);
        let protobuf = protobuf::encode_object(&registry, ty, &decoded);
        let (owned, applied) = (Vec::new(), String::new());
        let writer = UserInfo::default();
        let mut bench = Bench { registry, kind, ty, writer, decoded, stored, protobuf, owned, applied };
        bench.apply_five();
        bench
    }

    /// Applies as five managers: one the whole pod, four a label each.
    fn apply_five(&mut self) {
        let version = GroupVersion::new("", "v1");
        let versions = Versions {
            registry: &self.registry,
            kind: "Pod",
            stored: &version,
            conversion: Conversion::Table(kinds::CONVERSIONS),
            is_custom: false,
        };
        let mut current: Option<Value> = None;
        for number in 0..5 {
            let config = match number {
                0 => POD.to_owned(),
                _ => format!(
                    r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"web-7d4b9c6f5-x2x7q","labels":{{"l{number}":"x"}}}}}}"#
                ),
            };
            let (config_value, _) = codec::yaml::read_strict(config.as_bytes()).unwrap();
            let manager = format!("manager-{number}");
            let write = Write {
                manager: &manager,
                version: &version,
                subresource: "",
                now: NOW,
                reset: &[&["status"]],
            };
            let outcome = apply(&versions, &write, current.as_ref(), &config_value, false).unwrap();
            let mut value = self.with_defaults(&outcome.object.unwrap());
            let metadata = value.entry("metadata");
            metadata.set("uid", "0b2b1f5e-6d1c-4a57-9f0e-6d3f6f1c9a11");
            metadata.set("resourceVersion", "7");
            metadata.set("generation", 1);
            metadata.set("creationTimestamp", NOW);
            outcome.managers.unwrap().store(&mut value);
            current = Some(value);
            if number == 0 {
                self.applied = config;
            }
        }
        self.owned = codec::encode(&self.registry, self.ty, &current.unwrap());
    }

    /// The object as it would be stored.
    fn with_defaults(&self, object: &Value) -> Value {
        let text = json::to_json(object);
        let mut value = codec::decode_object(&text, &self.kind, &self.registry).unwrap().value;
        kinds::apply_defaults(kinds::rules("", "Pod"), &mut value, EnabledFeatures::RELEASE);
        default::apply(&self.registry, self.ty, &mut value);
        value
    }

    /// The work of an apply that changes nothing, without the messages to the store.
    fn apply_again(&self) -> bool {
        let version = GroupVersion::new("", "v1");
        let versions = Versions {
            registry: &self.registry,
            kind: "Pod",
            stored: &version,
            conversion: Conversion::Table(kinds::CONVERSIONS),
            is_custom: false,
        };
        let (config, _) = codec::yaml::read_strict(black_box(self.applied.as_bytes())).unwrap();
        let old = codec::decode_stored(black_box(&self.owned), self.ty, &self.registry).unwrap();
        let write = Write {
            manager: "manager-0",
            version: &version,
            subresource: "",
            now: "later",
            reset: &[&["status"]],
        };
        let outcome = apply(&versions, &write, Some(&old), &config, false).unwrap();
        assert!(outcome.object.is_none() && outcome.managers.is_none(), "the configuration changes nothing");
        let mut new = old.clone();
        let kind = Kind { rules: kinds::rules("", "Pod"), namespaced: true, has_status: true };
        let context = WriteContext { now: "later", user: &self.writer, features: EnabledFeatures::RELEASE };
        kinds::before_update(kind, &mut new, &old, &context).unwrap();
        managed_fields::keep_times(&old, &mut new);
        assert_eq!(new, old, "nothing changes");
        true
    }

    fn decode(&self) -> Value {
        codec::decode_object(black_box(POD.as_bytes()), &self.kind, &self.registry).unwrap().value
    }

    /// The work of a create before the object is stored.
    fn accept(&self) -> Value {
        let mut value = self.decode();
        let rules = kinds::rules("", "Pod");
        kinds::apply_defaults(rules, &mut value, EnabledFeatures::RELEASE);
        default::apply(&self.registry, self.ty, &mut value);
        let kind = Kind { rules, namespaced: true, has_status: true };
        let context = WriteContext {
            now: "2024-01-01T00:00:00Z",
            user: &self.writer,
            features: EnabledFeatures::RELEASE,
        };
        kinds::before_create(kind, &mut value, &context).unwrap();
        value
    }

    fn once(&self, name: &str) -> usize {
        match name {
            "decode" => self.decode().fields().map_or(0, |fields| fields.len()),
            "decode+default+validate" => self.accept().fields().map_or(0, |fields| fields.len()),
            "encode" => codec::encode(&self.registry, self.ty, black_box(&self.decoded)).len(),
            "read stored" => codec::decode_stored(black_box(&self.stored), self.ty, &self.registry)
                .and_then(|value| value.fields().map(|fields| fields.len()))
                .unwrap_or(0),
            "decode protobuf" => {
                let decoded = protobuf::decode_object(black_box(&self.protobuf), &self.kind, &self.registry);
                decoded.unwrap().value.fields().map_or(0, |fields| fields.len())
            }
            "encode protobuf" => protobuf::message(&self.registry, self.ty, black_box(&self.decoded)).len(),
            "apply again, 5 owners" => usize::from(self.apply_again()),
            _ => panic!("unknown benchmark {name}"),
        }
    }
}

/// The number of roles and of bindings; namespaces and users are a tenth as many.
const RIGHTS: usize = 10_000;

/// The RBAC index of a large cluster, and actions to decide.
struct RbacBench {
    index: Index,
    user: Identity,
    allowed: Action,
    denied: Action,
    changed: Binding,
}

fn binding(number: usize) -> Binding {
    let user =
        Subject { kind: "User".into(), name: format!("u{}", number % 1_000).into(), ..Subject::default() };
    Binding {
        namespace: format!("n{}", number % 1_000).into(),
        name: format!("b{number}").into(),
        role: RoleRef { kind: "Role".into(), name: format!("r{number}").into() },
        subjects: Box::from([user]),
    }
}

impl RbacBench {
    fn new() -> RbacBench {
        let words = |words: &[&str]| words.iter().map(|word| Box::from(*word)).collect();
        let rule = |resource: &str| Rule {
            verbs: words(&["get", "list", "watch"]),
            api_groups: words(&[""]),
            resources: words(&[resource]),
            ..Rule::default()
        };
        let mut index = Index::default();
        for number in 0..RIGHTS {
            let role = Role::new(vec![rule("pods"), rule("configmaps"), rule("services")]);
            index.put_role(&format!("n{}", number % 1_000), &format!("r{number}"), role);
            index.put_binding(binding(number));
        }
        let action = |verb: &str| Action {
            verb: verb.into(),
            target: Target::Resource {
                group: String::new(),
                version: "v1".into(),
                resource: "services".into(),
                subresource: String::new(),
                namespace: "n7".into(),
                name: "a".into(),
            },
        };
        let groups = ["devs", "testers", "system:authenticated"].map(str::to_owned).to_vec();
        RbacBench {
            index,
            user: Identity { name: "u7".into(), groups, ..Identity::default() },
            allowed: action("get"),
            denied: action("delete"),
            changed: binding(7),
        }
    }

    fn allows(&self, action: &Action) -> bool {
        matches!(self.index.decide(black_box(&self.user), action), RuleLookup::Allowed(_))
    }
}

fn bench_rbac(criterion: &mut Criterion) {
    let mut bench = RbacBench::new();
    assert!(bench.allows(&bench.allowed) && !bench.allows(&bench.denied));
    let title = |case: &str| format!("{RIGHTS} roles and bindings, {case}");
    criterion.bench_function(&title("allow"), |runs| runs.iter(|| bench.allows(&bench.allowed)));
    criterion.bench_function(&title("deny"), |runs| runs.iter(|| bench.allows(&bench.denied)));
    criterion.bench_function(&title("change one binding"), |runs| {
        runs.iter(|| bench.index.put_binding(bench.changed.clone()));
    });
}

const ALL: [&str; 7] = [
    "decode",
    "decode+default+validate",
    "encode",
    "read stored",
    "decode protobuf",
    "encode protobuf",
    "apply again, 5 owners",
];

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["repeat", name, times] => {
            let bench = Bench::new();
            let total: usize = (0..times.parse::<usize>().unwrap()).map(|_| bench.once(name)).sum();
            black_box(total);
        }
        ["instructions"] => instructions(),
        ["memory"] => memory(),
        _ => {
            let bench = Bench::new();
            let mut criterion = Criterion::default().configure_from_args();
            for name in ALL {
                criterion.bench_function(&format!("pod, {name}"), |runs| runs.iter(|| bench.once(name)));
            }
            bench_rbac(&mut criterion);
            criterion.final_summary();
        }
    }
}

/// Prints the memory of the index of stored roles, no two of which are equal.
fn memory() {
    let resident = || -> f64 {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: f64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
        pages * 4_096.0 / 1e6
    };
    let role = |number: usize| {
        let rules = ["pods", "configmaps", "services"].map(|resource| {
            format!(
                r#"{{"verbs":["get","list","watch"],"apiGroups":[""],"resources":["{resource}"],"resourceNames":["o{number}"]}}"#
            )
        });
        format!(r#"{{"rules":[{}]}}"#, rules.join(","))
    };
    let (before, mut index) = (resident(), Index::default());
    for number in 0..RIGHTS {
        let (namespace, name) = (format!("n{}", number % 1_000), format!("r{number}"));
        index.put_role(&namespace, &name, read_role(role(number).as_bytes()).unwrap());
        let binding_json = format!(
            r#"{{"roleRef":{{"kind":"Role","name":"{name}"}},"subjects":[{{"kind":"User","name":"u{}"}}]}}"#,
            number % 1_000
        );
        index.put_binding(read_binding(&namespace, &format!("b{number}"), binding_json.as_bytes()).unwrap());
    }
    println!("{RIGHTS} roles and bindings: {:.1} MB (goal 30)", resident() - before);
    black_box(index);
}

/// Counts the instructions of a thousand additional repetitions, so that the start does not count.
fn instructions() {
    for name in ALL {
        let counted = |times: usize| -> u64 {
            let output = Command::new("valgrind")
                .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
                .arg(std::env::current_exe().unwrap())
                .args(["repeat", name, &times.to_string()])
                .output()
                .expect("valgrind is installed");
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let line = text.lines().find_map(|line| line.split_once("Collected :")).expect("a count");
            line.1.trim().parse().unwrap()
        };
        println!("pod, {name}: {} instructions", (counted(1_100) - counted(100)) / 1_000);
    }
}
