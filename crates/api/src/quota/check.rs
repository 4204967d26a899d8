//! Checks a write against the quotas of its namespace, and computes their new usage.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::quantity::Quantity;
use pilothouse_apimachinery::resource_list::ResourceList;
use pilothouse_apimachinery::status::GroupResource;
use pilothouse_apimachinery::value::Value;

use super::usage::{Change, UsageEvaluator};
use super::{Features, Limited, Quota, Scope};

/// A write as quotas see it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The resource.
    pub resource: GroupResource<'a>,
    /// The subresource, empty for the object itself.
    pub subresource: &'a str,
    /// The kind of write.
    pub change: Change,
    /// The new state.
    pub new: &'a Value,
    /// The old state; null for a create.
    pub old: &'a Value,
    /// The current time, in seconds.
    pub now: i64,
}

impl Request<'_> {
    /// Whether the write can add usage. If not, no quota need be read.
    pub fn charges(&self, features: Features) -> bool {
        let evaluator = UsageEvaluator::for_resource(self.resource, features);
        evaluator
            .is_some_and(|evaluator| evaluator.charges(self.change, self.subresource, self.new, self.old))
    }
}

/// The reason that a write is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A quota is exceeded.
    Forbidden(String),
    /// No quota covers it. The reference returns this as an error without a Status.
    Uncovered(String),
}

fn forbidden<T>(message: String) -> Result<T, Refusal> {
    Err(Refusal::Forbidden(message))
}

/// The new usage of quotas that change, by index.
pub type Charges = BTreeMap<usize, ResourceList>;

/// Checks a write against all quotas of its namespace.
pub fn check(
    quotas: &[Quota],
    request: &Request<'_>,
    limited: &[Limited],
    features: Features,
) -> Result<Charges, Refusal> {
    let Some(evaluator) = UsageEvaluator::for_resource(request.resource, features) else {
        return Ok(Charges::new());
    };
    if !evaluator.charges(request.change, request.subresource, request.new, request.old) {
        return Ok(Charges::new());
    }
    let matching = matching_quotas(quotas, request, &evaluator)?;
    let input = evaluator.usage(request.new, request.now);
    let negative: Vec<&str> = names_where(&input, Quantity::is_negative);
    if !negative.is_empty() {
        return forbidden(format!("quota usage is negative for resource(s): {}", negative.join(",")));
    }
    // Usage that a quota counted before is not counted again.
    let full = positive(input.clone());
    let growth = match request.change {
        Change::Create => full.clone(),
        Change::Update => growth(&input, &evaluator.usage(request.old, request.now)),
    };
    let mut demands = BTreeMap::new();
    for (index, quota) in &matching {
        let is_counted = request.change == Change::Update && evaluator.matches(quota, request.old);
        demands.insert(*index, if is_counted { &growth } else { &full });
    }
    demands.retain(|_, demand| !demand.is_empty());
    let is_unchanged = if matching.is_empty() { growth.is_empty() } else { demands.is_empty() };
    if is_unchanged {
        return Ok(Charges::new());
    }
    if !limited.is_empty() {
        let for_type =
            limited.iter().filter(|limited| limited.applies_to(request.resource)).collect::<Vec<_>>();
        require_covered_usage(&matching, &for_type, &input)?;
        if evaluator.needs_cover() {
            require_covered_scopes(quotas, limited, |scope| evaluator.is_in(request.new, scope))?;
        }
    }
    let mut charges = Charges::new();
    for (index, quota) in matching {
        if let Some(demand) = demands.get(&index) {
            charges.extend(charge(quota, demand, request.subresource)?.map(|used| (index, used)));
        }
    }
    Ok(charges)
}

/// The quotas that cover an object. An error if the object lacks required fields, or a quota was not counted yet.
fn matching_quotas<'q>(
    quotas: &'q [Quota],
    request: &Request<'_>,
    evaluator: &UsageEvaluator<'_>,
) -> Result<Vec<(usize, &'q Quota)>, Refusal> {
    let mut matching = Vec::new();
    for (index, quota) in quotas.iter().enumerate().filter(|(_, quota)| evaluator.matches(quota, request.new))
    {
        let measured_names = || quota.hard.keys().map(String::as_str).filter(|name| evaluator.measures(name));
        if let Some(missing) = evaluator.unspecified(request.new, measured_names()) {
            return forbidden(format!("failed quota: {}: {missing}", quota.name));
        }
        if measured_names().any(|name| !quota.used.contains_key(name)) {
            let names: Vec<&str> = measured_names().collect();
            return forbidden(format!(
                "status unknown for quota: {}, resources: {}",
                quota.name,
                names.join(",")
            ));
        }
        matching.push((index, quota));
    }
    Ok(matching)
}

/// Refuses the use of limited resources that no matching quota covers.
fn require_covered_usage(
    matching: &[(usize, &Quota)],
    limited: &[&Limited],
    usage: &ResourceList,
) -> Result<(), Refusal> {
    let consumed = names_where(usage, |amount| !amount.is_zero() && !amount.is_negative());
    let is_covered = |name: &&str| matching.iter().any(|(_, quota)| quota.hard.contains_key(*name));
    let uncovered: BTreeSet<&str> = consumed
        .into_iter()
        .filter(|name| limited.iter().any(|limited| limited.covers(name)))
        .filter(|name| !is_covered(name))
        .collect();
    if uncovered.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = uncovered.into_iter().collect();
    forbidden(format!("insufficient quota to consume: {}", names.join(",")))
}

/// Refuses an object in a limited scope that no quota covers. `is_in_scope`: whether the object is in a scope.
fn require_covered_scopes(
    quotas: &[Quota],
    limited: &[Limited],
    is_in_scope: impl Fn(&Scope) -> bool,
) -> Result<(), Refusal> {
    let covering: BTreeSet<&str> = quotas
        .iter()
        .flat_map(|quota| &quota.scopes)
        .filter(|scope| is_in_scope(scope))
        .map(|scope| scope.name.as_str())
        .collect();
    let limiting = limited.iter().flat_map(|limited| &limited.scopes).filter(|scope| is_in_scope(scope));
    let uncovered: Vec<String> =
        limiting.filter(|scope| !covering.contains(scope.name.as_str())).map(Scope::render).collect();
    if uncovered.is_empty() {
        return Ok(());
    }
    Err(Refusal::Uncovered(format!("insufficient quota to match these scopes: [{}]", uncovered.join(" "))))
}

/// The new usage of a quota; `None` if it does not change.
fn charge(quota: &Quota, demand: &ResourceList, subresource: &str) -> Result<Option<ResourceList>, Refusal> {
    let mut used = quota.used.clone();
    let mut exceeded = Vec::new();
    for (name, amount) in demand {
        let Some(hard) = quota.hard.get(name) else { continue };
        let sum = used.get(name).map_or_else(|| amount.clone(), |used| used.plus(amount));
        // A status only reports facts: refusing it would change nothing.
        if sum > *hard && subresource != "status" {
            exceeded.push(name.as_str());
        }
        used.insert(name.clone(), sum);
    }
    if exceeded.is_empty() {
        return Ok((used != quota.used).then_some(used));
    }
    let render = |amounts: &ResourceList| {
        let parts = exceeded.iter().filter_map(|name| Some(format!("{name}={}", amounts.get(*name)?)));
        parts.collect::<Vec<_>>().join(",")
    };
    forbidden(format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        quota.name,
        render(demand),
        render(&quota.used),
        render(&quota.hard)
    ))
}

fn names_where(amounts: &ResourceList, predicate: impl Fn(&Quantity) -> bool) -> Vec<&str> {
    amounts.iter().filter(|(_, amount)| predicate(amount)).map(|(name, _)| name.as_str()).collect()
}

fn positive(mut amounts: ResourceList) -> ResourceList {
    amounts.retain(|_, amount| !amount.is_zero() && !amount.is_negative());
    amounts
}

/// The growth of usage; the quota controller subtracts, not a write.
fn growth(new: &ResourceList, old: &ResourceList) -> ResourceList {
    let grown = new.iter().map(|(name, amount)| {
        let difference = old.get(name).map_or_else(|| amount.clone(), |old| amount.minus(old));
        (name.clone(), difference)
    });
    positive(grown.collect())
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
