//! Claim mappings and validation rules of a provider.

use std::collections::BTreeSet;

use pilothouse_admission::auth_expressions::Expression;
use pilothouse_admission::auth_expressions::claims::{Compiler, Rule};
use pilothouse_apimachinery::document::present;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::{FileParser, Jwt, Mapping, Source};

const EMAIL: &str = "email";
const EMAIL_VERIFIED: &str = "email_verified";
const BOTH_SET: &str = "claim and expression can't both be set";
const ONE_REQUIRED: &str = "claim or expression is required";
const EMAIL_NOT_VERIFIED: &str = "claims.email_verified must be used in claimMappings.username.expression or \
                      claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is \
                      used in claimMappings.username.expression";
/// Reserved domains of extra keys, including their subdomains.
const RESERVED: [&str; 2] = ["kubernetes.io", "k8s.io"];

/// Compiles an expression.
type Compile = fn(&mut Compiler, &str) -> Result<Expression, String>;

impl FileParser<'_> {
    fn compile(&mut self, text: &str, path: &FieldPath, compile: Compile) -> Option<Expression> {
        match compile(&mut self.compiler, text) {
            Ok(expression) => Some(expression),
            Err(reason) => {
                self.reader.push_error(&FieldError::invalid(path, &quoted(text), &reason));
                None
            }
        }
    }

    /// Parses claim validation rules. Returns whether one of them checks `email_verified`.
    pub(super) fn claim_rules(&mut self, entry: &Value, path: &FieldPath, jwt: &mut Jwt) -> bool {
        let (mut seen, list_path) = (BTreeSet::new(), path.child("claimValidationRules"));
        for (index, rule) in self.reader.list(entry, "claimValidationRules", path).iter().enumerate() {
            let path = list_path.index(index);
            self.reader.check_fields(rule, &path, &["claim", "requiredValue", "expression", "message"]);
            let mut text = |field: &str| self.reader.text(rule, field, &path).to_owned();
            let (claim, value, message) = (text("claim"), text("requiredValue"), text("message"));
            let expression = text("expression");
            match (claim.as_str(), expression.as_str()) {
                ("", "") => self.reader.push_error(&FieldError::required(&path, ONE_REQUIRED)),
                (_, "") => self.claim_value(&path, &claim, value, &message, jwt),
                ("", _) => {
                    if !value.is_empty() {
                        let reason = "requiredValue can't be set when expression is set";
                        let path = path.child("requiredValue");
                        self.reader.push_error(&FieldError::invalid(&path, &quoted(&value), reason));
                    }
                    let rule = self.rule(expression, message, &path, &mut seen, Compiler::claims_rule);
                    jwt.claim_rules.extend(rule);
                }
                _ => self.reader.push_error(&FieldError::invalid(&path, &quoted(&claim), BOTH_SET)),
            }
        }
        jwt.claim_rules.iter().any(|rule| rule.expression.uses_claim(EMAIL_VERIFIED))
    }

    fn claim_value(&mut self, path: &FieldPath, claim: &str, value: String, message: &str, jwt: &mut Jwt) {
        if !message.is_empty() {
            let reason = "message can't be set when claim is set";
            self.reader.push_error(&FieldError::invalid(&path.child("message"), &quoted(message), reason));
        }
        if jwt.required.insert(claim.to_owned(), value).is_some() {
            self.reader.push_error(&FieldError::duplicate(&path.child("claim"), &quoted(claim)));
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
        let path = path.child("expression");
        let expression = self.compile_unique(text, &path, seen, compile)?;
        Some(Rule { expression, message })
    }

    /// Compiles an expression that must be unique in its list.
    fn compile_unique(
        &mut self,
        text: String,
        path: &FieldPath,
        seen: &mut BTreeSet<String>,
        compile: Compile,
    ) -> Option<Expression> {
        if seen.contains(&text) {
            self.reader.push_error(&FieldError::duplicate(path, &quoted(&text)));
            return None;
        }
        let expression = self.compile(&text, path, compile);
        seen.insert(text);
        expression
    }

    /// Parses user validation rules.
    pub(super) fn user_rules(&mut self, entry: &Value, path: &FieldPath, jwt: &mut Jwt) {
        let (mut seen, list_path) = (BTreeSet::new(), path.child("userValidationRules"));
        for (index, rule) in self.reader.list(entry, "userValidationRules", path).iter().enumerate() {
            let path = list_path.index(index);
            self.reader.check_fields(rule, &path, &["expression", "message"]);
            let text = self.reader.text(rule, "expression", &path).to_owned();
            let message = self.reader.text(rule, "message", &path).to_owned();
            if text.is_empty() {
                self.reader
                    .push_error(&FieldError::required(&path.child("expression"), "expression is required"));
                continue;
            }
            jwt.user_rules.extend(self.rule(text, message, &path, &mut seen, Compiler::user_rule));
        }
    }

    /// Parses claim mappings. `is_email_verified`: whether a rule checks `email_verified`.
    pub(super) fn mappings(
        &mut self,
        value: &Value,
        path: &FieldPath,
        is_email_verified: bool,
        jwt: &mut Jwt,
    ) {
        self.reader.check_fields(value, path, &["username", "groups", "uid", "extra"]);
        let empty = Value::object();
        let object_field = |field: &str| present(value, field).unwrap_or(&empty);
        let allowed = ["claim", "prefix", "expression"];
        let username_path = path.child("username");
        match self.source(object_field("username"), &username_path, &allowed) {
            Ok(Some(source)) => jwt.username = source,
            Ok(None) => self.reader.push_error(&FieldError::required(&username_path, ONE_REQUIRED)),
            Err(()) => {}
        }
        jwt.groups = self.source(object_field("groups"), &path.child("groups"), &allowed).unwrap_or_default();
        jwt.uid = self
            .source(object_field("uid"), &path.child("uid"), &["claim", "expression"])
            .unwrap_or_default();
        self.extra(value, path, jwt);
        let Source::Expression(username) = &jwt.username else { return };
        let extra = jwt.extra.iter().map(|(_, expression)| expression);
        let mut expressions = extra.chain([username]);
        if username.uses_claim(EMAIL)
            && !is_email_verified
            && !expressions.any(|expression| expression.uses_claim(EMAIL_VERIFIED))
        {
            let (path, text) = (username_path.child("expression"), quoted(username.text()));
            self.reader.push_error(&FieldError::invalid(&path, &text, EMAIL_NOT_VERIFIED));
        }
    }

    /// A claim or an expression; `None` if there is neither. Errors are reported already. A claim that supports a prefix must
    /// state one, so that none is omitted by mistake.
    fn source(&mut self, value: &Value, path: &FieldPath, allowed: &[&str]) -> Result<Option<Source>, ()> {
        self.reader.check_fields(value, path, allowed);
        let claim = self.reader.text(value, "claim", path).to_owned();
        let text = self.reader.text(value, "expression", path);
        let prefix = self.reader.optional_text(value, "prefix", path);
        let prefix_path = path.child("prefix");
        match (claim.is_empty(), text.is_empty()) {
            (true, true) => Ok(None),
            (false, false) => {
                self.reader.push_error(&FieldError::invalid(path, "\"\"", BOTH_SET));
                Err(())
            }
            (false, true) => {
                if prefix.is_none() && allowed.contains(&"prefix") {
                    let reason = "prefix is required when claim is set. It can be set to an empty string to disable prefixing";
                    self.reader.push_error(&FieldError::required(&prefix_path, reason));
                }
                Ok(Some(Source::Claim(Mapping { claim, prefix: prefix.unwrap_or_default().to_owned() })))
            }
            (true, false) => {
                if let Some(prefix) = prefix {
                    let reason = "prefix can't be set when expression is set";
                    self.reader.push_error(&FieldError::invalid(&prefix_path, &quoted(prefix), reason));
                }
                let expression = self.compile(text, &path.child("expression"), Compiler::mapping);
                // An invalid entry is not examined any further.
                let expression = expression.filter(|_| prefix.is_none());
                expression.map(|expression| Some(Source::Expression(expression))).ok_or(())
            }
        }
    }

    fn extra(&mut self, value: &Value, path: &FieldPath, jwt: &mut Jwt) {
        let (mut seen, list_path) = (BTreeSet::new(), path.child("extra"));
        for (index, extra) in self.reader.list(value, "extra", path).iter().enumerate() {
            let path = list_path.index(index);
            self.reader.check_fields(extra, &path, &["key", "valueExpression"]);
            let (key, key_path) = (self.reader.text(extra, "key", &path), path.child("key"));
            self.extra_key(key, &key_path);
            if !seen.insert(key) {
                self.reader.push_error(&FieldError::duplicate(&key_path, &quoted(key)));
                continue;
            }
            let text = self.reader.text(extra, "valueExpression", &path);
            let path = path.child("valueExpression");
            if text.is_empty() {
                self.reader.push_error(&FieldError::required(&path, "valueExpression is required"));
            } else if let Some(expression) = self.compile(text, &path, Compiler::mapping) {
                jwt.extra.push((key.to_owned(), expression));
            }
        }
    }

    fn extra_key(&mut self, key: &str, path: &FieldPath) {
        if key.is_empty() {
            self.reader.push_error(&FieldError::required(path, ""));
        } else {
            for (reason, segment) in names::domain_prefixed_path(key) {
                self.reader.push_error(&FieldError::invalid(path, &quoted(&segment), &reason));
            }
        }
        if key.chars().any(char::is_uppercase) {
            self.reader.push_error(&FieldError::invalid(path, &quoted(key), "key must be lowercase"));
        }
        let domain = key.split_once('/').map(|(domain, _)| domain).unwrap_or_default();
        let is_below = |reserved: &str| domain.strip_suffix(reserved).is_some_and(|rest| rest.ends_with('.'));
        if RESERVED.iter().any(|reserved| domain == *reserved || is_below(reserved)) {
            let reason = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
            self.reader.push_error(&FieldError::invalid(path, &quoted(key), reason));
        }
    }
}
