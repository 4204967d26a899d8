//! Support code of the black-box tests: a server process for each test, a small HTTPS client, a model of watch histories, fake
//! kubelets and webhooks, an application behind the HTTP edge, and the manifests.

#![allow(dead_code, unused_imports, reason = "every test binary uses its own part of this module")]

pub mod client;
pub mod collector;
pub mod compare;
pub mod edge;
pub mod etcd;
pub mod history;
pub mod hook_server;
pub mod kubectl;
pub mod kubelet;
pub mod manifests;
pub mod profile;
pub mod prometheus;
pub mod python;
pub mod random;
pub mod server;
pub mod tls;
pub mod wait;
pub mod wire;

pub use client::{Client, Response, Watch};
pub use manifests::Manifest;
pub use server::{ADMIN_TOKEN, Server, USER_TOKEN};
