//! `--authentication-config`: OpenID Connect providers with their claim mappings, and anonymous access. The `--oidc-*` flags are
//! a short form of it.

mod claims;

use std::collections::{BTreeMap, BTreeSet};

use openssl::x509::X509;
use pilothouse_admission::auth_expressions::Expression;
use pilothouse_admission::auth_expressions::claims::{Compiler, Rule};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::value::Value;

use super::document;
use super::oidc::wrong_with_url;
use crate::limits::{AUTHENTICATION_FILE_BYTES, JWT_AUTHENTICATORS};

const KIND: &str = "AuthenticationConfiguration";
const VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];
const MATCH_ANY: &str = "MatchAny";

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthenticationFile {
    /// The accepted providers.
    pub jwt: Vec<Jwt>,
    /// Anonymous access; `None` if the flag decides.
    pub anonymous: Option<Anonymous>,
}

/// A provider and its claim mappings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jwt {
    /// The `iss` of its tokens.
    pub issuer: String,
    /// The URL of the discovery document, if it does not follow from the issuer.
    pub discovery: Option<String>,
    /// The CA bundle as PEM; `None` for the CAs of the system.
    pub authority_pem: Option<Vec<u8>>,
    /// The accepted audiences: one is enough.
    pub audiences: Vec<String>,
    /// The source of the user name.
    pub username: Source,
    /// The source of the groups; `None` for no groups.
    pub groups: Option<Source>,
    /// The source of the UID; a claim without a prefix.
    pub uid: Option<Source>,
    /// The extra attributes by key.
    pub extra: Vec<(String, Expression)>,
    /// Required claims with their values.
    pub required: BTreeMap<String, String>,
    /// Validation rules for the claims.
    pub claim_rules: Vec<Rule>,
    /// Validation rules for the user.
    pub user_rules: Vec<Rule>,
}

/// The source of a user attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A claim.
    Claim(Mapping),
    /// A CEL expression over all claims.
    Made(Expression),
}

impl Default for Source {
    fn default() -> Source {
        Source::Claim(Mapping::default())
    }
}

/// A claim with a prefix for its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The name of the claim.
    pub claim: String,
    /// The prefix.
    pub prefix: String,
}

/// Anonymous access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Anonymous {
    /// Whether it is enabled.
    pub enabled: bool,
    /// The paths where it is allowed; empty for all.
    pub paths: Vec<String>,
}

impl AuthenticationFile {
    /// Parses a file and reports all errors. `others` are issuers of this server's own tokens, which a provider must not share.
    pub fn parse(text: &[u8], others: &[String]) -> Result<AuthenticationFile, String> {
        if text.is_empty() {
            return Err("empty config data".to_owned());
        }
        let file = document::read(text, AUTHENTICATION_FILE_BYTES, KIND, &VERSIONS)?;
        let mut found = Found { others, ..Found::default() };
        found.only(&file, &FieldPath::root(), &["apiVersion", "kind", "jwt", "anonymous"]);
        let path = FieldPath::new("jwt");
        let all = found.list(&file, "jwt", &path);
        let jwt = if all.len() > JWT_AUTHENTICATORS {
            found.wrong(&FieldError::too_many(&path, all.len(), JWT_AUTHENTICATORS));
            Vec::new()
        } else {
            all.iter().enumerate().map(|(at, one)| found.jwt(one, &path.index(at))).collect()
        };
        let anonymous = file.get("anonymous").filter(|value| !value.is_null());
        let anonymous = anonymous.map(|value| found.anonymous(value));
        match found.wrong.as_slice() {
            [] => Ok(AuthenticationFile { jwt, anonymous }),
            [one] => Err(one.clone()),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }
}

/// The state of parsing a file.
#[derive(Default)]
struct Found<'a> {
    others: &'a [String],
    issuers: BTreeSet<String>,
    discoveries: BTreeSet<String>,
    compiler: Compiler,
    wrong: Vec<String>,
}

impl Found<'_> {
    fn wrong(&mut self, error: &FieldError) {
        self.wrong.push(error.to_string());
    }

    fn only(&mut self, value: &Value, path: &FieldPath, known: &[&str]) {
        let Some(fields) = value.fields() else {
            return self.wrong.push(format!("{path}: must be an object"));
        };
        for name in fields.keys().filter(|name| !known.contains(&name.as_str())) {
            self.wrong.push(format!("unknown field {}", quoted(&path.child(name).to_string())));
        }
    }

    fn list<'v>(&mut self, value: &'v Value, field: &str, path: &FieldPath) -> &'v [Value] {
        match value.get(field) {
            None | Some(Value::Null) => &[],
            Some(Value::Array(all)) => all,
            Some(_) => {
                self.wrong.push(format!("{path}: must be a list"));
                &[]
            }
        }
    }

    /// A string; `None` if absent.
    fn maybe_text(&mut self, value: &Value, field: &str, path: &FieldPath) -> Option<String> {
        match value.get(field) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.to_string()),
            Some(_) => {
                self.wrong.push(format!("{}: must be a text", path.child(field)));
                None
            }
        }
    }

    fn text(&mut self, value: &Value, field: &str, path: &FieldPath) -> String {
        self.maybe_text(value, field, path).unwrap_or_default()
    }

    fn jwt(&mut self, one: &Value, path: &FieldPath) -> Jwt {
        self.only(one, path, &["issuer", "claimValidationRules", "claimMappings", "userValidationRules"]);
        let nothing = Value::object();
        let part = |field: &str| one.get(field).filter(|value| !value.is_null()).unwrap_or(&nothing);
        let mut jwt = Jwt::default();
        self.issuer(part("issuer"), &path.child("issuer"), &mut jwt);
        let verified = self.claim_rules(one, &path.child("claimValidationRules"), &mut jwt);
        self.mappings(part("claimMappings"), &path.child("claimMappings"), verified, &mut jwt);
        self.user_rules(one, &path.child("userValidationRules"), &mut jwt);
        jwt
    }

    fn issuer(&mut self, value: &Value, path: &FieldPath, jwt: &mut Jwt) {
        let known = ["url", "discoveryURL", "certificateAuthority", "audiences", "audienceMatchPolicy"];
        self.only(value, path, &known);
        let (url, at) = (self.text(value, "url", path), path.child("url"));
        if url.is_empty() {
            self.wrong(&FieldError::required(&at, "URL is required"));
        } else if let Some(why) = wrong_with_url(&url, self.others) {
            self.wrong(&FieldError::invalid(&at, &quoted(&url), &why));
        }
        if !self.issuers.insert(url.clone()) {
            self.wrong(&FieldError::duplicate(&at, &quoted(&url)));
        }
        let (discovery, at) = (self.text(value, "discoveryURL", path), path.child("discoveryURL"));
        if !discovery.is_empty() {
            if url.trim_end_matches('/') == discovery.trim_end_matches('/') {
                let why = "discoveryURL must be different from URL";
                self.wrong(&FieldError::invalid(&at, &quoted(&discovery), why));
            }
            if let Some(why) = wrong_with_url(&discovery, &[]) {
                self.wrong(&FieldError::invalid(&at, &quoted(&discovery), &why));
            }
            if !self.discoveries.insert(discovery.clone()) {
                self.wrong(&FieldError::duplicate(&at, &quoted(&discovery)));
            }
            jwt.discovery = Some(discovery);
        }
        jwt.issuer = url;
        jwt.audiences = self.audiences(value, path);
        let pem = self.text(value, "certificateAuthority", path);
        if !pem.is_empty() {
            if !X509::stack_from_pem(pem.as_bytes()).is_ok_and(|all| !all.is_empty()) {
                let why = "data does not contain any valid RSA or ECDSA certificates";
                let at = path.child("certificateAuthority");
                self.wrong(&FieldError::invalid(&at, "\"<omitted>\"", why));
            }
            jwt.authority_pem = Some(pem.into_bytes());
        }
    }

    fn audiences(&mut self, issuer: &Value, path: &FieldPath) -> Vec<String> {
        let at = path.child("audiences");
        let mut audiences = Vec::new();
        for (number, value) in self.list(issuer, "audiences", &at).iter().enumerate() {
            let (text, at) = (value.as_str().unwrap_or_default(), at.index(number));
            if text.is_empty() {
                self.wrong(&FieldError::required(&at, "audience can't be empty"));
            } else if audiences.iter().any(|known| known == text) {
                self.wrong(&FieldError::duplicate(&at, &quoted(text)));
            }
            audiences.push(text.to_owned());
        }
        let policy = self.text(issuer, "audienceMatchPolicy", path);
        let why = match audiences.len() {
            0 => {
                self.wrong(&FieldError::required(&at, &format!("at least one {at} is required")));
                return audiences;
            }
            1 if policy.is_empty() || policy == MATCH_ANY => return audiences,
            1 => "audienceMatchPolicy must be empty or MatchAny for single audience",
            _ if policy == MATCH_ANY => return audiences,
            _ => "audienceMatchPolicy must be MatchAny for multiple audiences",
        };
        self.wrong(&FieldError::invalid(&path.child("audienceMatchPolicy"), &quoted(&policy), why));
        audiences
    }

    fn anonymous(&mut self, value: &Value) -> Anonymous {
        let path = FieldPath::new("anonymous");
        self.only(value, &path, &["enabled", "conditions"]);
        let enabled = match value.get("enabled") {
            None | Some(Value::Null) => false,
            Some(value) => value.as_bool().unwrap_or_else(|| {
                self.wrong.push(format!("{}: must be true or false", path.child("enabled")));
                false
            }),
        };
        let at = path.child("conditions");
        let mut paths = Vec::new();
        for (number, condition) in self.list(value, "conditions", &at).iter().enumerate() {
            let at = at.index(number);
            self.only(condition, &at, &["path"]);
            paths.push(self.text(condition, "path", &at));
        }
        if !enabled && !paths.is_empty() {
            let why = "enabled should be set to true when conditions are defined";
            self.wrong(&FieldError::invalid(&at, &quoted(&paths.join(",")), why));
        }
        Anonymous { enabled, paths }
    }
}

#[cfg(test)]
mod tests;
