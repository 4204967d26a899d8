//! The flags with which kube-apiserver is usually started: by kubeadm, by k3s and by Gardener, as they publish them for release 1.33.
//! The server starts with each, over etcd, and says of no flag that it has no effect.

use std::fs;
use std::path::Path;

use openssl::pkey::PKey;
use openssl::rsa::Rsa;
use tempfile::TempDir;

use crate::support::Server;
use crate::support::etcd::cluster;
use crate::support::kubelet::TlsIdentity;
use crate::support::server::temp_directory;

/// What a line of the log says about a flag that does nothing.
const WITHOUT_EFFECT: [&str; 4] = ["has no effect", "is not used", "are not used", "have no effect"];

/// The files that the flags name; `PKI` stands for their folder.
fn write_files(folder: &Path) {
    let serving = TlsIdentity::new("kube-apiserver", &["127.0.0.1"]);
    serving.write(folder, "apiserver");
    for name in [
        "ca",
        "front-proxy-ca",
        "front-proxy-client",
        "apiserver-kubelet-client",
        "server-ca",
        "apiserver-etcd-client",
    ] {
        TlsIdentity::new(name, &[]).write(folder, name);
    }
    let key = PKey::from_rsa(Rsa::generate(2_048).unwrap()).unwrap();
    fs::write(folder.join("sa.key"), key.private_key_to_pem_pkcs8().unwrap()).unwrap();
    fs::write(folder.join("sa.pub"), key.public_key_to_pem().unwrap()).unwrap();
    let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n";
    fs::write(folder.join("audit.yaml"), policy).unwrap();
    let admission = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: []\n";
    fs::write(folder.join("admission.yaml"), admission).unwrap();
    let encryption = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
                      providers:\n  - aescbc: {keys: [{name: k, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}\n  \
                      - identity: {}\n";
    fs::write(folder.join("encryption.yaml"), encryption).unwrap();
    let authorization = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthorizationConfiguration\nauthorizers:\n\
                         - {type: Node, name: node}\n- {type: RBAC, name: rbac}\n";
    fs::write(folder.join("authorization.yaml"), authorization).unwrap();
    let pki = folder.display();
    let egress = format!(
        "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n- name: cluster\n  connection:\n    \
         proxyProtocol: HTTPConnect\n    transport: {{tcp: {{url: https://127.0.0.1:6443, tlsConfig: {{caBundle: {pki}/server-ca.crt, \
         clientKey: {pki}/apiserver.key, clientCert: {pki}/apiserver.crt}}}}}}\n"
    );
    fs::write(folder.join("egress.yaml"), egress).unwrap();
}

/// Starts a server with these flags on an etcd of its own, and returns what its log says of flags that do nothing.
fn lines_without_effect(flags: &[&str]) -> Vec<String> {
    let (etcd, folder): (_, TempDir) = (cluster(1), temp_directory());
    write_files(folder.path());
    let pki = folder.path().display().to_string();
    let servers = format!("--etcd-servers={}", etcd.members[0].url());
    let flags: Vec<String> = flags.iter().map(|flag| flag.replace("PKI", &pki)).chain([servers]).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut server = Server::start_in(&folder.path().join("data"), &flags);
    assert_eq!(server.kubeconfig_client().get("/api/v1/namespaces/kube-system").status, 200);
    server.assert_healthy();
    let log = server.log();
    let says_so = |line: &&str| WITHOUT_EFFECT.iter().any(|words| line.contains(words));
    log.lines().filter(says_so).map(str::to_owned).collect()
}

/// The static pod of `kubeadm init`, but for the addresses.
#[test]
fn server_starts_with_the_flags_of_kubeadm() {
    let flags = [
        "--advertise-address=192.0.2.10",
        "--allow-privileged=true",
        "--authorization-mode=Node,RBAC",
        "--client-ca-file=PKI/ca.crt",
        "--enable-admission-plugins=NodeRestriction",
        "--enable-bootstrap-token-auth=true",
        "--etcd-cafile=PKI/ca.crt",
        "--etcd-certfile=PKI/apiserver-etcd-client.crt",
        "--etcd-keyfile=PKI/apiserver-etcd-client.key",
        "--kubelet-client-certificate=PKI/apiserver-kubelet-client.crt",
        "--kubelet-client-key=PKI/apiserver-kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
        "--proxy-client-cert-file=PKI/front-proxy-client.crt",
        "--proxy-client-key-file=PKI/front-proxy-client.key",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-client-ca-file=PKI/front-proxy-ca.crt",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--service-account-key-file=PKI/sa.pub",
        "--service-account-signing-key-file=PKI/sa.key",
        "--service-cluster-ip-range=10.96.0.0/12",
        "--tls-cert-file=PKI/apiserver.crt",
        "--tls-private-key-file=PKI/apiserver.key",
    ];
    assert_eq!(lines_without_effect(&flags), Vec::<String>::new());
}

/// The flags that `k3s server` gives to its API server, with its option to encrypt Secrets; but for the addresses, and
/// `--advertise-port`, which only its own build has.
#[test]
fn server_starts_with_the_flags_of_k3s() {
    let flags = [
        "--egress-selector-config-file=PKI/egress.yaml",
        "--allow-privileged=true",
        "--anonymous-auth=false",
        "--api-audiences=https://kubernetes.default.svc.cluster.local,k3s",
        "--authorization-mode=Node,RBAC",
        "--bind-address=127.0.0.1",
        "--cert-dir=PKI/temporary-certs",
        "--client-ca-file=PKI/ca.crt",
        "--enable-admission-plugins=NodeRestriction",
        "--enable-aggregator-routing=true",
        "--enable-bootstrap-token-auth=true",
        "--encryption-provider-config=PKI/encryption.yaml",
        "--encryption-provider-config-automatic-reload=true",
        "--kubelet-certificate-authority=PKI/server-ca.crt",
        "--kubelet-client-certificate=PKI/apiserver-kubelet-client.crt",
        "--kubelet-client-key=PKI/apiserver-kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
        "--profiling=false",
        "--proxy-client-cert-file=PKI/front-proxy-client.crt",
        "--proxy-client-key-file=PKI/front-proxy-client.key",
        "--requestheader-allowed-names=system:auth-proxy",
        "--requestheader-client-ca-file=PKI/front-proxy-ca.crt",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--service-account-key-file=PKI/sa.key",
        "--service-account-signing-key-file=PKI/sa.key",
        "--service-cluster-ip-range=10.43.0.0/16",
        "--service-node-port-range=30000-32767",
        "--storage-backend=etcd3",
        "--tls-cert-file=PKI/apiserver.crt",
        "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,\
         TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,\
         TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
        "--tls-private-key-file=PKI/apiserver.key",
    ];
    assert_eq!(lines_without_effect(&flags), Vec::<String>::new());
}

/// The flags of the API servers that Gardener manages, with the settings that its users may make.
#[test]
fn server_starts_with_the_flags_of_gardener() {
    let flags = [
        "--egress-selector-config-file=PKI/egress.yaml",
        "--admission-control-config-file=PKI/admission.yaml",
        "--advertise-address=192.0.2.10",
        "--anonymous-auth=false",
        "--api-audiences=kubernetes,gardener",
        "--audit-policy-file=PKI/audit.yaml",
        "--audit-log-path=PKI/audit.log",
        "--audit-log-maxsize=100",
        "--audit-log-maxbackup=5",
        "--authorization-config=PKI/authorization.yaml",
        "--client-ca-file=PKI/ca.crt",
        "--default-not-ready-toleration-seconds=300",
        "--default-unreachable-toleration-seconds=300",
        "--default-watch-cache-size=100",
        "--enable-admission-plugins=NodeRestriction,Priority,PodSecurity",
        "--enable-aggregator-routing=true",
        "--enable-bootstrap-token-auth=true",
        "--encryption-provider-config=PKI/encryption.yaml",
        "--etcd-cafile=PKI/ca.crt",
        "--etcd-certfile=PKI/apiserver-etcd-client.crt",
        "--etcd-keyfile=PKI/apiserver-etcd-client.key",
        "--event-ttl=1h0m0s",
        "--external-hostname=api.example.com",
        "--http2-max-streams-per-connection=1000",
        "--kubelet-certificate-authority=PKI/server-ca.crt",
        "--kubelet-client-certificate=PKI/apiserver-kubelet-client.crt",
        "--kubelet-client-key=PKI/apiserver-kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP,Hostname,ExternalIP",
        "--livez-grace-period=1m",
        "--max-mutating-requests-inflight=200",
        "--max-requests-inflight=400",
        "--profiling=false",
        "--proxy-client-cert-file=PKI/front-proxy-client.crt",
        "--proxy-client-key-file=PKI/front-proxy-client.key",
        "--requestheader-client-ca-file=PKI/front-proxy-ca.crt",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        "--runtime-config=scheduling.k8s.io/v1alpha1=false",
        "--service-account-extend-token-expiration=false",
        "--service-account-issuer=https://api.example.com",
        "--service-account-key-file=PKI/sa.key",
        "--service-account-max-token-expiration=720h0m0s",
        "--service-account-signing-key-file=PKI/sa.key",
        "--service-cluster-ip-range=100.64.0.0/13",
        "--shutdown-delay-duration=1s",
        "--tls-cert-file=PKI/apiserver.crt",
        "--tls-cipher-suites=TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,\
         TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,\
         TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,\
         TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "--tls-private-key-file=PKI/apiserver.key",
        "--tls-sni-cert-key=PKI/apiserver.crt,PKI/apiserver.key:api.example.com",
        "--v=2",
        "--vmodule=httplog=3",
        "--watch-cache-sizes=secrets#500,configmaps#500",
    ];
    assert_eq!(lines_without_effect(&flags), Vec::<String>::new());
}
