//! A Prometheus on the loopback interface, with rules and a data directory of its own.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use pilothouse_types::lock::Lock;
use serde_json::Value;
use tempfile::TempDir;

use super::server::{ADMIN_TOKEN, Server, temp_directory};
use super::wait::poll;

/// How long it may take to start, or to have values: it scrapes and evaluates every second.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// A program of Debian's package `prometheus`: the one in `PATH`, or below the build folder, where `tests/run` unpacks it.
fn program(name: &str) -> PathBuf {
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let unpacked = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools").join("prometheus/usr/bin");
    let mut candidates =
        std::env::split_paths(&search_path).chain([unpacked]).map(|folder| folder.join(name));
    candidates.find(|path| path.is_file()).unwrap_or_else(|| {
        panic!("there is no {name}: tests/run unpacks it below the build folder, or install the package prometheus")
    })
}

/// Runs `promtool`.
pub fn promtool(arguments: &[&str]) -> Output {
    let output = Command::new(program("promtool")).args(arguments).stdin(Stdio::null()).output();
    output.expect("promtool runs")
}

/// A running Prometheus, killed on drop.
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
    log: Arc<Lock<Vec<String>>>,
    _directory: TempDir,
}

impl Prometheus {
    /// One that scrapes this server as `job="kube-apiserver"`, and evaluates the rules of these files.
    pub fn start(server: &Server, rule_files: &[&str]) -> Prometheus {
        let directory = temp_directory();
        let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
        fs::write(path("ca.crt"), server.ca_pem()).expect("the CA");
        let rules: String = rule_files.iter().map(|file| format!("\n  - {file}")).collect();
        let configuration = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: {rules}\nscrape_configs:\n\
             - job_name: kube-apiserver\n  scheme: https\n  tls_config: {{ca_file: {}}}\n  \
             authorization: {{credentials: {ADMIN_TOKEN}}}\n  \
             static_configs: [{{targets: ['{}'], labels: {{cluster: test}}}}]\n",
            path("ca.crt"),
            server.address(),
        );
        fs::write(path("prometheus.yml"), configuration).expect("the configuration");
        let mut child = Command::new(program("prometheus"))
            .arg(format!("--config.file={}", path("prometheus.yml")))
            .arg(format!("--storage.tsdb.path={}", path("data")))
            .args(["--web.listen-address=127.0.0.1:0", "--log.format=json"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("Prometheus starts");
        let log: Arc<Lock<Vec<String>>> = Arc::default();
        let (lines, stderr) = (Arc::clone(&log), child.stderr.take().expect("stderr"));
        thread::spawn(move || {
            BufReader::new(stderr).lines().map_while(Result::ok).for_each(|line| lines.lock().push(line));
        });
        // It says at which port it listens.
        let listening = || {
            let lines = log.lock();
            let mut entries = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            entries.find(|entry| entry["msg"] == "Listening on")?["address"].as_str()?.parse().ok()
        };
        let address = poll(TIMEOUT, listening);
        let address = address.unwrap_or_else(|| panic!("Prometheus does not listen: {:?}", log.lock()));
        Prometheus { child, address, log, _directory: directory }
    }

    /// An answer of its API; `None` as long as it is not ready.
    fn get(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).ok()?;
        let host = self.address;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).ok()?;
        let (_, body) = response.split_once("\r\n\r\n")?;
        serde_json::from_str(body).ok()
    }

    /// The result of an expression now.
    pub fn query(&self, expression: &str) -> Vec<Value> {
        let escape = |byte: u8| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        };
        let escaped: String = expression.bytes().map(escape).collect();
        let Some(answer) = self.get(&format!("/api/v1/query?query={escaped}")) else { return Vec::new() };
        assert_ne!(answer["status"], "error", "{expression}: {answer}");
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }

    /// All rules, as it has evaluated them.
    pub fn rules(&self) -> Vec<Value> {
        let Some(answer) = self.get("/api/v1/rules") else { return Vec::new() };
        let groups = answer["data"]["groups"].as_array().cloned().unwrap_or_default();
        groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect()
    }

    /// What it has logged, for messages of tests.
    pub fn log(&self) -> String {
        self.log.lock().join("\n")
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
