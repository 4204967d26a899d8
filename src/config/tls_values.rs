//! Values of TLS flags: SNI certificates and Strict-Transport-Security.

use std::path::PathBuf;
use std::str::FromStr;

/// An SNI certificate: `certificate,key` or `certificate,key:name,name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCertificate {
    /// The file of the certificate, followed by its intermediates.
    pub certificate: PathBuf,
    /// The file of its key.
    pub key: PathBuf,
    /// The names it is for; empty for those in the certificate.
    pub names: Vec<String>,
}

impl FromStr for NamedCertificate {
    type Err = String;

    fn from_str(text: &str) -> Result<NamedCertificate, String> {
        let (files, names) = match text.split_once(':') {
            Some((files, names)) => (files, Some(names.trim())),
            None => (text, None),
        };
        if names == Some("") {
            return Err("there is no name after the colon".to_owned());
        }
        let names = names.into_iter().flat_map(|names| names.split(',')).map(|name| name.trim().to_owned());
        let Some((certificate, key)) = files.split_once(',').filter(|(_, key)| !key.contains(',')) else {
            return Err("must be CERT,KEY or CERT,KEY:NAME,...".to_owned());
        };
        Ok(NamedCertificate {
            certificate: certificate.trim().into(),
            key: key.trim().into(),
            names: names.collect(),
        })
    }
}

/// One directive of Strict-Transport-Security (RFC 6797).
pub fn transport_directive(text: &str) -> Result<String, String> {
    let is_age = |text: &str| {
        let seconds = text.strip_prefix("max-age=");
        seconds.is_some_and(|age| !age.is_empty() && age.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if matches!(text, "includeSubDomains" | "preload") || is_age(text) {
        return Ok(text.to_owned());
    }
    Err("must be max-age=SECONDS, includeSubDomains or preload".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sni_certificate_flag_is_parsed() {
        let parsed: NamedCertificate = " a.crt , a.key : one.example.com, *.two".parse().unwrap();
        assert_eq!((parsed.certificate, parsed.key), ("a.crt".into(), "a.key".into()));
        assert_eq!(parsed.names, ["one.example.com", "*.two"]);
        assert!("a.crt,a.key".parse::<NamedCertificate>().unwrap().names.is_empty());
        for invalid in ["", "a.crt", "a.crt,a.key:", "a.crt,a.key,more", "a.crt:name"] {
            assert!(invalid.parse::<NamedCertificate>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn strict_transport_security_directives_are_validated() {
        for valid in ["max-age=31536000", "includeSubDomains", "preload"] {
            assert_eq!(transport_directive(valid).as_deref(), Ok(valid));
        }
        for invalid in ["", "max-age", "max-age=", "max-age=a", "max-age=1;x", "includesubdomains", "other"] {
            assert!(transport_directive(invalid).is_err(), "{invalid}");
        }
    }
}
