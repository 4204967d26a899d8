//! What is counted of the conditions of webhooks and policies. The labels name what operators made.

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

/// The bounds of the classes of duration, in seconds; the reference server's.
const SECONDS: [f64; 7] = [0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];
const LABELS: [&str; 4] = ["name", "kind", "type", "operation"];

/// Whose conditions, when, and about what.
#[derive(Clone, Copy)]
pub struct Conditions<'a> {
    /// The name of the webhook or policy.
    pub name: &'a str,
    /// `webhook` or `policy`.
    pub kind: &'a str,
    /// `admit` or `validating` for webhooks, `validate` for policies.
    pub sort: &'a str,
    /// What is done, in the words of rules.
    pub operation: &'a str,
}

impl Conditions<'_> {
    fn labels(&self) -> [&str; 4] {
        [self.name, self.kind, self.sort, self.operation]
    }
}

/// How conditions were evaluated.
pub struct Counts {
    errors: IntCounterVec,
    exclusions: IntCounterVec,
    durations: HistogramVec,
}

impl Counts {
    pub(super) fn new() -> Result<Counts, prometheus::Error> {
        let name = |what: &str| format!("apiserver_admission_match_condition_{what}");
        let errors = Opts::new(
            name("evaluation_errors_total"),
            "Match conditions that could not be evaluated, by what has them, its kind, type and operation.",
        );
        let exclusions = Opts::new(
            name("exclusions_total"),
            "Requests that match conditions kept away, by what has them, its kind, type and operation.",
        );
        let durations = HistogramOpts::new(
            name("evaluation_seconds"),
            "How long match conditions took, by what has them, its kind, type and operation.",
        );
        Ok(Counts {
            errors: IntCounterVec::new(errors, &LABELS)?,
            exclusions: IntCounterVec::new(exclusions, &LABELS)?,
            durations: HistogramVec::new(durations.buckets(SECONDS.to_vec()), &LABELS)?,
        })
    }

    pub(super) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.errors.clone()))?;
        registry.register(Box::new(self.exclusions.clone()))?;
        registry.register(Box::new(self.durations.clone()))
    }

    /// Counts that the conditions of one webhook or policy were evaluated.
    pub fn evaluated(&self, of: Conditions<'_>, errors: usize, seconds: f64) {
        if errors > 0 {
            self.errors.with_label_values(&of.labels()).inc_by(errors as u64);
        }
        self.durations.with_label_values(&of.labels()).observe(seconds);
    }

    /// Counts that they kept a request away.
    pub fn excluded(&self, of: Conditions<'_>) {
        self.exclusions.with_label_values(&of.labels()).inc();
    }
}
