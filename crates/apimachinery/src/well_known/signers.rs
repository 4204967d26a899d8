//! The built-in signers.

/// Signs the serving certificates of nodes.
pub const SERVING: &str = "kubernetes.io/kubelet-serving";
/// Signs the client certificates of nodes.
pub const KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signs the client certificates of all others.
pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// Signs any request: the signer of requests from before there were signer names.
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";
