//! The flags of an OpenID Connect provider and of its claims.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use hyper::Uri;

/// The supported signature algorithms. `none` and shared secrets are not supported.
pub const SIGNING_ALGORITHMS: [&str; 9] =
    ["ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512"];

/// The default claim of the user name.
const DEFAULT_USERNAME_CLAIM: &str = "sub";
/// The default signature algorithm.
const DEFAULT_ALGORITHM: &str = "RS256";

/// The flags of an OpenID Connect provider.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "OpenID Connect")]
pub struct OpenId {
    /// URL of the OpenID issuer; only https. Needs --oidc-client-id.
    #[arg(long, value_name = "URL", conflicts_with = "authentication_config")]
    pub oidc_issuer_url: Option<String>,
    /// Client ID that all tokens must be issued for.
    #[arg(long, value_name = "ID", allow_hyphen_values = true, conflicts_with = "authentication_config")]
    pub oidc_client_id: Option<String>,
    /// CA bundle that verifies the provider [default: the CAs of the host].
    #[arg(long, value_name = "FILE", conflicts_with = "authentication_config")]
    pub oidc_ca_file: Option<PathBuf>,
    /// Claim of the user name [default: sub].
    #[arg(long, value_name = "CLAIM", allow_hyphen_values = true, conflicts_with = "authentication_config")]
    pub oidc_username_claim: Option<String>,
    /// Prefix of user names; - for none [default: the issuer and #, or none if the claim is email].
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "authentication_config")]
    pub oidc_username_prefix: Option<String>,
    /// Claim of the groups: a string or a list of strings.
    #[arg(long, value_name = "CLAIM", allow_hyphen_values = true, conflicts_with = "authentication_config")]
    pub oidc_groups_claim: Option<String>,
    /// Prefix of group names.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "authentication_config")]
    pub oidc_groups_prefix: Option<String>,
    /// Claim that tokens must have with this value; may be repeated.
    #[arg(
        long,
        value_name = "CLAIM=VALUE",
        value_parser = pair,
        allow_hyphen_values = true,
        conflicts_with = "authentication_config"
    )]
    pub oidc_required_claim: Vec<(String, String)>,
    /// Accepted signing algorithms: RS256, RS384, RS512, ES256, ES384, ES512, PS256, PS384, PS512 [default: RS256].
    #[arg(long, value_delimiter = ',', value_name = "NAME,...", conflicts_with = "authentication_config")]
    pub oidc_signing_algs: Vec<String>,
}

/// Parses a claim and its value.
fn pair(text: &str) -> Result<(String, String), String> {
    let (claim, value) = text.split_once('=').ok_or("malformed pair, expect string=string")?;
    Ok((claim.trim().to_owned(), value.trim().to_owned()))
}

/// A nonempty text.
fn nonempty(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

/// Why a provider URL is invalid. `own_issuers` are issuers of this server's own tokens, which a provider must not share.
pub(super) fn url_error(url: &str, own_issuers: &[String]) -> Option<String> {
    if own_issuers.iter().any(|issuer| issuer == url) {
        return Some(format!("URL must not overlap with disallowed issuers: [{}]", own_issuers.join(" ")));
    }
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let host = || url.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::is_empty));
    let reason = if !scheme.eq_ignore_ascii_case("https") {
        "URL scheme must be https"
    } else if rest.split(['/', '?', '#']).next().is_some_and(|authority| authority.contains('@')) {
        "URL must not contain a username or password"
    } else if rest.split('#').next().is_some_and(|before| before.contains('?')) {
        "URL must not contain a query"
    } else if rest.contains('#') {
        "URL must not contain a fragment"
    } else if host() != Some(false) {
        "URL has no host"
    } else {
        return None;
    };
    Some(reason.to_owned())
}

impl OpenId {
    /// The issuer and the client ID, if a provider is configured.
    pub fn issuer_and_client(&self) -> Option<(&str, &str)> {
        nonempty(self.oidc_issuer_url.as_ref()).zip(nonempty(self.oidc_client_id.as_ref()))
    }

    /// The claim of the user name.
    pub fn username_claim(&self) -> &str {
        self.oidc_username_claim.as_deref().unwrap_or(DEFAULT_USERNAME_CLAIM)
    }

    /// The prefix of user names. By default the issuer, so that providers cannot name each other's users. Email addresses are
    /// unique already.
    pub fn username_prefix(&self) -> String {
        match nonempty(self.oidc_username_prefix.as_ref()) {
            Some("-") => String::new(),
            Some(prefix) => prefix.to_owned(),
            None if self.username_claim() == "email" => String::new(),
            None => format!("{}#", self.oidc_issuer_url.as_deref().unwrap_or_default()),
        }
    }

    /// The claim of the groups.
    pub fn groups_claim(&self) -> Option<&str> {
        nonempty(self.oidc_groups_claim.as_ref())
    }

    /// The required claims; the later of two values wins.
    pub fn required_claims(&self) -> BTreeMap<String, String> {
        self.oidc_required_claim.iter().cloned().collect()
    }

    /// The accepted signature algorithms.
    pub fn signing_algorithms(&self) -> Vec<&str> {
        match self.oidc_signing_algs.as_slice() {
            [] => vec![DEFAULT_ALGORITHM],
            names => names.iter().map(String::as_str).collect(),
        }
    }

    /// Checks the flags. `own_issuers` are issuers of this server's own tokens, which a provider must not share.
    pub(super) fn validate(&self, own_issuers: &[String]) -> Result<(), String> {
        let Some((issuer, _)) = self.issuer_and_client() else {
            return match self.is_set() {
                true => Err("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set"
                    .to_owned()),
                false => Ok(()),
            };
        };
        if let Some(reason) = url_error(issuer, own_issuers) {
            return Err(format!("issuer.url: Invalid value: {issuer:?}: {reason}"));
        }
        if self.oidc_required_claim.iter().any(|(claim, _)| claim.is_empty()) {
            return Err("claimValidationRules[0]: Required value: claim or expression is required".to_owned());
        }
        if self.username_claim().is_empty() {
            return Err("claimMappings.username: Required value: claim or expression is required".to_owned());
        }
        match self.oidc_signing_algs.iter().find(|name| !SIGNING_ALGORITHMS.contains(&name.as_str())) {
            Some(name) => Err(format!("oidc: unsupported signing alg: {name:?}")),
            None => Ok(()),
        }
    }

    /// Whether any of the flags is set.
    fn is_set(&self) -> bool {
        let strings = [
            &self.oidc_issuer_url,
            &self.oidc_client_id,
            &self.oidc_username_claim,
            &self.oidc_username_prefix,
            &self.oidc_groups_claim,
            &self.oidc_groups_prefix,
        ];
        strings.iter().any(|value| value.is_some())
            || self.oidc_ca_file.is_some()
            || !self.oidc_required_claim.is_empty()
            || !self.oidc_signing_algs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    const BOTH: &str = "--oidc-issuer-url=https://login.example --oidc-client-id=c";

    fn parse(line: &str) -> Config {
        Config::parse(std::iter::once("pilothouse").chain(line.split_whitespace())).unwrap()
    }

    fn config_error(line: &str) -> String {
        let mut arguments = std::iter::once("pilothouse").chain(line.split_whitespace());
        match Config::parse(&mut arguments) {
            Ok(config) => config.validate().expect_err(line).to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn invalid_oidc_flags_are_refused() {
        let together = "oidc-issuer-url and oidc-client-id must be specified together";
        for (line, expected) in [
            ("--oidc-issuer-url=https://login.example", together),
            ("--oidc-client-id=c", together),
            ("--oidc-issuer-url=https://login.example --oidc-client-id=", together),
            ("--oidc-username-claim=sub", together),
            ("--oidc-groups-prefix=", together),
            ("--oidc-signing-algs=RS256", together),
            ("--oidc-ca-file=ca.pem", together),
        ] {
            assert!(config_error(line).contains(expected), "{line}: {}", config_error(line));
        }
        for (url, expected) in [
            ("http://login.example", "\"http://login.example\": URL scheme must be https"),
            ("login.example", "URL scheme must be https"),
            ("https://u:p@login.example/a", "URL must not contain a username or password"),
            ("https://login.example/?a=b", "URL must not contain a query"),
            ("https://login.example/#a?b", "URL must not contain a fragment"),
            ("https://", "no host"),
            ("https:///a", "no host"),
            ("https://kubernetes.default.svc", "disallowed issuers: [https://kubernetes.default.svc]"),
        ] {
            let error = config_error(&format!("--oidc-client-id=c --oidc-issuer-url={url}"));
            assert!(
                error.starts_with("issuer.url: Invalid value: ") && error.contains(expected),
                "{url}: {error}"
            );
        }
        for (flag, expected) in [
            ("--oidc-signing-algs=RS256,HS256", "oidc: unsupported signing alg: \"HS256\""),
            ("--oidc-signing-algs=none", "oidc: unsupported signing alg: \"none\""),
            ("--oidc-signing-algs=rs256", "oidc: unsupported signing alg: \"rs256\""),
            ("--oidc-username-claim=", "claimMappings.username: Required value"),
            ("--oidc-required-claim=hd", "malformed pair, expect string=string"),
            ("--oidc-required-claim==x", "claimValidationRules[0]: Required value"),
            ("--authentication-config=file", "cannot be used with"),
        ] {
            let error = config_error(&format!("{BOTH} {flag}"));
            assert!(error.contains(expected), "{flag}: {error}");
        }
        assert_eq!(parse(BOTH).validate(), Ok(()));
        assert_eq!(parse("").validate(), Ok(()));
        assert!(parse("").openid.issuer_and_client().is_none());
    }

    #[test]
    fn oidc_flag_defaults_match_kube_apiserver() {
        let openid = parse(BOTH).openid;
        assert_eq!(openid.issuer_and_client(), Some(("https://login.example", "c")));
        assert_eq!((openid.username_claim(), openid.groups_claim()), ("sub", None));
        assert_eq!(openid.signing_algorithms(), ["RS256"]);
        for (flags, prefix) in [
            ("", "https://login.example#"),
            ("--oidc-username-prefix=", "https://login.example#"),
            ("--oidc-username-claim=name", "https://login.example#"),
            ("--oidc-username-claim=email", ""),
            ("--oidc-username-claim=email --oidc-username-prefix=p:", "p:"),
            ("--oidc-username-prefix=p:", "p:"),
            ("--oidc-username-prefix=-", ""),
            ("--oidc-username-prefix -", ""),
            ("--oidc-username-prefix --", "--"),
        ] {
            assert_eq!(parse(&format!("{BOTH} {flags}")).openid.username_prefix(), prefix, "{flags}");
        }
    }

    #[test]
    fn oidc_claims_and_algorithms_may_be_repeated() {
        let openid = parse(&format!(
            "{BOTH} --oidc-required-claim=a=1 --oidc-required-claim=b=x,y=z --oidc-required-claim a=2 \
             --oidc-signing-algs=ES512,PS384 --oidc-signing-algs RS256"
        ))
        .openid;
        let claims: Vec<_> = openid.required_claims().into_iter().collect();
        assert_eq!(claims, [("a".to_owned(), "2".to_owned()), ("b".to_owned(), "x,y=z".to_owned())]);
        assert_eq!(openid.signing_algorithms(), ["ES512", "PS384", "RS256"]);
    }
}
