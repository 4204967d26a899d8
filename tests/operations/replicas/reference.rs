//! A server of the reference, beside those of this project on the same etcd.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::*;

/// It has the keys of another server, and is killed on drop.
pub(super) struct Reference {
    command: Command,
    child: Child,
    client: Client,
}

impl Reference {
    /// Starts the program that `PILOTHOUSE_REFERENCE` names.
    pub(super) fn start(replicas: &Replicas, beside: &Server) -> Reference {
        let program =
            std::env::var("PILOTHOUSE_REFERENCE").expect("PILOTHOUSE_REFERENCE names kube-apiserver");
        let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address: SocketAddr = address.expect("a port");
        let path = |name: &str| beside.data.join(name).display().to_string();
        let mut command = Command::new(program);
        command
            .arg(replicas.servers())
            .args(["--bind-address=127.0.0.1".to_owned(), format!("--secure-port={}", address.port())])
            .arg(format!("--tls-cert-file={}", path("pki/apiserver.crt")))
            .arg(format!("--tls-private-key-file={}", path("pki/apiserver.key")))
            .arg(format!("--client-ca-file={}", path("pki/ca.crt")))
            .arg(format!("--token-auth-file={}", path("tokens.csv")))
            .arg(format!("--service-account-key-file={}", path("pki/sa.pub")))
            .arg(format!("--service-account-signing-key-file={}", path("pki/sa.key")))
            .args(["--service-account-issuer=https://kubernetes.default.svc.cluster.local"])
            .args(["--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=Node,RBAC"])
            .args(["--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none"])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let log = File::create(beside.data.join("reference.log")).expect("its log");
        command.stderr(log);
        let child = command.spawn().expect("the program that PILOTHOUSE_REFERENCE names");
        let client = Client::new(address, &beside.ca_pem(), None).with_token(Some(ADMIN_TOKEN));
        let mut reference = Reference { command, child, client };
        reference.wait_until_ready();
        reference
    }

    /// A client with all rights.
    pub(super) fn admin(&self) -> Client {
        self.client.new_connection()
    }

    /// Kills it and starts it again.
    pub(super) fn restart(&mut self) {
        self.kill();
        self.child = self.command.spawn().expect("the same program");
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        let mut client = self.admin();
        let is_ready = || {
            let response = client.attempt("GET", "/readyz", &[], b"").ok()?;
            (response.status == 200).then_some(())
        };
        poll(Duration::from_secs(120), is_ready).expect("the server of the reference is ready");
    }

    fn kill(&mut self) {
        // It may have ended.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        self.kill();
    }
}
