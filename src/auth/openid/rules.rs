//! Which claims count, and whom they make of the bearer. Pure: no clock, no keys, no network.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_actors::clock::Timestamp;
use pilothouse_actors::identity::Identity;
use serde_json::{Map, Value};

use crate::auth::jwt::{Algorithm, Token};
use crate::config::OpenId;
use crate::config::authentication_file::Jwt;
use crate::limits::TOKEN_LEEWAY;

/// An issuer that calls itself by two names.
const GOOGLE: (&str, &str) = ("accounts.google.com", "https://accounts.google.com");
/// Where an identity says which token it came with.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// What a token says. Good for choosing who shall verify it, until somebody has checked the signature.
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    /// `None` if the token does not hold an object.
    pub(super) fn of(token: &Token<'_>) -> Option<Claims> {
        token.claims().map(Claims)
    }

    /// Who the token says has made it.
    pub(super) fn issuer(&self) -> &str {
        self.get("iss").and_then(Value::as_str).unwrap_or_default()
    }

    fn get(&self, claim: &str) -> Option<&Value> {
        self.0.get(claim)
    }

    /// A claim that has to be there and to be a text.
    fn text(&self, claim: &str) -> Result<&str, &'static str> {
        self.get(claim).ok_or("claim not present")?.as_str().ok_or("claim is not a string")
    }

    /// Seconds since the epoch; `None` if the claim is not there.
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

    /// The claims that the token says to lie elsewhere.
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

/// A text, or a list of them.
fn texts(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(one) => Some(vec![one]),
        Value::Array(many) => many.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

/// Whose tokens are accepted, and what of them counts.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Who makes them.
    pub issuer: String,
    /// How they may be signed.
    pub algorithms: Vec<Algorithm>,
    /// Where its provider says where the keys are; `None`: at a place that follows from the issuer.
    pub discovery: Option<String>,
    /// Whom they must be made for: one of them is enough.
    audiences: Vec<String>,
    username_claim: String,
    username_prefix: String,
    groups_claim: Option<String>,
    groups_prefix: String,
    /// What tells two bearers of one name apart.
    uid_claim: Option<String>,
    /// What they must say besides.
    required: BTreeMap<String, String>,
}

impl Rules {
    /// What the flags say; `None` if they name no provider.
    pub fn new(flags: &OpenId) -> Option<Rules> {
        let (issuer, client) = flags.issuer_and_client()?;
        Some(Rules {
            issuer: issuer.to_owned(),
            algorithms: flags.signing_algorithms().into_iter().filter_map(Algorithm::named).collect(),
            discovery: None,
            audiences: vec![client.to_owned()],
            username_claim: flags.username_claim().to_owned(),
            username_prefix: flags.username_prefix(),
            groups_claim: flags.groups_claim().map(str::to_owned),
            groups_prefix: flags.oidc_groups_prefix.clone().unwrap_or_default(),
            uid_claim: None,
            required: flags.required_claims(),
        })
    }

    /// What a file says of one provider. Such tokens may be signed in every way that a key of it takes.
    pub fn of(jwt: &Jwt) -> Rules {
        let (groups_claim, groups_prefix) =
            jwt.groups.clone().map(|groups| (groups.claim, groups.prefix)).unzip();
        Rules {
            issuer: jwt.issuer.clone(),
            algorithms: Algorithm::ALL.to_vec(),
            discovery: jwt.discovery.clone(),
            audiences: jwt.audiences.clone(),
            username_claim: jwt.username.claim.clone(),
            username_prefix: jwt.username.prefix.clone(),
            groups_claim,
            groups_prefix: groups_prefix.unwrap_or_default(),
            uid_claim: jwt.uid.clone(),
            required: jwt.required.clone(),
        }
    }

    /// Whether tokens that name this issuer are its own.
    pub(super) fn is_by(&self, issuer: &str) -> bool {
        issuer == self.issuer || (issuer, self.issuer.as_str()) == GOOGLE
    }

    /// Whether the token says that it was made by this issuer. Those of others are for others to judge.
    pub(super) fn concern(&self, claims: &Claims) -> bool {
        self.is_by(claims.issuer())
    }

    /// Why a token is not worth a look at its signature; otherwise when it ends.
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
        // A token that does not say when it ends has ended.
        let expires = moment(expires.unwrap_or_default());
        if expires < now {
            return Err("oidc: token is expired".to_owned());
        }
        if not_before.is_some_and(|from| now.plus(TOKEN_LEEWAY) < moment(from)) {
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

    /// Who bears a token whose signature is good.
    pub(super) fn identity(&self, claims: &Claims) -> Result<Identity, String> {
        self.refuse_elsewhere(claims)?;
        let name = self.username(claims)?;
        let groups = self.groups(claims)?;
        let uid = self.uid(claims)?;
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
        let id = claims.text("jti").ok().filter(|id| !id.is_empty());
        let extra = id.map(|id| (CREDENTIAL_ID.to_owned(), vec![format!("JTI={id}")]));
        Ok(Identity { name, uid, groups, extra: extra.into_iter().collect() })
    }

    /// Nobody is asked for claims that the token does not hold itself. To take such a bearer for one without groups would be
    /// wrong the other way round: a rule that forbids something to a group would not bind them.
    fn refuse_elsewhere(&self, claims: &Claims) -> Result<(), String> {
        let elsewhere = claims.elsewhere()?;
        let used = [Some(&self.username_claim), self.groups_claim.as_ref(), self.uid_claim.as_ref()];
        let mut used = used.into_iter().flatten().chain(self.required.keys());
        match used.find(|claim| claims.get(claim).is_none() && elsewhere.contains(claim.as_str())) {
            Some(claim) => Err(format!(
                "oidc: could not expand distributed claims: {claim:?} is a distributed or aggregated claim, which is not supported"
            )),
            None => Ok(()),
        }
    }

    fn username(&self, claims: &Claims) -> Result<String, String> {
        let claim = &self.username_claim;
        let name = claims.text(claim).and_then(|name| match name {
            // A prefix alone would be a user that all such tokens share.
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
        Ok(format!("{}{name}", self.username_prefix))
    }

    fn uid(&self, claims: &Claims) -> Result<String, String> {
        let Some(claim) = &self.uid_claim else { return Ok(String::new()) };
        let uid = claims.text(claim).map_err(|why| format!("oidc: parse uid claim {claim:?}: {why}"))?;
        Ok(uid.to_owned())
    }

    fn groups(&self, claims: &Claims) -> Result<Vec<String>, String> {
        let Some(claim) = &self.groups_claim else { return Ok(Vec::new()) };
        let groups = match claims.get(claim) {
            None | Some(Value::Null) => Vec::new(),
            Some(value) => texts(value).ok_or_else(|| {
                format!("oidc: parse groups claim {claim:?}: neither a string nor a list of strings")
            })?,
        };
        Ok(groups.into_iter().map(|group| format!("{}{group}", self.groups_prefix)).collect())
    }
}

/// Texts as the reference lists them.
fn listed(texts: &[impl AsRef<str>]) -> String {
    let all: Vec<String> = texts.iter().map(|text| format!("{:?}", text.as_ref())).collect();
    format!("[{}]", all.join(" "))
}

/// A moment given in seconds since the epoch; what lies before it is the epoch.
fn moment(seconds: i64) -> Timestamp {
    Timestamp(u64::try_from(seconds).unwrap_or_default().saturating_mul(1_000_000))
}

#[cfg(test)]
mod tests;
