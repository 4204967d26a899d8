//! Python virtual environments below the build folder.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a command that must succeed and returns its stdout.
pub fn run(command: &mut Command) -> String {
    let output = command.output().expect("python3 runs: tests/run installs it");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {} {}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// The interpreter of a virtual environment of this name with these packages, such as `name==1.2`. It is kept for the next run.
pub fn environment(name: &str, packages: &[&str]) -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{name}"));
    let python = home.join("bin/python");
    let done = home.join(packages.join(" "));
    if !done.exists() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home));
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages));
        std::fs::write(done, "").expect("a mark");
    }
    python
}

/// The path of a script in `tests/python`.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(name)
}
