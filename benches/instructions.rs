//! Instructions that the server takes for one request of each kind, counted with valgrind: unlike time they hardly change with the load
//! of the machine.
//!
//! `cargo bench --bench instructions` counts all of them, and fails if one takes 5 % more than what is written here; `-- get`, `-- pod`
//! and so on count those whose name contains a word. The printed files are for `callgrind_annotate`, which says where they go.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods
)]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use support::config_maps::{COLLECTION, config_map, get_request};
use support::load::{Until, merge_patch, request, run};
use support::process::{Process, scratch};

/// A request may take this share more before the bench fails.
const TOLERANCE: f64 = 0.05;
/// Requests before the counting begins: caches are full then, and the code of all of it has been reached.
const WARM_UP: u64 = 200;
/// Requests that are counted.
const COUNTED: u64 = 1_000;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// A Pod as a controller writes it: about 2 KiB of JSON.
const POD: &str = include_str!("support/pod.json");

/// What is counted.
struct RequestCase {
    name: &'static str,
    /// What one request took when this was last written, in thousands of instructions.
    thousands: u64,
    /// The status of its answers.
    status: u16,
    /// What the requests need, once for each of their numbers.
    prepare: Option<fn(u64) -> Vec<u8>>,
    request: fn(u64) -> Vec<u8>,
}

/// All on one connection, with objects in memory: how a disk takes its writes is measured by the bench of the server.
const CASES: [RequestCase; 6] = [
    RequestCase {
        name: "get of a ConfigMap of 1 KiB",
        thousands: 130,
        status: 200,
        prepare: Some(create_config_map),
        request: |number| get_request(number, WARM_UP),
    },
    RequestCase {
        name: "create of a ConfigMap of 1 KiB",
        thousands: 319,
        status: 201,
        prepare: None,
        request: create_config_map,
    },
    RequestCase {
        name: "update of a ConfigMap of 1 KiB",
        thousands: 409,
        status: 200,
        prepare: Some(create_config_map),
        request: update_config_map,
    },
    RequestCase {
        name: "renewal of a lease by a merge patch",
        thousands: 482,
        status: 200,
        prepare: Some(create_lease),
        request: renew_lease,
    },
    RequestCase {
        name: "create of a pod of 2 KiB",
        thousands: 1_018,
        status: 201,
        prepare: None,
        request: create_pod,
    },
    RequestCase {
        name: "merge patch of the status of a pod",
        thousands: 2_262,
        status: 200,
        prepare: Some(create_pod),
        request: patch_pod_status,
    },
];

fn create_config_map(number: u64) -> Vec<u8> {
    request("POST", COLLECTION, &config_map(number, 1_024))
}

fn update_config_map(number: u64) -> Vec<u8> {
    let (name, round) = (number % WARM_UP, number / WARM_UP);
    let body = config_map(name, 1_024).replacen(r#""data":{"#, &format!(r#""data":{{"round":"{round}","#), 1);
    request("PUT", &format!("{COLLECTION}/c-{name}"), &body)
}

fn create_lease(number: u64) -> Vec<u8> {
    let body = format!(
        r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"name":"node-{number}"}},"spec":{{"holderIdentity":"node-{number}","leaseDurationSeconds":40}}}}"#
    );
    request("POST", LEASES, &body)
}

fn renew_lease(number: u64) -> Vec<u8> {
    let (node, second) = (number % WARM_UP, number / WARM_UP);
    let body = format!(r#"{{"spec":{{"renewTime":"2026-01-01T00:00:{second:02}.000000Z"}}}}"#);
    merge_patch(&format!("{LEASES}/node-{node}"), &body)
}

fn create_pod(number: u64) -> Vec<u8> {
    request("POST", PODS, &POD.replacen("web-7d4b9c6f5-x2x7q", &format!("p-{number}"), 1))
}

fn patch_pod_status(number: u64) -> Vec<u8> {
    let (pod, restarts) = (number % WARM_UP, number / WARM_UP);
    let body = format!(
        r#"{{"status":{{"phase":"Running","message":"{restarts} restarts","conditions":[{{"type":"Ready","status":"True"}}]}}}}"#
    );
    merge_patch(&format!("{PODS}/p-{pod}/status"), &body)
}

fn main() -> ExitCode {
    // cargo passes flags of its own (--bench): only bare words are ours.
    let words: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if let [first, bytes] = words.as_slice()
        && first == "serve-floor"
    {
        support::floor::serve(bytes.parse().expect("a number of bytes"));
        return ExitCode::SUCCESS;
    }
    let is_selected = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let mut all_within = true;
    for case in CASES.iter().filter(|case| is_selected(case.name)) {
        all_within &= check(case);
    }
    if is_selected("bare handler") {
        let data = scratch("instructions-floor");
        let counter = Counter::new(&data);
        let floor = Process::floor_under(counter.valgrind(), 1_300);
        let (instructions, _) = counter.instructions_per_request(&floor, 200, |_| request("GET", "/", ""));
        println!("bare handler that answers as many bytes as the get: {instructions} instructions");
    }
    if all_within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Counts a case. Whether it takes no more than it did.
fn check(case: &RequestCase) -> bool {
    let data = scratch("instructions");
    let counter = Counter::new(&data);
    let server = Process::server_under(counter.valgrind(), &data, "memory");
    if let Some(prepare) = case.prepare {
        run(server.port, 1, Until::Count(WARM_UP), 201, prepare);
    }
    let (instructions, file) = counter.instructions_per_request(&server, case.status, case.request);
    let kept = data.with_file_name(format!("instructions-{}", case.name.replace(' ', "-")));
    std::fs::rename(&file, &kept).unwrap();
    let expected = case.thousands * 1_000;
    let change = instructions as f64 / expected as f64 - 1.0;
    println!(
        "{}: {instructions} instructions, {:+.1} % of {expected} ({})",
        case.name,
        change * 100.0,
        kept.display()
    );
    change <= TOLERANCE
}

/// Counts the instructions of a process that runs under valgrind.
struct Counter {
    file: PathBuf,
}

impl Counter {
    fn new(folder: &Path) -> Counter {
        Counter { file: folder.join("callgrind") }
    }

    /// The start of the command line of the process.
    fn valgrind(&self) -> Command {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--tool=callgrind"]);
        command.arg(format!("--callgrind-out-file={}", self.file.display()));
        command
    }

    /// The instructions of each of these requests on one connection, and the file with the functions that took them.
    fn instructions_per_request(
        &self,
        process: &Process,
        status: u16,
        request: fn(u64) -> Vec<u8>,
    ) -> (u64, PathBuf) {
        run(process.port, 1, Until::Count(WARM_UP), status, request);
        self.dump(process, 1);
        run(process.port, 1, Until::Count(COUNTED), status, move |number| request(WARM_UP + number));
        let (instructions, file) = self.dump(process, 2);
        (instructions / COUNTED, file)
    }

    /// Writes what was counted since the last time, this being time `number`.
    fn dump(&self, process: &Process, number: u32) -> (u64, PathBuf) {
        let output = Command::new("callgrind_control")
            .args(["--dump", &process.id().to_string()])
            .output()
            .expect("callgrind_control comes with valgrind");
        assert!(output.status.success(), "{output:?}");
        let file = self.file.with_extension(number.to_string());
        let text = std::fs::read_to_string(&file).expect("callgrind has written what it counted");
        let count = text.lines().find_map(|line| line.strip_prefix("summary: ")).expect("a sum");
        (count.trim().parse().unwrap(), file)
    }
}
