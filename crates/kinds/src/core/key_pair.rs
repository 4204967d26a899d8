//! Checks that the certificate and key of a TLS Secret look like a pair. Only the PEM armor is examined, not the contents.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The next PEM block: its type, and the rest of the text. Incomplete blocks are skipped.
fn next_block(mut text: &str) -> Option<(&str, &str)> {
    loop {
        let start = match text.strip_prefix("-----BEGIN ") {
            Some(rest) => rest,
            None => text.get(text.find("\n-----BEGIN ")? + "\n-----BEGIN ".len()..)?,
        };
        text = start;
        let Some((line, rest)) = start.split_once('\n') else { continue };
        let Some(kind) = line.trim_end().strip_suffix("-----") else { continue };
        let end = format!("-----END {kind}-----");
        let (body, after) = if let Some(after) = rest.strip_prefix(&end) {
            ("", after)
        } else {
            // A body never contains the beginning of another block. Searching beyond it would be quadratic.
            let limit = rest.find("\n-----BEGIN ").unwrap_or(rest.len());
            let Some(end_index) = rest.get(..limit).and_then(|near| near.find(&format!("\n{end}"))) else {
                continue;
            };
            (
                rest.get(..end_index).unwrap_or_default(),
                rest.get(end_index + 1 + end.len()..).unwrap_or_default(),
            )
        };
        // Headers end with an empty line.
        let body = body
            .split_once("\n\n")
            .filter(|(headers, _)| headers.contains(':'))
            .map_or(body, |(_, body)| body);
        let packed: String = body.split_ascii_whitespace().collect();
        if STANDARD.decode(packed).is_ok() {
            return Some((kind, after));
        }
    }
}

/// The types of all PEM blocks.
fn block_types(text: &str) -> Vec<&str> {
    let mut kinds = Vec::new();
    let mut rest = text;
    while let Some((kind, after)) = next_block(rest) {
        kinds.push(kind);
        rest = after;
    }
    kinds
}

/// The error of Go's `tls.X509KeyPair` for a certificate and key.
pub fn mismatch(certificate: &str, key: &str) -> Option<String> {
    let types = block_types(certificate);
    if !types.contains(&"CERTIFICATE") {
        return Some(match types.as_slice() {
            [] => "tls: failed to find any PEM data in certificate input".to_owned(),
            [only] if only.ends_with("PRIVATE KEY") => {
                "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs \
                 may have been switched"
                    .to_owned()
            }
            types => format!(
                "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the \
                 following types: [{}]",
                types.join(" ")
            ),
        });
    }
    let types = block_types(key);
    if types.iter().any(|kind| *kind == "PRIVATE KEY" || kind.ends_with(" PRIVATE KEY")) {
        return None;
    }
    Some(match types.as_slice() {
        [] => "tls: failed to find any PEM data in key input".to_owned(),
        ["CERTIFICATE"] => {
            "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
        }
        types => format!(
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks \
             of the following types: [{}]",
            types.join(" ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mismatch_reports_go_tls_errors() {
        let block = |kind: &str| format!("-----BEGIN {kind}-----\nAAAA\n-----END {kind}-----\n");
        let (certificate, key) = (block("CERTIFICATE"), block("EC PRIVATE KEY"));
        let table = [
            (certificate.clone(), key.clone(), ""),
            (format!("x\n{}{certificate}", block("X")), format!("{}{key}", block("EC PARAMETERS")), ""),
            ("x".into(), key.clone(), "tls: failed to find any PEM data in certificate input"),
            (
                "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----".into(),
                key.clone(),
                "certificate input",
            ),
            (key.clone(), key.clone(), "PEM inputs may have been switched"),
            (block("X"), key, "of the following types: [X]"),
            (certificate.clone(), String::new(), "tls: failed to find any PEM data in key input"),
            (certificate.clone(), certificate.clone(), "found a certificate rather than a key"),
            (certificate, block("X"), "in key input after skipping PEM blocks of the following types: [X]"),
        ];
        for (certificate, key, expected) in table {
            let error = mismatch(&certificate, &key);
            assert_eq!(error.is_none(), expected.is_empty(), "{certificate} {key}: {error:?}");
            assert!(
                error.unwrap_or_default().ends_with(expected) || expected.starts_with("found"),
                "{expected}"
            );
        }
    }
}
