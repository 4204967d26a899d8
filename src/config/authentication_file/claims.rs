//! Claim mappings and validation rules of a provider.

use std::collections::BTreeSet;

use pilothouse_admission::auth_expressions::Expression;
use pilothouse_admission::auth_expressions::claims::{Compiler, Rule};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::{Found, Jwt, Mapping, Source};

const EMAIL: &str = "email";
const EMAIL_VERIFIED: &str = "email_verified";
const NOT_BOTH: &str = "claim and expression can't both be set";
const ONE_OF_BOTH: &str = "claim or expression is required";
const VERIFY: &str = "claims.email_verified must be used in claimMappings.username.expression or \
                      claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is \
                      used in claimMappings.username.expression";
/// Reserved domains of extra keys, including their subdomains.
const RESERVED: [&str; 2] = ["kubernetes.io", "k8s.io"];

/// Compiles an expression.
type Compile = fn(&mut Compiler, &str) -> Result<Expression, String>;

impl Found<'_> {
    fn compile(&mut self, text: &str, at: &FieldPath, compile: Compile) -> Option<Expression> {
        match compile(&mut self.compiler, text) {
            Ok(expression) => Some(expression),
            Err(why) => {
                self.wrong(&FieldError::invalid(at, &quoted(text), &why));
                None
            }
        }
    }

    /// Parses claim validation rules. Answers whether one of them checks `email_verified`.
    pub(super) fn claim_rules(&mut self, one: &Value, path: &FieldPath, jwt: &mut Jwt) -> bool {
        let mut seen = BTreeSet::new();
        for (at, rule) in self.list(one, "claimValidationRules", path).iter().enumerate() {
            let path = path.index(at);
            self.only(rule, &path, &["claim", "requiredValue", "expression", "message"]);
            let mut text = |field: &str| self.text(rule, field, &path);
            let (claim, value, message) = (text("claim"), text("requiredValue"), text("message"));
            let expression = text("expression");
            match (claim.as_str(), expression.as_str()) {
                ("", "") => self.wrong(&FieldError::required(&path, ONE_OF_BOTH)),
                (_, "") => self.claim_value(&path, &claim, value, &message, jwt),
                ("", _) => {
                    if !value.is_empty() {
                        let why = "requiredValue can't be set when expression is set";
                        let at = path.child("requiredValue");
                        self.wrong(&FieldError::invalid(&at, &quoted(&value), why));
                    }
                    let made = self.rule(expression, message, &path, &mut seen, Compiler::claims_rule);
                    jwt.claim_rules.extend(made);
                }
                _ => self.wrong(&FieldError::invalid(&path, &quoted(&claim), NOT_BOTH)),
            }
        }
        jwt.claim_rules.iter().any(|rule| rule.expression.uses_claim(EMAIL_VERIFIED))
    }

    fn claim_value(&mut self, path: &FieldPath, claim: &str, value: String, message: &str, jwt: &mut Jwt) {
        if !message.is_empty() {
            let why = "message can't be set when claim is set";
            self.wrong(&FieldError::invalid(&path.child("message"), &quoted(message), why));
        }
        if jwt.required.insert(claim.to_owned(), value).is_some() {
            self.wrong(&FieldError::duplicate(&path.child("claim"), &quoted(claim)));
        }
    }

    fn rule(
        &mut self,
        text: String,
        message: String,
        path: &FieldPath,
        seen: &mut BTreeSet<String>,
        compile: Compile,
    ) -> Option<Rule> {
        let at = path.child("expression");
        let expression = self.compile_new(text, &at, seen, compile)?;
        Some(Rule { expression, message })
    }

    /// Compiles an expression that must be unique in its list.
    fn compile_new(
        &mut self,
        text: String,
        at: &FieldPath,
        seen: &mut BTreeSet<String>,
        compile: Compile,
    ) -> Option<Expression> {
        if seen.contains(&text) {
            self.wrong(&FieldError::duplicate(at, &quoted(&text)));
            return None;
        }
        let expression = self.compile(&text, at, compile);
        seen.insert(text);
        expression
    }

    /// Parses user validation rules.
    pub(super) fn user_rules(&mut self, one: &Value, path: &FieldPath, jwt: &mut Jwt) {
        let mut seen = BTreeSet::new();
        for (at, rule) in self.list(one, "userValidationRules", path).iter().enumerate() {
            let path = path.index(at);
            self.only(rule, &path, &["expression", "message"]);
            let (text, message) = (self.text(rule, "expression", &path), self.text(rule, "message", &path));
            if text.is_empty() {
                self.wrong(&FieldError::required(&path.child("expression"), "expression is required"));
                continue;
            }
            jwt.user_rules.extend(self.rule(text, message, &path, &mut seen, Compiler::user_rule));
        }
    }

    /// Parses claim mappings. `verified`: whether a rule checks `email_verified`.
    pub(super) fn mappings(&mut self, value: &Value, path: &FieldPath, verified: bool, jwt: &mut Jwt) {
        self.only(value, path, &["username", "groups", "uid", "extra"]);
        let nothing = Value::object();
        let part = |field: &str| value.get(field).filter(|value| !value.is_null()).unwrap_or(&nothing);
        let known = ["claim", "prefix", "expression"];
        let at = path.child("username");
        match self.source(part("username"), &at, &known) {
            Ok(Some(source)) => jwt.username = source,
            Ok(None) => self.wrong(&FieldError::required(&at, ONE_OF_BOTH)),
            Err(()) => {}
        }
        jwt.groups = self.source(part("groups"), &path.child("groups"), &known).unwrap_or_default();
        jwt.uid = self.source(part("uid"), &path.child("uid"), &["claim", "expression"]).unwrap_or_default();
        self.extra(value, &path.child("extra"), jwt);
        let Source::Made(username) = &jwt.username else { return };
        let extra = jwt.extra.iter().map(|(_, expression)| expression);
        let mut all = extra.chain([username]);
        if username.uses_claim(EMAIL) && !verified && !all.any(|made| made.uses_claim(EMAIL_VERIFIED)) {
            let (at, text) = (path.child("username").child("expression"), quoted(username.text()));
            self.wrong(&FieldError::invalid(&at, &text, VERIFY));
        }
    }

    /// A claim or an expression; `None` if there is neither. Errors are reported already. A claim that supports a prefix must
    /// state one, so that none is omitted by mistake.
    fn source(&mut self, value: &Value, path: &FieldPath, known: &[&str]) -> Result<Option<Source>, ()> {
        self.only(value, path, known);
        let (claim, text) = (self.text(value, "claim", path), self.text(value, "expression", path));
        let prefix = self.maybe_text(value, "prefix", path);
        let at = path.child("prefix");
        match (claim.is_empty(), text.is_empty()) {
            (true, true) => Ok(None),
            (false, false) => {
                self.wrong(&FieldError::invalid(path, "\"\"", NOT_BOTH));
                Err(())
            }
            (false, true) => {
                if prefix.is_none() && known.contains(&"prefix") {
                    let why = "prefix is required when claim is set. It can be set to an empty string to disable prefixing";
                    self.wrong(&FieldError::required(&at, why));
                }
                Ok(Some(Source::Claim(Mapping { claim, prefix: prefix.unwrap_or_default() })))
            }
            (true, false) => {
                if let Some(prefix) = &prefix {
                    let why = "prefix can't be set when expression is set";
                    self.wrong(&FieldError::invalid(&at, &quoted(prefix), why));
                }
                let made = self.compile(&text, &path.child("expression"), Compiler::mapping);
                // An invalid entry is not examined any further.
                let made = made.filter(|_| prefix.is_none());
                made.map(|made| Some(Source::Made(made))).ok_or(())
            }
        }
    }

    fn extra(&mut self, value: &Value, path: &FieldPath, jwt: &mut Jwt) {
        let mut seen = BTreeSet::new();
        for (number, extra) in self.list(value, "extra", path).iter().enumerate() {
            let path = path.index(number);
            self.only(extra, &path, &["key", "valueExpression"]);
            let (key, at) = (self.text(extra, "key", &path), path.child("key"));
            self.extra_key(&key, &at);
            if !seen.insert(key.clone()) {
                self.wrong(&FieldError::duplicate(&at, &quoted(&key)));
                continue;
            }
            let (text, at) = (self.text(extra, "valueExpression", &path), path.child("valueExpression"));
            if text.is_empty() {
                self.wrong(&FieldError::required(&at, "valueExpression is required"));
            } else if let Some(made) = self.compile(&text, &at, Compiler::mapping) {
                jwt.extra.push((key, made));
            }
        }
    }

    fn extra_key(&mut self, key: &str, at: &FieldPath) {
        if key.is_empty() {
            self.wrong(&FieldError::required(at, ""));
        } else {
            for (why, part) in names::domain_prefixed_path(key) {
                self.wrong(&FieldError::invalid(at, &quoted(&part), &why));
            }
        }
        if key.chars().any(char::is_uppercase) {
            self.wrong(&FieldError::invalid(at, &quoted(key), "key must be lowercase"));
        }
        let domain = key.split_once('/').map(|(domain, _)| domain).unwrap_or_default();
        let is_below = |own: &str| domain.strip_suffix(own).is_some_and(|rest| rest.ends_with('.'));
        if RESERVED.iter().any(|own| domain == *own || is_below(own)) {
            let why = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
            self.wrong(&FieldError::invalid(at, &quoted(key), why));
        }
    }
}
