//! The configuration of ImagePolicyWebhook in the file of `--admission-control-config-file`.

use std::path::Path;
use std::time::Duration;

use pilothouse_apimachinery::document::FieldReader;
use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::value::Value;
use pilothouse_client::kubeconfig::Access;

/// How the remote server is called, and what its answers mean for how long.
pub struct Configuration {
    /// Access to the remote server.
    pub(super) access: Access,
    /// How long a pod with the same images is allowed or refused without another call.
    pub(super) allow_ttl: Duration,
    pub(super) deny_ttl: Duration,
    /// The pause before the second call of a failing server; each later one is half as long again.
    pub(super) retry_delay: Duration,
    /// Whether pods are admitted while the server cannot be asked.
    pub(super) default_allow: bool,
}

/// The default, the smallest and the largest value of a duration, and the unit in which it is written.
struct Range {
    default: Duration,
    min: Duration,
    max: Duration,
    unit: Duration,
}

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const RETRY_BACKOFF: Range = Range {
    default: Duration::from_millis(500),
    min: Duration::from_nanos(1),
    max: Duration::from_secs(300),
    unit: MILLISECOND,
};
const ALLOW_TTL: Range =
    Range { default: Duration::from_secs(300), min: SECOND, max: Duration::from_secs(1_800), unit: SECOND };
const DENY_TTL: Range =
    Range { default: Duration::from_secs(30), min: SECOND, max: Duration::from_secs(1_800), unit: SECOND };

impl Range {
    /// The duration that a number stands for: 0 for the default, -1 for none.
    fn duration(&self, field: &str, number: i64) -> Result<Duration, String> {
        let units = match number {
            -1 => return Ok(Duration::ZERO),
            0 => return Ok(self.default),
            units => u32::try_from(units).ok(),
        };
        let duration = units.and_then(|units| self.unit.checked_mul(units));
        duration.filter(|duration| (self.min..=self.max).contains(duration)).ok_or_else(|| {
            let Range { min, max, unit, .. } = self;
            format!("{field}: valid value is between {min:?} and {max:?}, got {number} times {unit:?}")
        })
    }
}

impl Configuration {
    /// Reads the configuration, which is required: without a server the plug-in would have to refuse every pod.
    pub fn read(document: Option<&Value>) -> Result<Configuration, String> {
        let document = document.ok_or("no config specified")?;
        let (mut reader, root, path) =
            (FieldReader::default(), FieldPath::root(), FieldPath::new("imagePolicy"));
        reader.check_fields(document, &root, &["imagePolicy"]);
        let none = Value::object();
        let policy = document.get("imagePolicy").unwrap_or(&none);
        let fields = ["kubeConfigFile", "allowTTL", "denyTTL", "retryBackoff", "defaultAllow"];
        reader.check_fields(policy, &path, &fields);
        let file = reader.text(policy, "kubeConfigFile", &path);
        let mut integer = |field: &str| reader.integer(policy, field, &path);
        let (backoff, allow, deny) = (integer("retryBackoff"), integer("allowTTL"), integer("denyTTL"));
        let default_allow = reader.boolean(policy, "defaultAllow", &path);
        reader.result()?;
        let retry_delay = RETRY_BACKOFF.duration("retryBackoff", backoff)?;
        let allow_ttl = ALLOW_TTL.duration("allowTTL", allow)?;
        let deny_ttl = DENY_TTL.duration("denyTTL", deny)?;
        if file.is_empty() {
            return Err("imagePolicy.kubeConfigFile: Required value".to_owned());
        }
        let access = Access::read(Path::new(file)).map_err(|error| format!("kubeConfigFile: {error}"))?;
        Ok(Configuration { access, allow_ttl, deny_ttl, retry_delay, default_allow })
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::document::parse;

    use super::*;

    fn read(fields: &str) -> Result<Configuration, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("images.kubeconfig");
        let kubeconfig = "clusters: [{name: c, cluster: {server: 'https://images.test'}}]\ncontexts: [{name: c, context: \
                          {cluster: c}}]\ncurrent-context: c\n";
        std::fs::write(&file, kubeconfig).unwrap();
        let text = format!("imagePolicy: {{kubeConfigFile: {}, {fields}}}", file.display());
        Configuration::read(Some(&parse(text.as_bytes()).unwrap()))
    }

    #[test]
    fn image_policy_durations_have_units_defaults_and_ranges() {
        let durations = |fields: &str| {
            let config = read(fields).unwrap();
            (config.retry_delay, config.allow_ttl, config.deny_ttl, config.default_allow)
        };
        let (seconds, millis) = (Duration::from_secs, Duration::from_millis);
        assert_eq!(durations(""), (millis(500), seconds(300), seconds(30), false));
        assert_eq!(
            durations("allowTTL: 1800, denyTTL: 1, retryBackoff: 300000, defaultAllow: true"),
            (seconds(300), seconds(1_800), seconds(1), true)
        );
        assert_eq!(
            durations("allowTTL: -1, denyTTL: -1, retryBackoff: -1"),
            (Duration::ZERO, Duration::ZERO, Duration::ZERO, false)
        );
        for (fields, expected) in [
            ("allowTTL: 1801", "allowTTL: valid value is between 1s and 1800s, got 1801"),
            ("denyTTL: -2", "denyTTL: valid value is between"),
            ("retryBackoff: 300001", "retryBackoff: valid value is between 1ns and 300s, got 300001"),
            ("retryBackoff: 9223372036854775807", "retryBackoff: valid value"),
            ("allowTtl: 1", "unknown field \"imagePolicy.allowTtl\""),
            ("defaultAllow: maybe", "imagePolicy.defaultAllow"),
        ] {
            let error = read(fields).err().expect(fields);
            assert!(error.contains(expected), "{fields}: {error}");
        }
    }

    #[test]
    fn image_policy_without_server_is_refused() {
        let error = |text: &str| Configuration::read(Some(&parse(text.as_bytes()).unwrap())).err().unwrap();
        assert_eq!(Configuration::read(None).err().as_deref(), Some("no config specified"));
        assert!(error("imagePolicy: {}").contains("kubeConfigFile: Required value"));
        assert!(error("imagePolicy: {kubeConfigFile: /nowhere/at/all}").starts_with("kubeConfigFile: "));
        assert!(error("imagePolicies: {}").contains("unknown field \"imagePolicies\""));
    }
}
