//! That a server is alive, and its address, as it tells the other servers of one etcd.
//!
//! The record is an Endpoints object of the core group without a name, under a lease of etcd. The endpoints of the Service `kubernetes`
//! are the addresses of all such records. A server that renews its lease has to change the record, because the reference writes nothing
//! if nothing has changed: so the generation counts the renewals.

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::schema::GroupVersionKind;
use pilothouse_apimachinery::value::Value;

use crate::values::{ValueCodec, ValueError};

/// The label of a record with the id of its server.
const SERVER_LABEL: &str = "apiserverIdentity";
/// The name of the port at which other servers reach the server.
const PEER_PORT: &str = "https";

/// The record of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointLease {
    /// The address that the server advertises.
    pub address: String,
    /// How often the record was written.
    pub generation: i64,
    /// Its id and port, in a record for other servers.
    pub peer: Option<Peer>,
}

/// How other servers reach a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The id of the server.
    pub server: String,
    /// The port.
    pub port: u16,
}

fn kind() -> GroupVersionKind {
    GroupVersionKind::new("", "v1", "Endpoints")
}

impl EndpointLease {
    /// The first record of a server.
    pub fn new(address: &str, peer: Option<Peer>) -> EndpointLease {
        EndpointLease { address: address.to_owned(), generation: 1, peer }
    }

    /// The record that renews one that is stored.
    #[must_use]
    pub fn renewing(self, stored: &EndpointLease) -> EndpointLease {
        EndpointLease { generation: stored.generation.saturating_add(1), ..self }
    }

    /// The bytes of the record.
    pub fn encode(&self, codec: &ValueCodec) -> Result<Vec<u8>, ValueError> {
        let mut value = Value::object();
        let metadata = value.entry("metadata");
        metadata.set("generation", self.generation);
        if let Some(peer) = &self.peer {
            metadata.entry("labels").set(SERVER_LABEL, peer.server.as_str());
        }
        let (mut address, mut subset) = (Value::object(), Value::object());
        address.set("ip", self.address.as_str());
        subset.set("addresses", vec![address]);
        if let Some(peer) = &self.peer {
            let mut port = Value::object();
            port.set("name", PEER_PORT);
            port.set("port", i64::from(peer.port));
            port.set("protocol", "TCP");
            subset.set("ports", vec![port]);
        }
        value.set("subsets", vec![subset]);
        codec.encode_record(&kind(), value)
    }

    /// Reads the bytes of a record. `None` if it names no address: such a record counts for nothing.
    pub fn decode(codec: &ValueCodec, bytes: &[u8]) -> Result<Option<EndpointLease>, ValueError> {
        let value = codec.decode_record(&kind(), bytes)?;
        let items = |value: &Value, field: &str| value.get(field).map(|items| items.items().to_vec());
        let subset = items(&value, "subsets").and_then(|subsets| subsets.into_iter().next());
        let Some(subset) = subset else { return Ok(None) };
        let first = |field: &str| items(&subset, field).and_then(|items| items.into_iter().next());
        let address = first("addresses").map(|address| address.str("ip").to_owned());
        let Some(address) = address.filter(|address| !address.is_empty()) else { return Ok(None) };
        let metadata = meta::metadata(&value);
        let server = metadata.get_path(&["labels", SERVER_LABEL]).and_then(Value::as_str);
        let port = first("ports").and_then(|port| port.get("port").and_then(Value::as_int));
        let peer = server.zip(port.and_then(|port| u16::try_from(port).ok()));
        let peer = peer.map(|(server, port)| Peer { server: server.to_owned(), port });
        Ok(Some(EndpointLease { address, generation: meta::generation(&value), peer }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::MediaType;
    use crate::values::testing::codec;

    #[test]
    fn record_is_an_endpoints_object() {
        let json = codec(MediaType::Json);
        let text = |lease: &EndpointLease| String::from_utf8(lease.encode(&json).unwrap()).unwrap();
        let lease = EndpointLease::new("10.0.0.1", None);
        assert_eq!(
            text(&lease),
            concat!(
                r#"{"kind":"Endpoints","apiVersion":"v1","metadata":{"generation":1,"creationTimestamp":null},"#,
                r#""subsets":[{"addresses":[{"ip":"10.0.0.1"}]}]}"#,
                "\n"
            )
        );
        let peer = Peer { server: "apiserver-x".to_owned(), port: 6443 };
        assert_eq!(
            text(&EndpointLease::new("10.0.0.1", Some(peer))),
            concat!(
                r#"{"kind":"Endpoints","apiVersion":"v1","metadata":{"generation":1,"creationTimestamp":null,"#,
                r#""labels":{"apiserverIdentity":"apiserver-x"}},"subsets":[{"addresses":[{"ip":"10.0.0.1"}],"#,
                r#""ports":[{"name":"https","port":6443,"protocol":"TCP"}]}]}"#,
                "\n"
            )
        );
    }

    #[test]
    fn record_round_trips() {
        let peer = Peer { server: "apiserver-x".to_owned(), port: 6443 };
        for media in MediaType::ALL {
            let codec = codec(media);
            for peer in [None, Some(peer.clone())] {
                let lease = EndpointLease { address: "fd00::1".to_owned(), generation: 77, peer };
                let bytes = lease.encode(&codec).unwrap();
                assert_eq!(EndpointLease::decode(&codec, &bytes), Ok(Some(lease)));
            }
        }
    }

    #[test]
    fn renewal_changes_the_generation() {
        let stored = EndpointLease { generation: 41, ..EndpointLease::new("10.0.0.1", None) };
        assert_eq!(EndpointLease::new("10.0.0.1", None).renewing(&stored).generation, 42);
    }

    #[test]
    fn record_without_an_address_counts_for_nothing() {
        let codec = codec(MediaType::Json);
        for body in
            ["", r#","subsets":[]"#, r#","subsets":[{}]"#, r#","subsets":[{"addresses":[{"ip":""}]}]"#]
        {
            let text = format!(r#"{{"kind":"Endpoints","apiVersion":"v1"{body}}}"#);
            assert_eq!(EndpointLease::decode(&codec, text.as_bytes()), Ok(None), "{body}");
        }
        assert!(EndpointLease::decode(&codec, br#"{"kind":"Pod","apiVersion":"v1"}"#).is_err());
        assert!(EndpointLease::decode(&codec, b"").is_err());
    }
}
