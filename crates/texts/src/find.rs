//! Where cargo keeps the sources of a package.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of a package's sources.
///
/// Cargo tells a build script nothing about packages that it does not compile, so this looks for vendored sources, then in
/// cargo's home. `cargo metadata` is the last resort: offline, it fails unless the dev-dependencies are present too.
pub(crate) fn package(name: &str, version: &str, manifest: &Path, cargo: &Path) -> Option<PathBuf> {
    let is_package = |folder: &PathBuf| declares(folder, name, version);
    let vendored = manifest.parent().map(|top| top.join("vendor"));
    let vendored =
        vendored.into_iter().flat_map(|vendor| [vendor.join(name), vendor.join(format!("{name}-{version}"))]);
    let fetched = registries().into_iter().map(|registry| registry.join(format!("{name}-{version}")));
    vendored
        .chain(fetched)
        .find(is_package)
        .or_else(|| cargo_metadata(name, version, manifest, cargo).filter(is_package))
}

/// The folders into which cargo unpacks packages, one for each registry.
fn registries() -> Vec<PathBuf> {
    let home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cargo")));
    let Some(entries) = home.and_then(|home| fs::read_dir(home.join("registry/src")).ok()) else {
        return Vec::new();
    };
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    folders
}

fn declares(folder: &Path, name: &str, version: &str) -> bool {
    let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else { return false };
    let has_line = |line: String| manifest.lines().any(|other| other.trim() == line);
    has_line(format!("name = \"{name}\"")) && has_line(format!("version = \"{version}\""))
}

fn cargo_metadata(name: &str, version: &str, manifest: &Path, cargo: &Path) -> Option<PathBuf> {
    let mut command = Command::new(cargo);
    command
        .args(["metadata", "--format-version=1", "--offline", "--locked", "--manifest-path"])
        .arg(manifest);
    let output = command.output().ok().filter(|output| output.status.success())?;
    manifest_path(&String::from_utf8(output.stdout).ok()?, name, version)?.parent().map(Path::to_owned)
}

/// The path of a package's manifest in the output of `cargo metadata`. Searched as text: the output is megabytes of JSON, of
/// which one string is needed, and the directory of the sources is named after the package.
fn manifest_path(metadata: &str, name: &str, version: &str) -> Option<PathBuf> {
    let folders = [format!("{name}-{version}"), name.to_owned()];
    let mut paths = metadata.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    paths.find_map(|path| {
        let path = PathBuf::from(path.replace("\\\\", "\\"));
        let folder = path.parent()?.file_name()?.to_str()?;
        folders.iter().any(|expected| expected == folder).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendored_package_is_found_only_in_exact_version() {
        let top = tempfile::tempdir().unwrap();
        let manifest = top.path().join("Cargo.toml");
        let folder = top.path().join("vendor/some-texts");
        fs::create_dir_all(&folder).unwrap();
        let find = |version| package("some-texts", version, &manifest, Path::new("no-such-cargo"));
        assert_eq!(find("1.2.3"), None);
        fs::write(folder.join("Cargo.toml"), "[package]\nname = \"some-texts\"\nversion = \"1.2.3\"\n")
            .unwrap();
        assert_eq!(find("1.2.3"), Some(folder));
        assert_eq!(find("1.2.4"), None, "another version may be written differently");
    }

    #[test]
    fn manifest_path_is_read_from_cargo_metadata() {
        let metadata = r#"{"packages":[{"name":"a","manifest_path":"/r/a-1.0.0/Cargo.toml"},
            {"name":"b","manifest_path":"/r/b-2.0.0/Cargo.toml","targets":[]}]}"#
            .replace("\n", "");
        assert_eq!(manifest_path(&metadata, "b", "2.0.0"), Some(PathBuf::from("/r/b-2.0.0/Cargo.toml")));
        assert_eq!(manifest_path(&metadata, "b", "2.0.1"), None);
    }
}
