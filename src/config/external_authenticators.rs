//! Who else says who is asking: a proxy in front of this server, and another server that knows tokens.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pilothouse_api::gates::REMOTE_REQUEST_HEADER_UID;

use super::FeatureGates;
use super::values::go_duration;

/// A proxy that says in headers whom it asks for.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Authenticating proxy")]
pub struct FrontProxy {
    /// Certificate authorities of the proxy. Headers count only on connections with a certificate of theirs.
    #[arg(long, value_name = "FILE")]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Common names that the certificate of the proxy may have [default: any].
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub requestheader_allowed_names: Vec<String>,
    /// Headers that name the user; the first that says something counts. X-Remote-User is usual.
    #[arg(long, value_delimiter = ',', value_name = "HEADER,...")]
    pub requestheader_username_headers: Vec<String>,
    /// Headers that name the uid. X-Remote-Uid is usual.
    #[arg(long, value_delimiter = ',', value_name = "HEADER,...")]
    pub requestheader_uid_headers: Vec<String>,
    /// Headers that name groups. X-Remote-Group is usual.
    #[arg(long, value_delimiter = ',', value_name = "HEADER,...")]
    pub requestheader_group_headers: Vec<String>,
    /// What headers with further facts begin with. X-Remote-Extra- is usual.
    #[arg(long, value_delimiter = ',', value_name = "PREFIX,...")]
    pub requestheader_extra_headers_prefix: Vec<String>,
}

/// A list flag without an empty single entry.
pub fn listed(words: &[String]) -> Vec<String> {
    match words {
        [one] if one.is_empty() => Vec::new(),
        words => words.to_vec(),
    }
}

impl FrontProxy {
    /// Checks these settings.
    pub(super) fn validate(&self, gates: &FeatureGates) -> Result<(), String> {
        for (flag, words) in self.lists() {
            if words.iter().any(|word| word.trim().is_empty()) {
                return Err(format!("empty value in {flag:?}"));
            }
        }
        let uids = listed(&self.requestheader_uid_headers);
        if uids.is_empty() {
            return Ok(());
        }
        if !gates.enabled(REMOTE_REQUEST_HEADER_UID) {
            return Err(format!(
                "--requestheader-uid-headers requires the {REMOTE_REQUEST_HEADER_UID:?} feature to be enabled"
            ));
        }
        if !uids.iter().any(|header| header.eq_ignore_ascii_case("X-Remote-Uid")) {
            return Err("--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header - API \
                        aggregation will not work"
                .to_owned());
        }
        Ok(())
    }

    /// Remarks for the operator.
    pub(super) fn remarks(&self) -> Vec<String> {
        let usual = [
            ("requestheader-username-headers", "X-Remote-User"),
            ("requestheader-group-headers", "X-Remote-Group"),
            ("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
        ];
        let lists = self.lists();
        let given = |flag: &str| lists.iter().find(|(name, _)| *name == flag).map(|(_, words)| words);
        let odd = usual.into_iter().filter(|(flag, header)| {
            let has = |words: &Vec<String>| words.iter().any(|word| word.eq_ignore_ascii_case(header));
            given(flag).is_some_and(|words| !words.is_empty() && !has(words))
        });
        odd.map(|(flag, header)| format!("--{flag} does not name {header}, which extensions of this API use"))
            .collect()
    }

    /// The list settings by flag name, for extension-apiserver-authentication.
    pub fn lists(&self) -> Vec<(&'static str, Vec<String>)> {
        [
            ("requestheader-allowed-names", &self.requestheader_allowed_names),
            ("requestheader-username-headers", &self.requestheader_username_headers),
            ("requestheader-uid-headers", &self.requestheader_uid_headers),
            ("requestheader-group-headers", &self.requestheader_group_headers),
            ("requestheader-extra-headers-prefix", &self.requestheader_extra_headers_prefix),
        ]
        .into_iter()
        .map(|(flag, words)| (flag, listed(words)))
        .collect()
    }

    /// The allowed common names; empty for all.
    pub fn allowed(&self) -> Vec<String> {
        listed(&self.requestheader_allowed_names)
    }
}

/// Another server that knows tokens.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Token webhook")]
pub struct TokenWebhook {
    /// Kubeconfig that says which server is asked for tokens that nobody here knows.
    #[arg(long, value_name = "FILE")]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// Version of the reviews that are sent to it: v1 or v1beta1.
    #[arg(long, default_value = "v1beta1", value_parser = ["v1", "v1beta1"], value_name = "VERSION")]
    pub authentication_token_webhook_version: String,
    /// How long its answers are remembered.
    #[arg(long, default_value = "2m0s", value_parser = go_duration, value_name = "DURATION")]
    pub authentication_token_webhook_cache_ttl: Duration,
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn parsed(line: &str) -> Config {
        Config::parse(std::iter::once("pilothouse").chain(line.split_whitespace())).unwrap()
    }

    #[test]
    fn headers_of_proxies_are_checked() {
        for (line, part) in [
            (
                "--requestheader-username-headers=X-Remote-User,",
                "empty value in \"requestheader-username-headers\"",
            ),
            ("--requestheader-allowed-names=a,,b", "empty value in \"requestheader-allowed-names\""),
            ("--requestheader-uid-headers=X-Uid", "standard X-Remote-Uid"),
            (
                "--requestheader-uid-headers=X-Remote-Uid --feature-gates=RemoteRequestHeaderUID=false",
                "requires the \"RemoteRequestHeaderUID\" feature",
            ),
        ] {
            let said = parsed(line).validate().err().map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains(part), "{line}: {said}");
        }
        let usual = "--requestheader-client-ca-file=ca --requestheader-username-headers=X-Remote-User \
                     --requestheader-uid-headers=x-remote-uid,Y --requestheader-allowed-names=";
        let config = parsed(usual);
        assert_eq!(config.validate(), Ok(()));
        assert!(config.front_proxy.allowed().is_empty());
        assert_eq!(
            parsed("--requestheader-group-headers=X --requestheader-username-headers=Y").remarks.len(),
            2
        );
    }
}
