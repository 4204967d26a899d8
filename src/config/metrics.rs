//! Which metrics are shown, and with which labels.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Args;
use pilothouse_apimachinery::document;

use super::ConfigError;
use crate::limits::METRIC_LABELS_FILE_BYTES;

/// The release whose hidden metrics may be shown.
const PREVIOUS: &str = "1.32";

/// Metrics.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Metrics")]
pub struct MetricFlags {
    /// Names of metrics that are not shown.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub disabled_metrics: Vec<String>,
    /// The values that a label of a metric may have; others are shown as `unexpected`: METRIC,LABEL=VALUE,... May be repeated.
    #[arg(long, value_name = "METRIC,LABEL=VALUE,...")]
    pub allow_metric_labels: Vec<String>,
    /// File with such values: YAML with keys METRIC,LABEL. Not read with --allow-metric-labels.
    #[arg(long, value_name = "FILE")]
    pub allow_metric_labels_manifest: Option<PathBuf>,
    /// The previous minor release (1.32), to show metrics that are hidden since then.
    #[arg(long, default_value = "", value_name = "VERSION")]
    pub show_hidden_metrics_for_version: String,
}

/// The allowed values by metric and label.
pub type AllowedLabels = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

impl MetricFlags {
    /// Whether hidden metrics are shown.
    pub fn shows_hidden(&self) -> bool {
        !self.show_hidden_metrics_for_version.is_empty()
    }

    /// Checks the flags, in the words of the reference.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.shows_hidden() && self.show_hidden_metrics_for_version != PREVIOUS {
            return Err(ConfigError::new(format!(
                "--show-hidden-metrics-for-version must be omitted or have the value '{PREVIOUS}'. Only the previous minor version is \
                 allowed"
            )));
        }
        self.labels_of_flag().map(drop)
    }

    /// The allowed values of labels. Reads a file: called once, at start.
    pub fn allowed_labels(&self) -> Result<AllowedLabels, ConfigError> {
        match &self.allow_metric_labels_manifest {
            Some(path) if self.allow_metric_labels.is_empty() => read(path),
            _ => self.labels_of_flag(),
        }
    }

    fn labels_of_flag(&self) -> Result<AllowedLabels, ConfigError> {
        let mut allowed = AllowedLabels::new();
        for text in &self.allow_metric_labels {
            let text = text.trim_matches('"');
            for pair in pairs(text) {
                let (key, values) = pair.split_once('=').ok_or_else(|| {
                    ConfigError::new(format!("--allow-metric-labels: {pair} must be formatted as key=value"))
                })?;
                add(&mut allowed, key, values)?;
            }
        }
        Ok(allowed)
    }
}

/// The parts METRIC,LABEL=VALUE,... of a text, which may have several: then, as in the reference, each is quoted.
fn pairs(text: &str) -> Vec<&str> {
    if text.matches('=').count() <= 1 {
        return vec![text].into_iter().filter(|text| !text.is_empty()).collect();
    }
    text.split("\",\"").map(|pair| pair.trim_matches('"')).collect()
}

fn add(allowed: &mut AllowedLabels, key: &str, values: &str) -> Result<(), ConfigError> {
    let parts = key.split_once(',').filter(|(metric, label)| is_name(metric, true) && is_name(label, false));
    let (metric, label) = parts.ok_or_else(|| {
        ConfigError::new(
            "--allow-metric-labels must have a list of kv pair with format `metricName,labelName=labelValue, labelValue,...`",
        )
    })?;
    let values = values.split(',').map(str::to_owned).collect();
    allowed.entry(metric.to_owned()).or_default().insert(label.to_owned(), values);
    Ok(())
}

/// Whether a text is the name of a metric, or of a label.
fn is_name(text: &str, is_metric: bool) -> bool {
    let is_start = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || (is_metric && byte == b':');
    let mut bytes = text.bytes();
    bytes.next().is_some_and(is_start) && bytes.all(|byte| is_start(byte) || byte.is_ascii_digit())
}

fn read(path: &Path) -> Result<AllowedLabels, ConfigError> {
    let invalid = |reason: &str| {
        ConfigError::new(format!("--allow-metric-labels-manifest: {}: {reason}", path.display()))
    };
    let text = std::fs::read(path).map_err(|error| invalid(&error.to_string()))?;
    if text.len() > METRIC_LABELS_FILE_BYTES {
        return Err(invalid("it is too large"));
    }
    let file = document::parse(&text).map_err(|error| invalid(&error))?;
    let mut allowed = AllowedLabels::new();
    for (key, values) in file.fields().ok_or_else(|| invalid("it is no map"))? {
        let values = values.as_str().ok_or_else(|| invalid(&format!("the value of {key} is no text")))?;
        add(&mut allowed, key, values)?;
    }
    Ok(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(labels: &[&str]) -> MetricFlags {
        let allow_metric_labels = labels.iter().map(|label| (*label).to_owned()).collect();
        MetricFlags { allow_metric_labels, ..MetricFlags::default() }
    }

    fn list(allowed: &AllowedLabels) -> Vec<String> {
        let describe = |(metric, labels): (&String, &BTreeMap<String, BTreeSet<String>>)| {
            labels.iter().map(|(label, values)| format!("{metric} {label} {values:?}")).collect::<Vec<_>>()
        };
        allowed.iter().flat_map(describe).collect()
    }

    #[test]
    fn labels_are_read_from_the_flag_and_from_a_file() {
        let one = flags(&["m1,a=v1,v2", "m2,b=x"]).allowed_labels().unwrap();
        assert_eq!(list(&one), [r#"m1 a {"v1", "v2"}"#, r#"m2 b {"x"}"#]);
        let quoted = flags(&[r#""m1,a=v1,v2","m2,b=x""#]).allowed_labels().unwrap();
        assert_eq!(quoted, one);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("labels.yaml");
        std::fs::write(&path, "m1,a: v1,v2\nm2,b: x\n").unwrap();
        let manifest =
            MetricFlags { allow_metric_labels_manifest: Some(path.clone()), ..MetricFlags::default() };
        assert_eq!(manifest.allowed_labels().unwrap(), one);
        let both = MetricFlags { allow_metric_labels: vec!["m3,c=z".to_owned()], ..manifest.clone() };
        assert_eq!(list(&both.allowed_labels().unwrap()), [r#"m3 c {"z"}"#], "the flag comes first");
        std::fs::write(&path, "m1,a: 7\n").unwrap();
        assert!(manifest.allowed_labels().is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(manifest.allowed_labels().unwrap_err().to_string().contains("labels.yaml"));
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in ["m1=v", "m1,a", "1m,a=v", "m,a b=v", ",=v"] {
            assert!(flags(&[wrong]).validate().is_err(), "{wrong}");
        }
        let hidden = |version: &str| {
            let show_hidden_metrics_for_version = version.to_owned();
            MetricFlags { show_hidden_metrics_for_version, ..MetricFlags::default() }.validate()
        };
        assert!(hidden("").is_ok() && hidden("1.32").is_ok());
        assert_eq!(
            hidden("1.33").unwrap_err().to_string(),
            "--show-hidden-metrics-for-version must be omitted or have the value '1.32'. Only the previous minor version is allowed"
        );
    }
}
