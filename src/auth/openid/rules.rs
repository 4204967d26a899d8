//! Maps claims to users, without clock, keys or network.

use std::collections::BTreeMap;

use pilothouse_admission::auth_expressions::Expression;
use pilothouse_admission::auth_expressions::claims::{ExpressionError, Rule, check_claims, check_user};
use pilothouse_admission::policies::request::user;
use pilothouse_apimachinery::value::Value as CelValue;
use pilothouse_apimachinery::well_known::CREDENTIAL_ID;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::identity::Identity;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use super::distributed::ClaimSource;
use crate::auth::jwt::{Algorithm, Token};
use crate::config::OpenId;
use crate::config::authentication_file::{Jwt, Mapping, Source};
use crate::limits::TOKEN_LEEWAY;

/// An issuer with two names.
const GOOGLE: (&str, &str) = ("accounts.google.com", "https://accounts.google.com");

/// The claims of a token. Before the signature is verified they may only be used to choose a verifier.
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    /// `None` if the payload is not an object.
    pub(super) fn parse(token: &Token<'_>) -> Option<Claims> {
        token.claims().map(Claims)
    }

    /// The `iss` claim.
    pub(super) fn issuer(&self) -> &str {
        self.get("iss").and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn get(&self, claim: &str) -> Option<&Value> {
        self.0.get(claim)
    }

    /// Adds a claim that was elsewhere.
    pub(super) fn insert(&mut self, claim: String, value: Value) {
        self.0.insert(claim, value);
    }

    /// A required string claim.
    fn text(&self, claim: &str) -> Result<&str, &'static str> {
        self.get(claim).ok_or("claim not present")?.as_str().ok_or("claim is not a string")
    }

    /// All claims as a CEL value.
    fn cel_value(&self) -> CelValue {
        CelValue::Object(self.0.iter().map(|(claim, value)| (claim.clone(), cel_value(value))).collect())
    }

    /// Seconds since the epoch; `None` if the claim is absent.
    fn seconds(&self, claim: &str) -> Result<Option<i64>, String> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a cast of a double stops at the ends of the range"
        )]
        let truncate = |seconds: f64| seconds as i64;
        let Some(value) = self.get(claim) else { return Ok(None) };
        let seconds = value.as_i64().or_else(|| value.as_f64().map(truncate));
        seconds.map(Some).ok_or_else(|| format!("oidc: failed to unmarshal claims: {claim} is not a time"))
    }

    /// The distributed and aggregated claims, whose values are not in the token: their names, and where they are.
    fn distributed_claims(&self) -> Result<BTreeMap<&str, ClaimSource>, &'static str> {
        let malformed = "oidc: failed to unmarshal claims: _claim_sources";
        let sources = match self.get("_claim_sources") {
            None | Some(Value::Null) => BTreeMap::new(),
            Some(sources) => BTreeMap::<String, Value>::deserialize(sources).map_err(|_| malformed)?,
        };
        let names = match self.get("_claim_names") {
            None | Some(Value::Null) => return Ok(BTreeMap::new()),
            Some(names) => names.as_object().ok_or("oidc: failed to unmarshal claims: _claim_names")?,
        };
        let mut located = BTreeMap::new();
        for (name, source) in names {
            let source = source.as_str().filter(|source| !source.is_empty());
            let source = source.ok_or("oidc: failed to obtain source from claim name")?;
            let source = sources.get(source).ok_or("oidc: source does not exist")?;
            located.insert(name.as_str(), ClaimSource::deserialize(source).map_err(|_| malformed)?);
        }
        Ok(located)
    }
}

/// A claim as a CEL value. The parser of the token has bounded its depth.
fn cel_value(value: &Value) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(boolean) => CelValue::Bool(*boolean),
        Value::Number(number) => number
            .as_i64()
            .map_or_else(|| CelValue::Float(number.as_f64().unwrap_or_default()), CelValue::Int),
        Value::String(text) => CelValue::String(text.clone()),
        Value::Array(items) => CelValue::Array(items.iter().map(cel_value).collect()),
        Value::Object(fields) => {
            CelValue::Object(fields.iter().map(|(key, value)| (key.clone(), cel_value(value))).collect())
        }
    }
}

/// A string, or a list of strings.
fn strings(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(text) => Some(vec![text]),
        Value::Array(items) => items.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

/// The accepted issuer, and the mapping of its claims.
#[derive(Clone, Debug)]
pub struct ClaimMapping {
    /// The `iss` of its tokens.
    pub issuer: String,
    /// The accepted signature algorithms.
    pub algorithms: Vec<Algorithm>,
    /// The URL of the discovery document, if it does not follow from the issuer.
    pub discovery: Option<String>,
    /// The accepted audiences: one is enough.
    audiences: Vec<String>,
    username: Source,
    groups: Option<Source>,
    /// The source of the user's UID.
    uid: Option<Source>,
    /// The user's extra attributes.
    extra: Vec<(String, Expression)>,
    /// Required claims with their values.
    required: BTreeMap<String, String>,
    /// Validation rules for the claims and for the resulting user.
    claim_rules: Vec<Rule>,
    user_rules: Vec<Rule>,
}

impl ClaimMapping {
    /// The mapping of the flags; `None` if they name no provider.
    pub fn new(flags: &OpenId) -> Option<ClaimMapping> {
        let (issuer, client) = flags.issuer_and_client()?;
        let claim = |name: &str, prefix| Source::Claim(Mapping { claim: name.to_owned(), prefix });
        Some(ClaimMapping {
            issuer: issuer.to_owned(),
            algorithms: flags.signing_algorithms().into_iter().filter_map(Algorithm::from_name).collect(),
            discovery: None,
            audiences: vec![client.to_owned()],
            username: claim(flags.username_claim(), flags.username_prefix()),
            groups: flags
                .groups_claim()
                .map(|name| claim(name, flags.oidc_groups_prefix.clone().unwrap_or_default())),
            uid: None,
            extra: Vec::new(),
            required: flags.required_claims(),
            claim_rules: Vec::new(),
            user_rules: Vec::new(),
        })
    }

    /// The mapping of one provider in a file. All supported algorithms are accepted.
    pub fn from_jwt(jwt: &Jwt) -> ClaimMapping {
        ClaimMapping {
            issuer: jwt.issuer.clone(),
            algorithms: Algorithm::ALL.to_vec(),
            discovery: jwt.discovery.clone(),
            audiences: jwt.audiences.clone(),
            username: jwt.username.clone(),
            groups: jwt.groups.clone(),
            uid: jwt.uid.clone(),
            extra: jwt.extra.clone(),
            required: jwt.required.clone(),
            claim_rules: jwt.claim_rules.clone(),
            user_rules: jwt.user_rules.clone(),
        }
    }

    /// The mapping for an issuer of distributed claims: the same audiences and algorithms count.
    pub(super) fn for_issuer(&self, issuer: &str) -> ClaimMapping {
        ClaimMapping { issuer: issuer.to_owned(), discovery: None, ..self.clone() }
    }

    /// Whether tokens with this `iss` belong to this provider.
    pub(super) fn is_issuer(&self, issuer: &str) -> bool {
        issuer == self.issuer || (issuer, self.issuer.as_str()) == GOOGLE
    }

    /// Whether a token belongs to this provider. Other tokens are left to other verifiers.
    pub(super) fn applies_to(&self, claims: &Claims) -> bool {
        self.is_issuer(claims.issuer())
    }

    /// Checks a token before its signature. Returns its expiry.
    pub(super) fn check(
        &self,
        token: &Token<'_>,
        claims: &Claims,
        now: Timestamp,
    ) -> Result<Timestamp, String> {
        for claim in ["sub", "nonce", "at_hash"] {
            if !matches!(claims.get(claim), None | Some(Value::Null | Value::String(_))) {
                return Err(format!("oidc: failed to unmarshal claims: {claim} is not a string"));
            }
        }
        claims.seconds("iat")?;
        let (expires, not_before) = (claims.seconds("exp")?, claims.seconds("nbf")?);
        claims.distributed_claims()?;
        let audiences = match claims.get("aud") {
            None | Some(Value::Null) => Vec::new(),
            Some(value) => strings(value).ok_or("oidc: failed to unmarshal claims: aud")?,
        };
        if !self.audiences.iter().any(|accepted| audiences.contains(&accepted.as_str())) {
            let got = format_list(&audiences);
            return Err(match self.audiences.as_slice() {
                [audience] => format!("oidc: expected audience {audience:?} got {got}"),
                several => format!("oidc: expected audience in {} got {got}", format_list(several)),
            });
        }
        // A token without expiry counts as expired.
        let expires = Timestamp::from_unix(expires.unwrap_or_default());
        if expires < now {
            return Err("oidc: token is expired".to_owned());
        }
        if not_before.is_some_and(|start| now.plus(TOKEN_LEEWAY) < Timestamp::from_unix(start)) {
            return Err("oidc: current time before the nbf (not before) time".to_owned());
        }
        match token.algorithm.filter(|algorithm| self.algorithms.contains(algorithm)) {
            Some(_) => Ok(expires),
            None => {
                let expected: Vec<_> = self.algorithms.iter().map(|algorithm| algorithm.name()).collect();
                Err(format!("oidc: id token signed with unsupported algorithm, expected {expected:?}"))
            }
        }
    }

    /// The user of a token with a valid signature.
    pub(super) fn identity(&self, claims: &Claims) -> Result<Identity, String> {
        let cel_value = if self.uses_expressions() { claims.cel_value() } else { CelValue::Null };
        let name = self.username(claims, &cel_value)?;
        let groups = self.groups(claims, &cel_value)?;
        let uid = self.uid(claims, &cel_value)?;
        let extra = self.extra(claims, &cel_value)?;
        for (claim, required) in &self.required {
            match claims.text(claim) {
                Ok(value) if value == required => {}
                Ok(_) => return Err(format!("oidc: required claim {claim} value does not match")),
                Err(_) if claims.get(claim).is_none() => {
                    return Err(format!("oidc: required claim {claim} not present in ID token"));
                }
                Err(reason) => return Err(format!("oidc: parse claim {claim}: {reason}")),
            }
        }
        check_claims(&self.claim_rules, &cel_value)
            .map_err(|reason| format!("oidc: error evaluating claim validation expression: {reason}"))?;
        let identity = Identity { name, uid, groups, extra };
        if !self.user_rules.is_empty() {
            check_user(&self.user_rules, &complete_user(&identity))
                .map_err(|reason| format!("oidc: error evaluating user info validation rule: {reason}"))?;
        }
        Ok(identity)
    }

    /// Whether any expression needs the claims.
    fn uses_expressions(&self) -> bool {
        let sources = [Some(&self.username), self.groups.as_ref(), self.uid.as_ref()];
        sources.into_iter().flatten().any(|source| matches!(source, Source::Expression(_)))
            || !self.extra.is_empty()
            || !self.claim_rules.is_empty()
    }

    /// The name of the groups claim and where it is, if it is mapped and not in the token. Only groups may be elsewhere. A claim
    /// that cannot be fetched refuses the token: if such a user were accepted without groups, rules against a group would not apply.
    pub(super) fn distributed_groups(
        &self,
        claims: &Claims,
    ) -> Result<Option<(String, ClaimSource)>, String> {
        let Some(Source::Claim(Mapping { claim, .. })) = &self.groups else { return Ok(None) };
        if claims.get(claim).is_some() {
            return Ok(None);
        }
        let Some(source) = claims.distributed_claims()?.remove(claim.as_str()) else { return Ok(None) };
        match source.endpoint.as_deref() {
            None | Some("") => Err(format!("{claim:?} has no endpoint; aggregated claims are not supported")),
            Some(_) => Ok(Some((claim.clone(), source))),
        }
    }

    fn username(&self, claims: &Claims, cel_value: &CelValue) -> Result<String, String> {
        let Mapping { claim, prefix } = match &self.username {
            Source::Claim(mapping) => mapping,
            Source::Expression(expression) => {
                let name = evaluate_text(expression, cel_value, "username")?;
                return match name.as_str() {
                    "" => Err("oidc: empty username via CEL expression is not allowed".to_owned()),
                    _ => Ok(name),
                };
            }
        };
        let name = claims.text(claim).and_then(|name| match name {
            // A prefix alone would be a user name that all such tokens share.
            "" => Err("claim is empty"),
            name => Ok(name),
        });
        let name = name.map_err(|reason| format!("oidc: parse username claims {claim:?}: {reason}"))?;
        if claim == "email" {
            match claims.get("email_verified") {
                None | Some(Value::Bool(true)) => {}
                Some(Value::Bool(false)) => return Err("oidc: email not verified".to_owned()),
                Some(_) => return Err("oidc: parse 'email_verified' claim: not a boolean".to_owned()),
            }
        }
        Ok(format!("{prefix}{name}"))
    }

    fn uid(&self, claims: &Claims, cel_value: &CelValue) -> Result<String, String> {
        let claim = match &self.uid {
            None => return Ok(String::new()),
            Some(Source::Claim(mapping)) => &mapping.claim,
            Some(Source::Expression(expression)) => return evaluate_text(expression, cel_value, "uid"),
        };
        let uid =
            claims.text(claim).map_err(|reason| format!("oidc: parse uid claim {claim:?}: {reason}"))?;
        Ok(uid.to_owned())
    }

    fn groups(&self, claims: &Claims, cel_value: &CelValue) -> Result<Vec<String>, String> {
        let Mapping { claim, prefix } = match &self.groups {
            None => return Ok(Vec::new()),
            Some(Source::Claim(mapping)) => mapping,
            Some(Source::Expression(expression)) => {
                return expression.evaluate_strings(cel_value).map_err(
                    |(ExpressionError::Failed(reason) | ExpressionError::NotStrings(reason))| {
                        format!("oidc: error evaluating group claim expression: {reason}")
                    },
                );
            }
        };
        let groups = match claims.get(claim) {
            None | Some(Value::Null) => Vec::new(),
            Some(value) => strings(value).ok_or_else(|| {
                format!("oidc: parse groups claim {claim:?}: neither a string nor a list of strings")
            })?,
        };
        Ok(groups.into_iter().map(|group| format!("{prefix}{group}")).collect())
    }

    fn extra(&self, claims: &Claims, cel_value: &CelValue) -> Result<BTreeMap<String, Vec<String>>, String> {
        let id = claims.text("jti").ok().filter(|id| !id.is_empty());
        let id = id.map(|id| (CREDENTIAL_ID.to_owned(), vec![format!("JTI={id}")]));
        let mut extra: BTreeMap<_, _> = id.into_iter().collect();
        for (key, expression) in &self.extra {
            let values = expression.evaluate_strings(cel_value).map_err(|error| match error {
                ExpressionError::Failed(reason) => reason,
                ExpressionError::NotStrings(reason) => {
                    let text = expression.text();
                    format!("oidc: error evaluating extra claim expression: {text}: {reason}")
                }
            })?;
            if !values.is_empty() {
                extra.insert(key.clone(), values);
            }
        }
        Ok(extra)
    }
}

/// Evaluates an expression on the claims to a string, for a field of the user.
fn evaluate_text(expression: &Expression, cel_value: &CelValue, field: &str) -> Result<String, String> {
    let describe = |reason: String| format!("oidc: error evaluating {field} claim expression: {reason}");
    let text = expression.evaluate_string(cel_value).map_err(describe)?;
    text.ok_or_else(|| describe(format!("{field} claim expression must return a string")))
}

/// The user with all fields, including empty ones, so that rules need not check their presence.
fn complete_user(identity: &Identity) -> CelValue {
    let mut user_value = user(identity);
    for field in ["username", "uid"] {
        if user_value.get(field).is_none() {
            user_value.set(field, "");
        }
    }
    if user_value.get("groups").is_none() {
        user_value.set("groups", CelValue::array());
    }
    if user_value.get("extra").is_none() {
        user_value.set("extra", CelValue::object());
    }
    user_value
}

/// Strings in Go's list format.
fn format_list(strings: &[impl AsRef<str>]) -> String {
    let quoted: Vec<String> = strings.iter().map(|text| format!("{:?}", text.as_ref())).collect();
    format!("[{}]", quoted.join(" "))
}

#[cfg(test)]
mod tests;
