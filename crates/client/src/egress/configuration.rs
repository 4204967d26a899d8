//! The file of `--egress-selector-config-file`: an `EgressSelectorConfiguration`. It is read strictly, with the reference's rules and
//! messages.

use std::path::{Path, PathBuf};

use pilothouse_apimachinery::document::{self, FieldReader, present};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::value::Value;

use super::Egress;

const KIND: &str = "EgressSelectorConfiguration";
const VERSIONS: [&str; 2] = ["apiserver.k8s.io/v1beta1", "apiserver.k8s.io/v1alpha1"];
const NAMES: [&str; 3] = ["cluster", "controlplane", "etcd"];
const PROTOCOLS: [&str; 3] = ["Direct", "HTTPConnect", "GRPC"];

/// A valid configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Configuration {
    /// How each sort of connection is made.
    pub selections: Vec<(Egress, Connection)>,
}

/// How connections are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Without a proxy.
    Direct,
    /// Through an HTTP proxy at this URL.
    HttpOverTcp(String, Option<TlsPaths>),
    /// Through an HTTP proxy on this socket.
    HttpOverUnix(PathBuf),
    /// Through konnectivity on this socket.
    GrpcOverUnix(PathBuf),
}

/// The files for TLS with a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPaths {
    /// The CAs of the proxy; `None` for those of the system.
    pub authority: Option<PathBuf>,
    /// The client certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// The name of a selection in the file.
pub fn name(egress: Egress) -> &'static str {
    match egress {
        Egress::ControlPlane => "controlplane",
        Egress::Etcd => "etcd",
        Egress::Cluster => "cluster",
    }
}

fn egress(name: &str) -> Option<Egress> {
    [Egress::ControlPlane, Egress::Etcd, Egress::Cluster]
        .into_iter()
        .find(|egress| self::name(*egress) == name)
}

/// The fields of a selection, before any rule but their types was applied.
struct RawSelection {
    name: String,
    protocol: String,
    transport: Option<RawTransport>,
}

#[derive(Default)]
struct RawTransport {
    tcp: Option<RawTcp>,
    /// The path of a socket.
    uds: Option<String>,
}

struct RawTcp {
    url: String,
    tls: Option<RawTls>,
}

struct RawTls {
    authority: String,
    key: String,
    certificate: String,
}

impl Configuration {
    /// Reads a file and reports all errors.
    pub fn parse(text: &[u8]) -> Result<Configuration, String> {
        let unread = |error: String| format!("failed to read egress selector config: {error}");
        let file = document::parse(text).map_err(unread)?;
        document::check_kind(&file, KIND, &VERSIONS).map_err(unread)?;
        let selections = decode(&file).map_err(unread)?;
        validate(selections)
            .map_err(|error| format!("failed to validate egress selector configuration: {error}"))
    }
}

fn decode(file: &Value) -> Result<Vec<RawSelection>, String> {
    let (mut reader, root) = (FieldReader::default(), FieldPath::root());
    reader.check_fields(file, &root, &["apiVersion", "kind", "egressSelections"]);
    let path = FieldPath::new("egressSelections");
    let selections = reader.list(file, "egressSelections", &root).iter().enumerate();
    let selections =
        selections.map(|(index, value)| decode_selection(&mut reader, value, &path.index(index)));
    let selections = selections.collect();
    reader.result()?;
    Ok(selections)
}

fn decode_selection(reader: &mut FieldReader, value: &Value, path: &FieldPath) -> RawSelection {
    reader.check_fields(value, path, &["name", "connection"]);
    let name = match reader.text(value, "name", path) {
        // Its name in earlier releases.
        "master" => "controlplane",
        name => name,
    };
    let mut selection = RawSelection { name: name.to_owned(), protocol: String::new(), transport: None };
    if let Some(connection) = present(value, "connection") {
        let path = path.child("connection");
        reader.check_fields(connection, &path, &["proxyProtocol", "transport"]);
        reader.text(connection, "proxyProtocol", &path).clone_into(&mut selection.protocol);
        selection.transport = present(connection, "transport")
            .map(|transport| decode_transport(reader, transport, &path.child("transport")));
    }
    selection
}

fn decode_transport(reader: &mut FieldReader, value: &Value, path: &FieldPath) -> RawTransport {
    reader.check_fields(value, path, &["tcp", "uds"]);
    let tcp = present(value, "tcp").map(|tcp| {
        let path = path.child("tcp");
        reader.check_fields(tcp, &path, &["url", "tlsConfig"]);
        let url = reader.text(tcp, "url", &path).to_owned();
        let tls = present(tcp, "tlsConfig").map(|tls| {
            let path = path.child("tlsConfig");
            reader.check_fields(tls, &path, &["caBundle", "clientKey", "clientCert"]);
            let mut text = |field| reader.text(tls, field, &path).to_owned();
            RawTls { authority: text("caBundle"), key: text("clientKey"), certificate: text("clientCert") }
        });
        RawTcp { url, tls }
    });
    let uds = present(value, "uds").map(|uds| {
        let path = path.child("uds");
        reader.check_fields(uds, &path, &["udsName"]);
        reader.text(uds, "udsName", &path).to_owned()
    });
    RawTransport { tcp, uds }
}

fn validate(selections: Vec<RawSelection>) -> Result<Configuration, String> {
    let mut reader = FieldReader::default();
    // The path of every error, in the reference.
    let path = FieldPath::new("service").child("connection");
    for selection in &selections {
        validate_connection(&mut reader, selection, &path);
    }
    let mut seen: Vec<String> = Vec::new();
    for (index, selection) in selections.iter().enumerate() {
        let name = selection.name.to_lowercase();
        if seen.contains(&name) {
            reader.push_error(&FieldError::duplicate(&path.index(index), &quoted(&name)));
            continue;
        }
        if !NAMES.contains(&name.as_str()) {
            reader.push_error(&FieldError::not_supported(&path, &quoted(&name), &NAMES));
        }
        seen.push(name);
    }
    reader.result()?;
    let selections = selections.into_iter();
    Ok(Configuration { selections: selections.filter_map(selection).collect() })
}

/// A validated selection.
fn selection(raw: RawSelection) -> Option<(Egress, Connection)> {
    let egress = egress(&raw.name.to_lowercase())?;
    let transport = raw.transport.unwrap_or_default();
    let connection = match (raw.protocol.as_str(), transport.tcp, transport.uds) {
        ("GRPC", _, Some(path)) => Connection::GrpcOverUnix(path.into()),
        ("HTTPConnect", _, Some(path)) => Connection::HttpOverUnix(path.into()),
        ("HTTPConnect", Some(tcp), None) => {
            let tls = tcp.tls.map(|tls| TlsPaths {
                authority: Some(tls.authority).filter(|path| !path.is_empty()).map(Into::into),
                certificate: tls.certificate.into(),
                key: tls.key.into(),
            });
            Connection::HttpOverTcp(tcp.url, tls)
        }
        _ => Connection::Direct,
    };
    Some((egress, connection))
}

fn validate_connection(reader: &mut FieldReader, selection: &RawSelection, path: &FieldPath) {
    let transport_path = path.child("transport");
    let required = |protocol: &str| {
        FieldError::required(&transport_path, &format!("transport must be set for {protocol}"))
    };
    match (selection.protocol.as_str(), &selection.transport) {
        ("Direct", None) => {}
        ("Direct", Some(_)) => reader.push_error(&FieldError::invalid(
            &transport_path,
            "\"direct\"",
            "Transport config should be absent for direct connect",
        )),
        ("HTTPConnect" | "GRPC", None) => reader.push_error(&required(&selection.protocol)),
        ("HTTPConnect", Some(transport)) => validate_http_connect(reader, transport, path),
        ("GRPC", Some(RawTransport { uds: Some(socket), .. })) => validate_socket(reader, socket, path),
        ("GRPC", Some(_)) => {
            reader.push_error(&FieldError::required(&path.child("uds"), "UDS must be set with GRPC"));
        }
        (other, _) => {
            let path = path.child("protocol");
            reader.push_error(&FieldError::not_supported(&path, &quoted(other), &PROTOCOLS));
        }
    }
}

fn validate_http_connect(reader: &mut FieldReader, transport: &RawTransport, path: &FieldPath) {
    let tcp_path = path.child("tcp");
    match (&transport.tcp, &transport.uds) {
        (Some(tcp), Some(_)) => reader.push_error(&FieldError::invalid(
            &tcp_path,
            &quoted(&tcp.url),
            "TCP and UDS cannot both be set",
        )),
        (None, None) => {
            reader.push_error(&FieldError::required(&tcp_path, "One of TCP or UDS must be set"));
        }
        (Some(tcp), None) => validate_tcp(reader, tcp, path),
        (None, Some(socket)) => validate_socket(reader, socket, path),
    }
}

fn validate_socket(reader: &mut FieldReader, socket: &str, path: &FieldPath) {
    if socket.is_empty() {
        let path = path.child("udsName");
        let detail = "UDSName should be present for UDS connections";
        reader.push_error(&FieldError::invalid(&path, "\"nil\"", detail));
    }
}

fn validate_tcp(reader: &mut FieldReader, tcp: &RawTcp, path: &FieldPath) {
    let tls_path = path.child("tlsConfig");
    let is_https = tcp.url.starts_with("https://");
    if !is_https && !tcp.url.starts_with("http://") {
        let detail = "supported connection protocols are http:// and https://";
        return reader.push_error(&FieldError::invalid(&path.child("url"), &quoted(&tcp.url), detail));
    }
    match &tcp.tls {
        Some(tls) if is_https => validate_tls(reader, tls, &tls_path),
        None if is_https => {
            reader.push_error(&FieldError::required(&tls_path, "TLSConfig must be present when using HTTPS"));
        }
        Some(_) => {
            let detail = "TLSConfig config should not be present when using HTTP";
            reader.push_error(&FieldError::invalid(&tls_path, "\"nil\"", detail));
        }
        None => {}
    }
}

fn validate_tls(reader: &mut FieldReader, tls: &RawTls, path: &FieldPath) {
    let mut check = |field: &str, file: &str, absent: Option<&str>, missing: &str| {
        let path = path.child(field);
        match (file, absent) {
            ("", Some(detail)) => reader.push_error(&FieldError::invalid(&path, "\"nil\"", detail)),
            ("", None) => {}
            (file, _) if !Path::new(file).exists() => {
                reader.push_error(&FieldError::invalid(&path, &quoted(file), missing));
            }
            _ => {}
        }
    };
    check("caBundle", &tls.authority, None, "TLS config ca bundle does not exist");
    let absent = "Using TLS requires clientCert";
    check("clientCert", &tls.certificate, Some(absent), "TLS client cert does not exist");
    let absent = "Using TLS requires requires clientKey";
    check("clientKey", &tls.key, Some(absent), "TLS client key does not exist");
}

#[cfg(test)]
mod tests;
