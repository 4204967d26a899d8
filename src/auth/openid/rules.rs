//! Maps claims to users. Pure: no clock, no keys, no network.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_admission::auth_expressions::Expression;
use pilothouse_admission::auth_expressions::claims::{ExpressionError, Rule, check_claims, check_user};
use pilothouse_admission::policies::request::user;
use pilothouse_apimachinery::value::Value as Given;
use pilothouse_apimachinery::well_known::CREDENTIAL_ID;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::identity::Identity;
use serde_json::{Map, Value};

use crate::auth::jwt::{Algorithm, Token};
use crate::config::OpenId;
use crate::config::authentication_file::{Jwt, Mapping, Source};
use crate::limits::TOKEN_LEEWAY;

/// An issuer with two names.
const GOOGLE: (&str, &str) = ("accounts.google.com", "https://accounts.google.com");

/// The claims of a token. Before the signature is verified they may only be used to choose a verifier.
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    /// `None` if the payload is no object.
    pub(super) fn of(token: &Token<'_>) -> Option<Claims> {
        token.claims().map(Claims)
    }

    /// The `iss` claim.
    pub(super) fn issuer(&self) -> &str {
        self.get("iss").and_then(Value::as_str).unwrap_or_default()
    }

    fn get(&self, claim: &str) -> Option<&Value> {
        self.0.get(claim)
    }

    /// A required string claim.
    fn text(&self, claim: &str) -> Result<&str, &'static str> {
        self.get(claim).ok_or("claim not present")?.as_str().ok_or("claim is not a string")
    }

    /// All claims as CEL sees them.
    fn given(&self) -> Given {
        Given::Object(self.0.iter().map(|(claim, value)| (claim.clone(), given(value))).collect())
    }

    /// Seconds since the epoch; `None` if the claim is absent.
    fn seconds(&self, claim: &str) -> Result<Option<i64>, String> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a cast of a double stops at the ends of the range"
        )]
        let whole = |seconds: f64| seconds as i64;
        let Some(value) = self.get(claim) else { return Ok(None) };
        let seconds = value.as_i64().or_else(|| value.as_f64().map(whole));
        seconds.map(Some).ok_or_else(|| format!("oidc: failed to unmarshal claims: {claim} is not a time"))
    }

    /// Distributed claims, whose values are elsewhere.
    fn elsewhere(&self) -> Result<BTreeSet<&str>, &'static str> {
        let sources = self.get("_claim_sources").and_then(Value::as_object);
        let names = match self.get("_claim_names") {
            None | Some(Value::Null) => return Ok(BTreeSet::new()),
            Some(names) => names.as_object().ok_or("oidc: failed to unmarshal claims: _claim_names")?,
        };
        for source in names.values() {
            let source = source.as_str().filter(|source| !source.is_empty());
            let source = source.ok_or("oidc: failed to obtain source from claim name")?;
            if !sources.is_some_and(|sources| sources.contains_key(source)) {
                return Err("oidc: source does not exist");
            }
        }
        Ok(names.keys().map(String::as_str).collect())
    }
}

/// A claim as CEL sees it. The parser of the token has bounded its depth.
fn given(value: &Value) -> Given {
    match value {
        Value::Null => Given::Null,
        Value::Bool(truth) => Given::Bool(*truth),
        Value::Number(number) => {
            number.as_i64().map_or_else(|| Given::Float(number.as_f64().unwrap_or_default()), Given::Int)
        }
        Value::String(text) => Given::String(text.clone()),
        Value::Array(items) => Given::Array(items.iter().map(given).collect()),
        Value::Object(fields) => {
            Given::Object(fields.iter().map(|(key, value)| (key.clone(), given(value))).collect())
        }
    }
}

/// A string, or a list of strings.
fn texts(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(one) => Some(vec![one]),
        Value::Array(many) => many.iter().map(Value::as_str).collect(),
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
    /// The rules of the flags; `None` if they name no provider.
    pub fn new(flags: &OpenId) -> Option<ClaimMapping> {
        let (issuer, client) = flags.issuer_and_client()?;
        let claim = |name: &str, prefix| Source::Claim(Mapping { claim: name.to_owned(), prefix });
        Some(ClaimMapping {
            issuer: issuer.to_owned(),
            algorithms: flags.signing_algorithms().into_iter().filter_map(Algorithm::named).collect(),
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

    /// The rules of one provider in a file. All supported algorithms are accepted.
    pub fn of(jwt: &Jwt) -> ClaimMapping {
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

    /// Whether tokens with this `iss` belong to this provider.
    pub(super) fn is_by(&self, issuer: &str) -> bool {
        issuer == self.issuer || (issuer, self.issuer.as_str()) == GOOGLE
    }

    /// Whether a token belongs to this provider. Other tokens are left to other verifiers.
    pub(super) fn concern(&self, claims: &Claims) -> bool {
        self.is_by(claims.issuer())
    }

    /// Checks a token before its signature. Answers its expiry.
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
        claims.elsewhere()?;
        let audiences = match claims.get("aud") {
            None | Some(Value::Null) => Vec::new(),
            Some(value) => texts(value).ok_or("oidc: failed to unmarshal claims: aud")?,
        };
        if !self.audiences.iter().any(|wanted| audiences.contains(&wanted.as_str())) {
            let got = listed(&audiences);
            return Err(match self.audiences.as_slice() {
                [one] => format!("oidc: expected audience {one:?} got {got}"),
                several => format!("oidc: expected audience in {} got {got}", listed(several)),
            });
        }
        // A token without expiry counts as expired.
        let expires = Timestamp::from_unix(expires.unwrap_or_default());
        if expires < now {
            return Err("oidc: token is expired".to_owned());
        }
        if not_before.is_some_and(|from| now.plus(TOKEN_LEEWAY) < Timestamp::from_unix(from)) {
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
        self.refuse_elsewhere(claims)?;
        let given = if self.evaluates() { claims.given() } else { Given::Null };
        let name = self.username(claims, &given)?;
        let groups = self.groups(claims, &given)?;
        let uid = self.uid(claims, &given)?;
        let extra = self.extra(claims, &given)?;
        for (claim, wanted) in &self.required {
            match claims.text(claim) {
                Ok(said) if said == wanted => {}
                Ok(_) => return Err(format!("oidc: required claim {claim} value does not match")),
                Err(_) if claims.get(claim).is_none() => {
                    return Err(format!("oidc: required claim {claim} not present in ID token"));
                }
                Err(why) => return Err(format!("oidc: parse claim {claim}: {why}")),
            }
        }
        check_claims(&self.claim_rules, &given)
            .map_err(|why| format!("oidc: error evaluating claim validation expression: {why}"))?;
        let identity = Identity { name, uid, groups, extra };
        if !self.user_rules.is_empty() {
            check_user(&self.user_rules, &whole_user(&identity))
                .map_err(|why| format!("oidc: error evaluating user info validation rule: {why}"))?;
        }
        Ok(identity)
    }

    /// Whether any expression needs the claims.
    fn evaluates(&self) -> bool {
        let sources = [Some(&self.username), self.groups.as_ref(), self.uid.as_ref()];
        sources.into_iter().flatten().any(|source| matches!(source, Source::Made(_)))
            || !self.extra.is_empty()
            || !self.claim_rules.is_empty()
    }

    /// Refuses distributed claims, because they are not fetched. If such a user were accepted without groups, rules against a
    /// group would not apply.
    fn refuse_elsewhere(&self, claims: &Claims) -> Result<(), String> {
        let elsewhere = claims.elsewhere()?;
        let sources = [Some(&self.username), self.groups.as_ref(), self.uid.as_ref()];
        let used = sources.into_iter().flatten().filter_map(|source| match source {
            Source::Claim(mapping) => Some(&mapping.claim),
            Source::Made(_) => None,
        });
        let mut used = used.chain(self.required.keys());
        match used.find(|claim| claims.get(claim).is_none() && elsewhere.contains(claim.as_str())) {
            Some(claim) => Err(format!(
                "oidc: could not expand distributed claims: {claim:?} is a distributed or aggregated claim, which is not supported"
            )),
            None => Ok(()),
        }
    }

    fn username(&self, claims: &Claims, given: &Given) -> Result<String, String> {
        let Mapping { claim, prefix } = match &self.username {
            Source::Claim(mapping) => mapping,
            Source::Made(expression) => {
                let name = made_text(expression, given, "username")?;
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
        let name = name.map_err(|why| format!("oidc: parse username claims {claim:?}: {why}"))?;
        if claim == "email" {
            match claims.get("email_verified") {
                None | Some(Value::Bool(true)) => {}
                Some(Value::Bool(false)) => return Err("oidc: email not verified".to_owned()),
                Some(_) => return Err("oidc: parse 'email_verified' claim: not a boolean".to_owned()),
            }
        }
        Ok(format!("{prefix}{name}"))
    }

    fn uid(&self, claims: &Claims, given: &Given) -> Result<String, String> {
        let claim = match &self.uid {
            None => return Ok(String::new()),
            Some(Source::Claim(mapping)) => &mapping.claim,
            Some(Source::Made(expression)) => return made_text(expression, given, "uid"),
        };
        let uid = claims.text(claim).map_err(|why| format!("oidc: parse uid claim {claim:?}: {why}"))?;
        Ok(uid.to_owned())
    }

    fn groups(&self, claims: &Claims, given: &Given) -> Result<Vec<String>, String> {
        let Mapping { claim, prefix } = match &self.groups {
            None => return Ok(Vec::new()),
            Some(Source::Claim(mapping)) => mapping,
            Some(Source::Made(expression)) => {
                return expression.texts_of(given).map_err(
                    |(ExpressionError::Failed(why) | ExpressionError::NoTexts(why))| {
                        format!("oidc: error evaluating group claim expression: {why}")
                    },
                );
            }
        };
        let groups = match claims.get(claim) {
            None | Some(Value::Null) => Vec::new(),
            Some(value) => texts(value).ok_or_else(|| {
                format!("oidc: parse groups claim {claim:?}: neither a string nor a list of strings")
            })?,
        };
        Ok(groups.into_iter().map(|group| format!("{prefix}{group}")).collect())
    }

    fn extra(&self, claims: &Claims, given: &Given) -> Result<BTreeMap<String, Vec<String>>, String> {
        let id = claims.text("jti").ok().filter(|id| !id.is_empty());
        let id = id.map(|id| (CREDENTIAL_ID.to_owned(), vec![format!("JTI={id}")]));
        let mut extra: BTreeMap<_, _> = id.into_iter().collect();
        for (key, expression) in &self.extra {
            let values = expression.texts_of(given).map_err(|untold| match untold {
                ExpressionError::Failed(why) => why,
                ExpressionError::NoTexts(why) => {
                    let text = expression.text();
                    format!("oidc: error evaluating extra claim expression: {text}: {why}")
                }
            })?;
            if !values.is_empty() {
                extra.insert(key.clone(), values);
            }
        }
        Ok(extra)
    }
}

/// The string that an expression makes of the claims, for a part of the user.
fn made_text(expression: &Expression, given: &Given, part: &str) -> Result<String, String> {
    let told = |why: String| format!("oidc: error evaluating {part} claim expression: {why}");
    let text = expression.text_of(given).map_err(told)?;
    text.ok_or_else(|| told(format!("{part} claim expression must return a string")))
}

/// The user with all fields, including empty ones, so that rules need not check their presence.
fn whole_user(identity: &Identity) -> Given {
    let mut whole = user(identity);
    for field in ["username", "uid"] {
        if whole.get(field).is_none() {
            whole.set(field, "");
        }
    }
    if whole.get("groups").is_none() {
        whole.set("groups", Given::array());
    }
    if whole.get("extra").is_none() {
        whole.set("extra", Given::object());
    }
    whole
}

/// Strings in Go's list format.
fn listed(texts: &[impl AsRef<str>]) -> String {
    let all: Vec<String> = texts.iter().map(|text| format!("{:?}", text.as_ref())).collect();
    format!("[{}]", all.join(" "))
}

#[cfg(test)]
mod tests;
