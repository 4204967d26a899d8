//! What the black-box tests share: a server process of their own, a small HTTPS client, the manifests.

#![allow(dead_code, unused_imports, reason = "every test binary uses its own part of this module")]

pub mod client;
pub mod compare;
pub mod history;
pub mod kubectl;
pub mod kubelet;
pub mod manifests;
pub mod python;
pub mod random;
pub mod server;
pub mod wait;
pub mod wire;

pub use client::{Answer, Client, Watch};
pub use manifests::Manifest;
pub use server::{ADMIN_TOKEN, Server, USER_TOKEN};
