//! Where cargo keeps the sources of a package.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of a package's sources.
///
/// Cargo tells a build script nothing about packages it does not compile, so this looks where they lie: among vendored
/// sources, then in cargo's own folder. The last resort is to ask cargo, which knows every other place; it is the last
/// because it answers offline only when the packages for tests are there too.
pub(crate) fn package(name: &str, version: &str, manifest: &Path, cargo: &Path) -> Option<PathBuf> {
    let is = |folder: &PathBuf| declares(folder, name, version);
    let vendored = manifest.parent().map(|top| top.join("vendor"));
    let vendored =
        vendored.into_iter().flat_map(|vendor| [vendor.join(name), vendor.join(format!("{name}-{version}"))]);
    let fetched = registries().into_iter().map(|registry| registry.join(format!("{name}-{version}")));
    vendored.chain(fetched).find(is).or_else(|| ask(name, version, manifest, cargo).filter(is))
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
    let has = |line: String| manifest.lines().any(|known| known.trim() == line);
    has(format!("name = \"{name}\"")) && has(format!("version = \"{version}\""))
}

fn ask(name: &str, version: &str, manifest: &Path, cargo: &Path) -> Option<PathBuf> {
    let mut command = Command::new(cargo);
    command
        .args(["metadata", "--format-version=1", "--offline", "--locked", "--manifest-path"])
        .arg(manifest);
    let output = command.output().ok().filter(|output| output.status.success())?;
    manifest_path(&String::from_utf8(output.stdout).ok()?, name, version)?.parent().map(Path::to_owned)
}

/// The manifest of a package in what `cargo metadata` says. Its answer is JSON of megabytes of which one string is
/// wanted, and the name of a package and the folder of its sources stand in it together.
fn manifest_path(metadata: &str, name: &str, version: &str) -> Option<PathBuf> {
    let folders = [format!("{name}-{version}"), name.to_owned()];
    let mut paths = metadata.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    paths.find_map(|path| {
        let path = PathBuf::from(path.replace("\\\\", "\\"));
        let folder = path.parent()?.file_name()?.to_str()?;
        folders.iter().any(|wanted| wanted == folder).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendored_sources_are_found_and_checked() {
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
    fn the_answer_of_cargo_is_understood() {
        let answer = r#"{"packages":[{"name":"a","manifest_path":"/r/a-1.0.0/Cargo.toml"},
            {"name":"b","manifest_path":"/r/b-2.0.0/Cargo.toml","targets":[]}]}"#
            .replace("\n", "");
        assert_eq!(manifest_path(&answer, "b", "2.0.0"), Some(PathBuf::from("/r/b-2.0.0/Cargo.toml")));
        assert_eq!(manifest_path(&answer, "b", "2.0.1"), None);
    }
}
