//! The flags of external authenticators: the front proxy and the token webhook.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pilothouse_api::gates::REMOTE_REQUEST_HEADER_UID;

use super::FeatureGates;
use super::values::{go_duration, non_empty_list};

/// The flags of the authenticating front proxy.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Authenticating proxy")]
pub struct FrontProxy {
    /// CA bundle that verifies the client certificate of the proxy; identity headers are trusted only on such connections.
    #[arg(long, value_name = "FILE")]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Common names that the client certificate of the proxy may have [default: any].
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub requestheader_allowed_names: Vec<String>,
    /// Request headers to inspect for usernames; the first nonempty one is used. X-Remote-User is common.
    #[arg(long, value_delimiter = ',', value_name = "HEADER,...")]
    pub requestheader_username_headers: Vec<String>,
    /// Request headers to inspect for UIDs. X-Remote-Uid is suggested.
    #[arg(long, value_delimiter = ',', value_name = "HEADER,...")]
    pub requestheader_uid_headers: Vec<String>,
    /// Request headers to inspect for groups. X-Remote-Group is suggested.
    #[arg(long, value_delimiter = ',', value_name = "HEADER,...")]
    pub requestheader_group_headers: Vec<String>,
    /// Request header prefixes to inspect for extra attributes. X-Remote-Extra- is suggested.
    #[arg(long, value_delimiter = ',', value_name = "PREFIX,...")]
    pub requestheader_extra_headers_prefix: Vec<String>,
}

impl FrontProxy {
    /// Checks the flags.
    pub(super) fn validate(&self, gates: &FeatureGates) -> Result<(), String> {
        for (flag, values) in self.lists() {
            if values.iter().any(|value| value.trim().is_empty()) {
                return Err(format!("empty value in {flag:?}"));
            }
        }
        let uids = non_empty_list(&self.requestheader_uid_headers);
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

    /// Warnings about headers that aggregated API servers do not expect.
    pub(super) fn warnings(&self) -> Vec<String> {
        let standard = [
            ("requestheader-username-headers", "X-Remote-User"),
            ("requestheader-group-headers", "X-Remote-Group"),
            ("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
        ];
        let lists = self.lists();
        let flag_values = |flag: &str| lists.iter().find(|(name, _)| *name == flag).map(|(_, values)| values);
        let nonstandard = standard.into_iter().filter(|(flag, header)| {
            let has_header =
                |values: &Vec<String>| values.iter().any(|value| value.eq_ignore_ascii_case(header));
            flag_values(flag).is_some_and(|values| !values.is_empty() && !has_header(values))
        });
        nonstandard
            .map(|(flag, header)| {
                format!("--{flag} does not name {header}, which aggregated API servers use")
            })
            .collect()
    }

    /// The values of the list flags by flag name, for extension-apiserver-authentication.
    pub fn lists(&self) -> Vec<(&'static str, Vec<String>)> {
        [
            ("requestheader-allowed-names", &self.requestheader_allowed_names),
            ("requestheader-username-headers", &self.requestheader_username_headers),
            ("requestheader-uid-headers", &self.requestheader_uid_headers),
            ("requestheader-group-headers", &self.requestheader_group_headers),
            ("requestheader-extra-headers-prefix", &self.requestheader_extra_headers_prefix),
        ]
        .into_iter()
        .map(|(flag, values)| (flag, non_empty_list(values)))
        .collect()
    }

    /// The allowed common names; empty for all.
    pub fn allowed(&self) -> Vec<String> {
        non_empty_list(&self.requestheader_allowed_names)
    }
}

/// The flags of the token webhook.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Token webhook")]
pub struct TokenWebhook {
    /// Kubeconfig of the server that is queried about bearer tokens unknown to the other authenticators.
    #[arg(long, value_name = "FILE")]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// API version of the TokenReviews that are sent to it: v1 or v1beta1.
    #[arg(long, default_value = "v1beta1", value_parser = ["v1", "v1beta1"], value_name = "VERSION")]
    pub authentication_token_webhook_version: String,
    /// How long its responses are cached.
    #[arg(long, default_value = "2m0s", value_parser = go_duration, value_name = "DURATION")]
    pub authentication_token_webhook_cache_ttl: Duration,
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn parse(line: &str) -> Config {
        Config::parse(std::iter::once("pilothouse").chain(line.split_whitespace())).unwrap()
    }

    #[test]
    fn front_proxy_header_flags_are_validated() {
        for (line, expected) in [
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
            let error = parse(line).validate().err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expected), "{line}: {error}");
        }
        let standard = "--requestheader-client-ca-file=ca --requestheader-username-headers=X-Remote-User \
                     --requestheader-uid-headers=x-remote-uid,Y --requestheader-allowed-names=";
        let config = parse(standard);
        assert_eq!(config.validate(), Ok(()));
        assert!(config.front_proxy.allowed().is_empty());
        assert_eq!(
            parse("--requestheader-group-headers=X --requestheader-username-headers=Y").warnings.len(),
            2
        );
    }
}
