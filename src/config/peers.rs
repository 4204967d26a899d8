//! The flags about other API servers on the same etcd.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use pilothouse_api::gates::UNKNOWN_VERSION_INTEROPERABILITY_PROXY;

use super::{Aggregation, FeatureGates};

/// Requests that other API servers on the same etcd serve. The flags need the gate UnknownVersionInteroperabilityProxy.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Other API servers")]
pub struct Peers {
    /// CA bundle for the serving certificates of the other API servers; with it, requests for resources that this server does not serve
    /// are passed on to one that does. Needs --proxy-client-cert-file and --proxy-client-key-file.
    #[arg(long, value_name = "FILE")]
    pub peer_ca_file: Option<PathBuf>,
    /// IP address at which the other API servers reach this one; needs --peer-advertise-port [default: as in --advertise-address].
    #[arg(long, value_name = "IP")]
    pub peer_advertise_ip: Option<IpAddr>,
    /// Port at which they reach it; needs --peer-advertise-ip [default: --secure-port].
    #[arg(long, value_name = "PORT")]
    pub peer_advertise_port: Option<u16>,
}

impl Peers {
    /// Checks the flags.
    pub(super) fn validate(&self, gates: &FeatureGates, aggregation: &Aggregation) -> Result<(), String> {
        let gate = UNKNOWN_VERSION_INTEROPERABILITY_PROXY;
        if !gates.enabled(gate) {
            let given = [
                ("peer-ca-file", self.peer_ca_file.is_some()),
                ("peer-advertise-ip", self.peer_advertise_ip.is_some()),
                ("peer-advertise-port", self.peer_advertise_port.is_some()),
            ];
            let given = given.into_iter().find(|(_, is_given)| *is_given);
            return match given {
                Some((flag, _)) => Err(format!("--{flag} requires {gate} feature to be turned on")),
                None => Ok(()),
            };
        }
        if self.peer_ca_file.is_none() {
            return Ok(());
        }
        // Without the certificate, the other servers would take this one for the user.
        let needed = [
            ("proxy-cert-file", aggregation.proxy_client_cert_file.is_some()),
            ("proxy-key-file", aggregation.proxy_client_key_file.is_some()),
        ];
        match needed.into_iter().find(|(_, is_given)| !is_given) {
            Some((file, _)) => Err(format!("error building peer proxy handler, {file} not specified")),
            None => Ok(()),
        }
    }

    /// Where the other servers reach this one, if not at the address of everybody else. As in the reference, half of it does not count.
    pub fn advertised(&self) -> Option<(IpAddr, u16)> {
        self.peer_advertise_ip.zip(self.peer_advertise_port)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn error(flags: &[&str]) -> Option<String> {
        let arguments = ["pilothouse"].iter().chain(flags);
        let config = Config::parse(arguments).unwrap();
        config.validate().err().map(|error| error.to_string())
    }

    #[test]
    fn flags_about_peers_need_the_gate_and_a_proxy_certificate() {
        let off = |flag: &str| {
            Some(format!("--{flag} requires UnknownVersionInteroperabilityProxy feature to be turned on"))
        };
        assert_eq!(error(&["--peer-ca-file=ca"]), off("peer-ca-file"));
        assert_eq!(error(&["--peer-advertise-ip=10.0.0.1"]), off("peer-advertise-ip"));
        assert_eq!(error(&["--peer-advertise-port=1"]), off("peer-advertise-port"));
        let gate = "--feature-gates=UnknownVersionInteroperabilityProxy=true";
        assert_eq!(error(&[gate, "--peer-advertise-ip=10.0.0.1", "--peer-advertise-port=1"]), None);
        let lacks = |file: &str| Some(format!("error building peer proxy handler, {file} not specified"));
        let certificate = "--proxy-client-cert-file=c";
        assert_eq!(error(&[gate, "--peer-ca-file=ca"]), lacks("proxy-cert-file"));
        assert_eq!(error(&[gate, "--peer-ca-file=ca", certificate]), lacks("proxy-key-file"));
        assert_eq!(error(&[gate, "--peer-ca-file=ca", certificate, "--proxy-client-key-file=k"]), None);
    }

    #[test]
    fn half_an_advertised_address_does_not_count() {
        let advertised = |flags: &[&str]| {
            let config = Config::parse(["pilothouse"].iter().chain(flags)).unwrap();
            config.peers.advertised().map(|(address, port)| format!("{address} {port}"))
        };
        let [address, port] = ["--peer-advertise-ip=10.0.0.1", "--peer-advertise-port=7"];
        assert_eq!(advertised(&[address, port]).as_deref(), Some("10.0.0.1 7"));
        assert_eq!((advertised(&[address]), advertised(&[port])), (None, None));
    }
}
