//! The built-in signers.

/// Signs the serving certificates of nodes.
pub const SERVING: &str = "kubernetes.io/kubelet-serving";
/// Signs the certificates by which nodes are known.
pub const KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signs the certificates by which everybody else is known.
pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// Signs whatever it is asked for: the signer of requests that named none, long ago.
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";
