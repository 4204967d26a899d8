//! Which of the enabled resources an emulated release has.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilothouse_apimachinery::version::{self, Level, MinorVersion};

use super::resource::Resource;
use super::runtime_config::{RuntimeConfigError, Switches};
use crate::emulation::Emulation;

/// The resources among `enabled` that the release has, in the same order, and those that flags want beside them.
pub fn available(
    enabled: &[Arc<Resource>],
    switches: &Switches,
    emulation: &Emulation,
) -> Result<Vec<Arc<Resource>>, RuntimeConfigError> {
    let release = emulation.release;
    let is_removed = |resource: &Resource| resource.removed.is_some_and(|removed| removed <= release);
    let is_introduced =
        |resource: &Resource| resource.introduced.is_none_or(|introduced| introduced <= release);
    let mut from_least_preferred: Vec<&Arc<Resource>> =
        enabled.iter().filter(|resource| !is_removed(resource)).collect();
    from_least_preferred.sort_by(|a, b| version::preferred_first(&b.gv.version, &a.gv.version));
    // The resources, in whatever version that is not an alpha version, that are served so far.
    let mut served_names: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut served: BTreeSet<u32> = BTreeSet::new();
    for resource in from_least_preferred {
        let name = (&*resource.gv.group, &*resource.plural);
        let is_later_version = emulation.forward_compatible && served_names.contains(&name);
        let is_wanted = emulation.runtime_config_forward_compatible
            && (switches.enables_resource(resource) || switches.enables_version(&resource.gv));
        if !is_introduced(resource) && !is_later_version && !is_wanted {
            if switches.enables_resource(resource) {
                return Err(resource_of_later_release(resource, release));
            }
            continue;
        }
        served.insert(resource.ordinal);
        if version::level(&resource.gv.version) != Some(Level::Alpha) {
            served_names.insert(name);
        }
    }
    let is_served = |resource: &&Arc<Resource>| served.contains(&resource.ordinal);
    for resource in enabled {
        let has_none = || !enabled.iter().filter(is_served).any(|other| other.gv == resource.gv);
        if switches.enables_version(&resource.gv) && !is_introduced(resource) && has_none() {
            let version = resource.gv.to_string();
            return Err(RuntimeConfigError::VersionOfLaterRelease { version, release: text(release) });
        }
    }
    Ok(enabled.iter().filter(is_served).cloned().collect())
}

fn resource_of_later_release(resource: &Resource, release: MinorVersion) -> RuntimeConfigError {
    RuntimeConfigError::ResourceOfLaterRelease {
        resource: format!("{}, Resource={}", resource.gv, resource.plural),
        introduced: resource.introduced.map(text).unwrap_or_default(),
        release: text(release),
    }
}

fn text((major, minor): MinorVersion) -> String {
    format!("{major}.{minor}")
}

#[cfg(test)]
mod tests {
    use super::super::build::Builtin;
    use super::super::runtime_config::RuntimeConfig;
    use super::*;

    fn emulating(minor: u32) -> Emulation {
        Emulation { release: (1, minor), ..Emulation::default() }
    }

    /// The served versions of a resource, by its plural and group, or the error.
    fn versions(config: &str, emulation: Emulation, plural: &str, group: &str) -> Result<String, String> {
        let config = RuntimeConfig::parse(config).map_err(|error| error.to_string())?;
        let catalog = Builtin::load().unwrap().serve_where(&config, &emulation, |_| true);
        let catalog = catalog.map_err(|error| error.to_string())?;
        let mut versions: Vec<String> = catalog
            .resources()
            .filter(|resource| *resource.plural == *plural && *resource.gv.group == *group)
            .map(|resource| resource.gv.version.to_string())
            .collect();
        versions.sort_unstable();
        Ok(versions.join(" "))
    }

    #[test]
    fn resources_of_later_releases_are_not_served() {
        let (network, devices) =
            (("ipaddresses", "networking.k8s.io"), ("resourceclaims", "resource.k8s.io"));
        for (minor, config, (plural, group), expected) in [
            (33, "", network, "v1"),
            (32, "", network, ""),
            (32, "networking.k8s.io/v1beta1=true", network, "v1beta1"),
            (31, "api/all=true", network, "v1beta1"),
            (31, "api/all=true", devices, "v1alpha3"),
            (32, "api/all=true", devices, "v1alpha3 v1beta1"),
            (33, "api/all=true", devices, "v1alpha3 v1beta1 v1beta2"),
            (31, "", ("pods", ""), "v1"),
        ] {
            let served = versions(config, emulating(minor), plural, group);
            assert_eq!(served, Ok(expected.to_owned()), "{plural} of 1.{minor} with {config}");
        }
    }

    #[test]
    fn later_versions_are_served_if_the_emulation_is_forward_compatible() {
        let forward = Emulation { forward_compatible: true, ..emulating(31) };
        let served = |config| versions(config, forward, "ipaddresses", "networking.k8s.io").unwrap();
        assert_eq!(served(""), "", "no version of it is enabled");
        assert_eq!(served("networking.k8s.io/v1beta1=true"), "v1 v1beta1");
        assert_eq!(
            served("networking.k8s.io/v1beta1=true,networking.k8s.io/v1/ipaddresses=false"),
            "v1beta1"
        );
        let claims = |config| versions(config, forward, "resourceclaims", "resource.k8s.io").unwrap();
        assert_eq!(claims("resource.k8s.io/v1alpha3=true"), "v1alpha3", "alpha versions do not count");
        let beta = Emulation { release: (1, 32), ..forward };
        let claims = versions("resource.k8s.io/v1beta1=true", beta, "resourceclaims", "resource.k8s.io");
        assert_eq!(claims.unwrap(), "v1beta1 v1beta2");
    }

    #[test]
    fn runtime_config_enables_later_resources_only_if_told_so() {
        let of = |emulation| move |config| versions(config, emulation, "ipaddresses", "networking.k8s.io");
        let refused = of(emulating(31));
        assert_eq!(
            refused("networking.k8s.io/v1/ipaddresses=true").unwrap_err(),
            "cannot enable resource networking.k8s.io/v1, Resource=ipaddresses in runtime-config because it is introduced at \
             1.33 after the current version 1.31. Consider setting --runtime-config-emulation-forward-compatible=true"
        );
        let served = of(Emulation { runtime_config_forward_compatible: true, ..emulating(31) });
        assert_eq!(served("networking.k8s.io/v1/ipaddresses=true").unwrap(), "v1");
        assert_eq!(served("networking.k8s.io/v1=true").unwrap(), "v1");
        assert_eq!(served("").unwrap(), "");
        assert_eq!(refused("networking.k8s.io/v1=true").unwrap(), "", "the version has other resources");
        let error =
            versions("resource.k8s.io/v1beta2=true", emulating(32), "resourceclaims", "resource.k8s.io");
        assert_eq!(
            error.unwrap_err(),
            "cannot enable version resource.k8s.io/v1beta2 in runtime-config because all the resources have been introduced \
             after the current version 1.32. Consider setting --runtime-config-emulation-forward-compatible=true"
        );
    }
}
