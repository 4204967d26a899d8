//! Start, start errors, shutdown and restart of the server, and embedded servers.

mod certificates;
mod embedded;
mod guards;
mod shutdown;
mod startup;
mod unreadable;

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{BasicConstraints, ExtendedKeyUsage};
use openssl::x509::{X509, X509Name};
use pilothouse::config::Config;
use pilothouse::server::{Exit, Handle, Server as Embedded};
use pilothouse_actors::engine::redb::Redb;
use pilothouse_types::object::TypeName;
use serde_json::{Value, json};

use crate::support::client::JSON;
use crate::support::compare::text;
use crate::support::server::{StartFailure, command, temp_directory};
use crate::support::tls;
use crate::support::wait::{Deadline, TIMEOUT, poll};
use crate::support::wire::Connection;
use crate::support::{Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"kept": "yes"}})
}

const FORCE: &str = "ignoreStoreReadErrorWithClusterBreakingPotential=true";
