//! Python with packages of its own, in an environment below the build folder.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a command that must succeed; what it wrote.
pub fn succeed(command: &mut Command) -> String {
    let output = command.output().expect("python3 runs: tests/run installs it");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {} {}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// A Python with these packages, such as `name==1.2`; the first gives the environment its name. It is made once and kept for
/// the next run.
pub fn with(packages: &[&str]) -> PathBuf {
    let name = packages[0].split("==").next().expect("a name");
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{name}"));
    let python = home.join("bin/python");
    let done = home.join(packages.join(" "));
    if !done.exists() {
        succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home));
        succeed(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages));
        std::fs::write(done, "").expect("a mark");
    }
    python
}

/// A script of these tests.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(name)
}
