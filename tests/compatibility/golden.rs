//! Recorded responses of the reference server, replayed against this one.
//!
//! The recordings are not part of this repository: they are in `../shared/golden` beside the checkout, or in
//! `PILOTHOUSE_GOLDEN`. Without them the test is ignored.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::Server;

/// Steps that differ on purpose: scenario, step, and why.
const KNOWN_DIFFERENCES: [(&str, u64, &str); 2] = [
    (
        "apply/managed-fields-reset",
        1,
        "an empty list of managedFields does not reset them, as the specification says",
    ),
    ("apply/managed-fields-reset", 2, "follows from the step before"),
];
/// The recordings have at least these many steps.
const RECORDED_STEPS: f64 = 1_600.0;

/// Prints to stderr directly, because the test runner captures the output of passing tests.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "golden: {line}");
}

fn folder() -> PathBuf {
    let default_folder = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/golden");
    std::env::var_os("PILOTHOUSE_GOLDEN").map_or_else(default_folder, PathBuf::from)
}

#[test]
#[cfg_attr(not(has_recorded_responses), ignore = "needs ../shared/golden, or PILOTHOUSE_GOLDEN")]
fn recorded_responses_match_reference() {
    let golden = folder();
    let tokens = golden.join("tokens.csv");
    let mut server = Server::with_flags(&[
        "--token-auth-file",
        tokens.to_str().expect("a path of letters"),
        "--authorization-mode=RBAC",
        "--anonymous-auth=true",
        "--enable-bootstrap-token-auth",
        "--controllers=-*",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--allow-privileged=false",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--disable-admission-plugins=ServiceAccount",
    ]);
    let output = Command::new("python3")
        .arg(golden.join("replay.py"))
        .args(["--server", &format!("https://{}", server.address()), "--token-file"])
        .arg(&tokens)
        .args(["--poll-scale", "0.2", "--timeout", "10", "--json"])
        .output()
        .expect("python3 runs: tests/run installs it");
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("no report ({error}): {}", String::from_utf8_lossy(&output.stderr)));
    let steps = |area: &Value, key: &str| area[key].as_f64().expect("a number of steps");
    let areas = report["areas"].as_object().expect("areas");
    for (name, area) in areas.iter().chain([(&"total".to_owned(), &report["total"])]) {
        let (total, exact, code) =
            (steps(area, "steps"), steps(area, "steps_exact"), steps(area, "steps_code"));
        print_line(&format!(
            "{name:<16} {exact:>5} of {total:>5} steps exact, {code:>5} with the right code"
        ));
    }
    assert!(steps(&report["total"], "steps") >= RECORDED_STEPS, "the recordings are incomplete");
    let mut unexpected = Vec::new();
    for scenario in report["scenarios"].as_array().expect("scenarios") {
        for step in scenario["detail"].as_array().expect("steps") {
            let is_known = KNOWN_DIFFERENCES
                .iter()
                .any(|(name, index, _)| scenario["name"] == *name && step["index"] == *index);
            if step["exact"] == is_known {
                let problem = if is_known { "is exact, but listed as a difference" } else { "differs" };
                let (name, index, what) = (&scenario["name"], &step["index"], &step["what"]);
                unexpected.push(format!("{name} step {index} {what} {problem}: {}", step["diff"]));
            }
        }
    }
    server.assert_healthy();
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
}
