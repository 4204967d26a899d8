//! Stores, their engines and the delivery of their events: compared with models, and under failures.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test they are how it fails")]

mod common;
mod delivery;
mod encrypted;
mod failure;
mod model;
mod shared;
