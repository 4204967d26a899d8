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
        let (body, behind) = if let Some(behind) = rest.strip_prefix(&end) {
            ("", behind)
        } else {
            // A body never contains the beginning of another block. Searching beyond it would be quadratic.
            let until = rest.find("\n-----BEGIN ").unwrap_or(rest.len());
            let Some(at) = rest.get(..until).and_then(|near| near.find(&format!("\n{end}"))) else {
                continue;
            };
            (rest.get(..at).unwrap_or_default(), rest.get(at + 1 + end.len()..).unwrap_or_default())
        };
        // Headers end with an empty line.
        let body = body
            .split_once("\n\n")
            .filter(|(headers, _)| headers.contains(':'))
            .map_or(body, |(_, body)| body);
        let packed: String = body.split_ascii_whitespace().collect();
        if STANDARD.decode(packed).is_ok() {
            return Some((kind, behind));
        }
    }
}

/// The types of all blocks.
fn kinds(text: &str) -> Vec<&str> {
    let mut kinds = Vec::new();
    let mut rest = text;
    while let Some((kind, behind)) = next_block(rest) {
        kinds.push(kind);
        rest = behind;
    }
    kinds
}

/// The reference's error about a certificate and key.
pub fn complaint(certificate: &str, key: &str) -> Option<String> {
    let found = kinds(certificate);
    if !found.contains(&"CERTIFICATE") {
        return Some(match found.as_slice() {
            [] => "tls: failed to find any PEM data in certificate input".to_owned(),
            [only] if only.ends_with("PRIVATE KEY") => {
                "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs \
                 may have been switched"
                    .to_owned()
            }
            all => format!(
                "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the \
                 following types: [{}]",
                all.join(" ")
            ),
        });
    }
    let found = kinds(key);
    if found.iter().any(|kind| *kind == "PRIVATE KEY" || kind.ends_with(" PRIVATE KEY")) {
        return None;
    }
    Some(match found.as_slice() {
        [] => "tls: failed to find any PEM data in key input".to_owned(),
        ["CERTIFICATE"] => {
            "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
        }
        all => format!(
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks \
             of the following types: [{}]",
            all.join(" ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_pair_is_told_apart() {
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
        for (certificate, key, wanted) in table {
            let found = complaint(&certificate, &key);
            assert_eq!(found.is_none(), wanted.is_empty(), "{certificate} {key}: {found:?}");
            assert!(found.unwrap_or_default().ends_with(wanted) || wanted.starts_with("found"), "{wanted}");
        }
    }
}
