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
    pub of: GroupResource<'a>,
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
        let meter = UsageEvaluator::of(self.of, features);
        meter.is_some_and(|meter| meter.charges(self.change, self.subresource, self.new, self.old))
    }
}

/// Why a write is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A quota is exceeded.
    Forbidden(String),
    /// No quota covers it. The reference answers this without a proper status.
    Uncovered(String),
}

fn forbidden<T>(why: String) -> Result<T, Refusal> {
    Err(Refusal::Forbidden(why))
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
    let Some(meter) = UsageEvaluator::of(request.of, features) else { return Ok(Charges::new()) };
    if !meter.charges(request.change, request.subresource, request.new, request.old) {
        return Ok(Charges::new());
    }
    let concerned = concerned(quotas, request, &meter)?;
    let input = meter.usage(request.new, request.now);
    let negative: Vec<&str> = names_where(&input, Quantity::is_negative);
    if !negative.is_empty() {
        return forbidden(format!("quota usage is negative for resource(s): {}", negative.join(",")));
    }
    // Usage that a quota counted before is not counted again.
    let all = positive(input.clone());
    let growth = match request.change {
        Change::Create => all.clone(),
        Change::Update => growth(&input, &meter.usage(request.old, request.now)),
    };
    let mut demands = BTreeMap::new();
    for (index, quota) in &concerned {
        let counted = request.change == Change::Update && meter.matches(quota, request.old);
        demands.insert(*index, if counted { &growth } else { &all });
    }
    demands.retain(|_, demand| !demand.is_empty());
    let nothing = if concerned.is_empty() { growth.is_empty() } else { demands.is_empty() };
    if nothing {
        return Ok(Charges::new());
    }
    require_cover(quotas, &concerned, request, (&meter, &input), limited)?;
    let mut charges = Charges::new();
    for (index, quota) in concerned {
        if let Some(demand) = demands.get(&index) {
            charges.extend(charge(quota, demand, request.subresource)?.map(|used| (index, used)));
        }
    }
    Ok(charges)
}

/// The quotas that cover an object. An error if the object lacks required fields, or a quota was not counted yet.
fn concerned<'q>(
    quotas: &'q [Quota],
    request: &Request<'_>,
    meter: &UsageEvaluator<'_>,
) -> Result<Vec<(usize, &'q Quota)>, Refusal> {
    let mut concerned = Vec::new();
    for (index, quota) in quotas.iter().enumerate().filter(|(_, quota)| meter.matches(quota, request.new)) {
        let measured = || quota.hard.keys().map(String::as_str).filter(|name| meter.measures(name));
        if let Some(missing) = meter.unspecified(request.new, measured()) {
            return forbidden(format!("failed quota: {}: {missing}", quota.name));
        }
        if measured().any(|name| !quota.used.contains_key(name)) {
            let names: Vec<&str> = measured().collect();
            return forbidden(format!(
                "status unknown for quota: {}, resources: {}",
                quota.name,
                names.join(",")
            ));
        }
        concerned.push((index, quota));
    }
    Ok(concerned)
}

/// Refuses limited resources without a covering quota.
fn require_cover(
    quotas: &[Quota],
    concerned: &[(usize, &Quota)],
    request: &Request<'_>,
    (meter, input): (&UsageEvaluator<'_>, &ResourceList),
    limited: &[Limited],
) -> Result<(), Refusal> {
    if limited.is_empty() {
        return Ok(());
    }
    let own: Vec<&Limited> = limited.iter().filter(|limited| limited.is_about(request.of)).collect();
    let consumed = names_where(input, |amount| !amount.is_zero() && !amount.is_negative());
    let covered = |name: &&str| concerned.iter().any(|(_, quota)| quota.hard.contains_key(*name));
    let uncovered: BTreeSet<&str> = consumed
        .into_iter()
        .filter(|name| own.iter().any(|limited| limited.names(name)))
        .filter(|name| !covered(name))
        .collect();
    if !uncovered.is_empty() {
        let names: Vec<&str> = uncovered.into_iter().collect();
        return forbidden(format!("insufficient quota to consume: {}", names.join(",")));
    }
    if !meter.needs_cover() {
        return Ok(());
    }
    let holds = |scope: &&Scope| meter.is_in(request.new, scope);
    let covering: BTreeSet<&str> = quotas
        .iter()
        .flat_map(|quota| &quota.scopes)
        .filter(holds)
        .map(|scope| scope.name.as_str())
        .collect();
    let limiting = limited.iter().flat_map(|limited| &limited.scopes).filter(holds);
    let uncovered: Vec<String> =
        limiting.filter(|scope| !covering.contains(scope.name.as_str())).map(Scope::shown).collect();
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
    let shown = |amounts: &ResourceList| {
        let parts = exceeded.iter().filter_map(|name| Some(format!("{name}={}", amounts.get(*name)?)));
        parts.collect::<Vec<_>>().join(",")
    };
    forbidden(format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        quota.name,
        shown(demand),
        shown(&quota.used),
        shown(&quota.hard)
    ))
}

fn names_where(amounts: &ResourceList, is: impl Fn(&Quantity) -> bool) -> Vec<&str> {
    amounts.iter().filter(|(_, amount)| is(amount)).map(|(name, _)| name.as_str()).collect()
}

fn positive(mut amounts: ResourceList) -> ResourceList {
    amounts.retain(|_, amount| !amount.is_zero() && !amount.is_negative());
    amounts
}

/// The growth of usage; the quota controller subtracts, not a write.
fn growth(new: &ResourceList, old: &ResourceList) -> ResourceList {
    let grown = new.iter().map(|(name, amount)| {
        let more = old.get(name).map_or_else(|| amount.clone(), |old| amount.minus(old));
        (name.clone(), more)
    });
    positive(grown.collect())
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
