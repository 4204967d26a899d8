//! `--authentication-config`: OpenID Connect providers with their claim mappings, and anonymous access. The `--oidc-*` flags are
//! a short form of it.

mod claims;

use std::collections::{BTreeMap, BTreeSet};

use openssl::x509::X509;
use pilothouse_admission::auth_expressions::Expression;
use pilothouse_admission::auth_expressions::claims::{Compiler, Rule};
use pilothouse_apimachinery::document::{FieldReader, present};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::value::Value;

use super::document;
use super::oidc::url_error;
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
    Expression(Expression),
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
    /// Parses a file and reports all errors. `own_issuers` are issuers of this server's own tokens, which a provider must not share.
    pub fn parse(text: &[u8], own_issuers: &[String]) -> Result<AuthenticationFile, String> {
        if text.is_empty() {
            return Err("empty config data".to_owned());
        }
        let file = document::read(text, AUTHENTICATION_FILE_BYTES, KIND, &VERSIONS)?;
        let mut parser = FileParser { own_issuers, ..FileParser::default() };
        let root = FieldPath::root();
        parser.reader.check_fields(&file, &root, &["apiVersion", "kind", "jwt", "anonymous"]);
        let path = FieldPath::new("jwt");
        let entries = parser.reader.list(&file, "jwt", &root);
        let jwt = if entries.len() > JWT_AUTHENTICATORS {
            parser.reader.push_error(&FieldError::too_many(&path, entries.len(), JWT_AUTHENTICATORS));
            Vec::new()
        } else {
            entries.iter().enumerate().map(|(index, entry)| parser.jwt(entry, &path.index(index))).collect()
        };
        let anonymous = present(&file, "anonymous").map(|value| parser.anonymous(value));
        parser.reader.result()?;
        Ok(AuthenticationFile { jwt, anonymous })
    }
}

/// The state of parsing a file.
#[derive(Default)]
struct FileParser<'a> {
    own_issuers: &'a [String],
    issuers: BTreeSet<String>,
    discoveries: BTreeSet<String>,
    compiler: Compiler,
    reader: FieldReader,
}

impl FileParser<'_> {
    fn jwt(&mut self, entry: &Value, path: &FieldPath) -> Jwt {
        self.reader.check_fields(
            entry,
            path,
            &["issuer", "claimValidationRules", "claimMappings", "userValidationRules"],
        );
        let empty = Value::object();
        let object_field = |field: &str| present(entry, field).unwrap_or(&empty);
        let mut jwt = Jwt::default();
        self.issuer(object_field("issuer"), &path.child("issuer"), &mut jwt);
        let verified = self.claim_rules(entry, path, &mut jwt);
        self.mappings(object_field("claimMappings"), &path.child("claimMappings"), verified, &mut jwt);
        self.user_rules(entry, path, &mut jwt);
        jwt
    }

    fn issuer(&mut self, value: &Value, path: &FieldPath, jwt: &mut Jwt) {
        let allowed = ["url", "discoveryURL", "certificateAuthority", "audiences", "audienceMatchPolicy"];
        self.reader.check_fields(value, path, &allowed);
        let (url, url_path) = (self.reader.text(value, "url", path).to_owned(), path.child("url"));
        if url.is_empty() {
            self.reader.push_error(&FieldError::required(&url_path, "URL is required"));
        } else if let Some(reason) = url_error(&url, self.own_issuers) {
            self.reader.push_error(&FieldError::invalid(&url_path, &quoted(&url), &reason));
        }
        if !self.issuers.insert(url.clone()) {
            self.reader.push_error(&FieldError::duplicate(&url_path, &quoted(&url)));
        }
        let discovery_path = path.child("discoveryURL");
        let discovery = self.reader.text(value, "discoveryURL", path).to_owned();
        if !discovery.is_empty() {
            if url.trim_end_matches('/') == discovery.trim_end_matches('/') {
                let reason = "discoveryURL must be different from URL";
                self.reader.push_error(&FieldError::invalid(&discovery_path, &quoted(&discovery), reason));
            }
            if let Some(reason) = url_error(&discovery, &[]) {
                self.reader.push_error(&FieldError::invalid(&discovery_path, &quoted(&discovery), &reason));
            }
            if !self.discoveries.insert(discovery.clone()) {
                self.reader.push_error(&FieldError::duplicate(&discovery_path, &quoted(&discovery)));
            }
            jwt.discovery = Some(discovery);
        }
        jwt.issuer = url;
        jwt.audiences = self.audiences(value, path);
        let pem = self.reader.text(value, "certificateAuthority", path);
        if !pem.is_empty() {
            if !X509::stack_from_pem(pem.as_bytes()).is_ok_and(|certificates| !certificates.is_empty()) {
                let reason = "data does not contain any valid RSA or ECDSA certificates";
                let ca_path = path.child("certificateAuthority");
                self.reader.push_error(&FieldError::invalid(&ca_path, "\"<omitted>\"", reason));
            }
            jwt.authority_pem = Some(pem.as_bytes().to_vec());
        }
    }

    fn audiences(&mut self, issuer: &Value, path: &FieldPath) -> Vec<String> {
        let list_path = path.child("audiences");
        let mut audiences = Vec::new();
        for (index, value) in self.reader.list(issuer, "audiences", path).iter().enumerate() {
            let (text, path) = (value.as_str().unwrap_or_default(), list_path.index(index));
            if text.is_empty() {
                self.reader.push_error(&FieldError::required(&path, "audience can't be empty"));
            } else if audiences.iter().any(|audience| audience == text) {
                self.reader.push_error(&FieldError::duplicate(&path, &quoted(text)));
            }
            audiences.push(text.to_owned());
        }
        let policy = self.reader.text(issuer, "audienceMatchPolicy", path);
        let reason = match audiences.len() {
            0 => {
                self.reader.push_error(&FieldError::required(
                    &list_path,
                    &format!("at least one {list_path} is required"),
                ));
                return audiences;
            }
            1 if policy.is_empty() || policy == MATCH_ANY => return audiences,
            1 => "audienceMatchPolicy must be empty or MatchAny for single audience",
            _ if policy == MATCH_ANY => return audiences,
            _ => "audienceMatchPolicy must be MatchAny for multiple audiences",
        };
        self.reader.push_error(&FieldError::invalid(
            &path.child("audienceMatchPolicy"),
            &quoted(policy),
            reason,
        ));
        audiences
    }

    fn anonymous(&mut self, value: &Value) -> Anonymous {
        let path = FieldPath::new("anonymous");
        self.reader.check_fields(value, &path, &["enabled", "conditions"]);
        let enabled = self.reader.boolean(value, "enabled", &path);
        let list_path = path.child("conditions");
        let mut paths = Vec::new();
        for (index, condition) in self.reader.list(value, "conditions", &path).iter().enumerate() {
            let path = list_path.index(index);
            self.reader.check_fields(condition, &path, &["path"]);
            paths.push(self.reader.text(condition, "path", &path).to_owned());
        }
        if !enabled && !paths.is_empty() {
            let reason = "enabled should be set to true when conditions are defined";
            self.reader.push_error(&FieldError::invalid(&list_path, &quoted(&paths.join(",")), reason));
        }
        Anonymous { enabled, paths }
    }
}

#[cfg(test)]
mod tests;
