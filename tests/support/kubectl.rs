//! The kubectl binary.

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::server::{Server, temp_directory};

/// kubectl with its own home directory and cache.
pub struct Kubectl {
    pub home: TempDir,
    pub kubeconfig: String,
}

impl Kubectl {
    pub fn new(server: &Server) -> Kubectl {
        let kubeconfig = server.kubeconfig().to_str().expect("a path of letters").to_owned();
        Kubectl { home: temp_directory(), kubeconfig }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .args(["--kubeconfig", &self.kubeconfig, "--request-timeout=30s"])
            .args(arguments)
            .env("HOME", self.home.path())
            .env("KUBECACHEDIR", self.home.path().join("cache"))
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null());
        command
    }

    pub fn try_run(&self, arguments: &[&str]) -> Output {
        self.command(arguments)
            .output()
            .expect("kubectl runs: tests/run installs it, or see https://kubernetes.io/docs/tasks/tools")
    }

    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.try_run(arguments);
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "kubectl {arguments:?}: {stdout} {stderr}");
        stdout.into_owned()
    }

    pub fn get(&self, title: &str, name: &str) -> Value {
        let json = self.run(&["get", title, name, "-o", "json"]);
        serde_json::from_str(&json).expect("JSON")
    }
}
